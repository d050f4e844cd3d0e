"""Every option: the typed schema, config files, the command line, and the sentence for a mistake in them."""
