"""The page that shows what a network does: for the server, for exported files, and for the attention of a sentence."""
