"""From batches to trained parameters: loss, optimizer, step, validation, loop."""
