"""Translating and scoring text with a trained network: decoding, hypotheses and attention maps."""
