"""Training: preparation, loss, optimizer, training step, validation and the training loop."""
