"""Reports that the command train makes without training: the contents of a corpus and the requirements of a run."""
