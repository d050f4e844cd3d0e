"""All options: the typed schema, config files, the command line, and messages for mistakes in them."""
