"""Reports that train.py makes without training: the contents of a corpus and the requirements of a run."""
