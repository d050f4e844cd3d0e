"""From corpora to batches: reads sentence pairs as strings and packs their ids into rows of int32."""
