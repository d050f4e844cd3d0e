"""What a run stands on: devices, compilation, its folder, its checkpoints, its interruption."""
