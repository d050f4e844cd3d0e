"""The configs that come with the package; lingua_flax.options.config_files finds them by name."""
