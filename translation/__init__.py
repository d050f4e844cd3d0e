"""From a trained network to text and scores: search, translation, evaluation."""
