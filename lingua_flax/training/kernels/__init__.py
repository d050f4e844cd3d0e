"""Attention on accelerators, without the arrays that the textbook version stores."""
