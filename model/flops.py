"""Analytic count of the network's floating-point operations: matrix products only, two for each multiply-add."""

from lingua_flax.options.schema import ModelConfig


def training_flops(config: ModelConfig, target_vocab_size: int, source_length: int, target_length: int) -> int:
    """Returns the operations over one row of a forward pass and of a backward pass, with two products for each.

    The row has the given lengths; padded and masked positions count.
    """
    s, t, d, f = source_length, target_length, config.embed_dim, config.mlp_dim

    def attention(queries: int, keys: int) -> int:
        projections = 2 * queries * d * d + 2 * keys * d * d  # query and output; key and value
        return 2 * (projections + 2 * queries * keys * d)  # scores and weighted sums of values, over all heads

    def feed_forward(positions: int) -> int:
        return 2 * (2 * positions * d * f)

    encoder = config.num_encoder_layers * (attention(s, s) + feed_forward(s))
    decoder = config.num_decoder_layers * (attention(t, t) + attention(t, s) + feed_forward(t))
    return 3 * (encoder + decoder + 2 * t * d * target_vocab_size)
