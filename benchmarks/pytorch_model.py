"""The PyTorch model that Lingua Flax is compared with: torch.nn.Transformer with the sizes of a config.

Shapes: B rows, S source length, T target length, D model width, V pieces.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from lingua_flax.options.export_formats import ONLY_IN_TRAINING, SIZES
from lingua_flax.options.schema import ModelConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID


class Translator(nn.Module):
    """The counterpart of model/transformer.py: tied embeddings, sinusoidal positions and torch.nn.Transformer.

    Raises:
      SystemExit: the config has an option that this model does not know, or another value than its only one.
    """

    positions: torch.Tensor  # encodings, [max_length, D]

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        known = {name: getattr(config, name) for name in (*SIZES, *ONLY_IN_TRAINING, "norm", "position_base")}
        if config != ModelConfig(**known):
            raise SystemExit(f"error: of [model], the PyTorch model supports only {', '.join(known)}")
        d = config.embed_dim
        self.embedding = nn.Embedding(vocab_size, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        sizes = (d, config.num_heads, config.num_encoder_layers, config.num_decoder_layers, config.mlp_dim)
        norm_first = config.norm == "pre"
        self.transformer = nn.Transformer(*sizes, config.dropout_rate, batch_first=True, norm_first=norm_first)
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.dropout = nn.Dropout(config.dropout_rate)
        rates = config.position_base ** (-torch.arange(0, d, 2) / d)
        angles = torch.arange(config.max_length)[:, None] * rates
        encodings = torch.stack([angles.sin(), angles.cos()], -1).reshape(-1, d)
        self.register_buffer("positions", encodings, persistent=False)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns scaled embeddings plus position encodings, with dropout: [B, L] -> [B, L, D]."""
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim) + self.positions[: ids.shape[1]]
        return self.dropout(x)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the input of the output projection: [B, S], [B, T] -> [B, T, D]."""
        # The target needs no padding mask, since the causal mask already hides the padding at its end. So PyTorch
        # need not merge two kinds of masks.
        padding_mask = source == PAD_ID
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).isinf()
        masks = {"tgt_mask": causal, "src_key_padding_mask": padding_mask, "memory_key_padding_mask": padding_mask}
        return self.transformer(self.embed(source), self.embed(target), tgt_is_causal=True, **masks)


def batch_loss(model: Translator, source: torch.Tensor, target: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Returns the mean label-smoothed cross-entropy over the target tokens of padded sentences, [B, S] and [B, T].

    Padding is not projected to the vocabulary.
    """
    start = torch.full_like(target[:, :1], BOS_ID)
    x = model(source, torch.cat([start, target[:, :-1]], 1))
    is_token = target != PAD_ID
    return F.cross_entropy(x[is_token] @ model.embedding.weight.T, target[is_token], label_smoothing=smoothing)
