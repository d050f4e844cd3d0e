"""The Transformer network: pure functions of arrays, without input or output of any kind."""
