"""Training runs on disk: the folder, its metrics and its checkpoints."""
