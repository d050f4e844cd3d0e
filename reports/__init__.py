"""What train.py can tell before anything is trained: what is in a corpus, and what a run would need."""
