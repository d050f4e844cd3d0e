"""Attention and loss on accelerators, without the arrays that the textbook versions store."""
