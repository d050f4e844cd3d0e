"""Cleaning parallel text: reading what people have, mending it, and finding the pairs that do not match."""
