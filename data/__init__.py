"""From corpora to batches: strings on one side, packed int32 rows on the other."""
