"""What several test modules build or compare with."""
