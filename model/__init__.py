"""The network and nothing else: arrays in, arrays out."""
