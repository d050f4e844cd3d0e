"""A training run on disk: its folder, its metrics, its checkpoints."""
