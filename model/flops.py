"""How many floating-point operations a pass of the network takes, counted by hand: two for each multiply-and-add of its
matrix products. Softmax, normalisation, dropout and the like add a few percent, which by custom do not count."""

from __future__ import annotations

from options.schema import ModelConfig


def forward_flops(config: ModelConfig, target_vocab_size: int, source_length: int, target_length: int) -> int:
    """Of a forward pass over one row of so many source and target positions, padding included."""
    s, t, d, f = source_length, target_length, config.embed_dim, config.mlp_dim

    def attention(queries: int, keys: int) -> int:
        projections = 2 * queries * d * d + 2 * keys * d * d  # query and output, key and value
        return 2 * (projections + 2 * queries * keys * d)  # all heads: scores, and means of values

    def feed_forward(positions: int) -> int:
        return 2 * (2 * positions * d * f)

    encoder = config.num_encoder_layers * (attention(s, s) + feed_forward(s))
    decoder = config.num_decoder_layers * (attention(t, t) + attention(t, s) + feed_forward(t))
    return encoder + decoder + 2 * t * d * target_vocab_size


def training_flops(config: ModelConfig, target_vocab_size: int, source_length: int, target_length: int) -> int:
    """Of a forward and a backward pass, which takes twice as many: a product for each of a product's two operands."""
    return 3 * forward_flops(config, target_vocab_size, source_length, target_length)
