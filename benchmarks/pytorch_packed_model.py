"""The loss of the model in pytorch_model.py for packed rows, with attention kernels and autocast for GPUs.

Rows of a fixed length hold several sentences each, as in Lingua Flax, so that every batch has the same shape: the loss
is compiled once and can be part of a CUDA graph. Attention is one scaled_dot_product_attention for each layer, with
Boolean masks [B, 1, T, S] that keep the sentences of a row apart. Sentences without padding (jagged nested tensors,
varlen_attn) would need no masks, but their kernels work on tiles of 64 to 128 positions, and a sentence of 15 to 30
tokens fills only a quarter of its tile; besides, varlen_attn is newer than PyTorch 2.9 and its parameters still change.

Shapes: B rows, L row length (S of the source, T of the target), D model width, N heads, H head width, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pytorch_model import Translator
from torch.nn import functional as F

from lingua_flax.options.special_ids import BOS_ID, PAD_ID

ACTIVATIONS = torch.bfloat16
Sublayer = Callable[[torch.Tensor], torch.Tensor]


class PackedRows(NamedTuple):
    """Packed rows of pairs, [B, L] int32 each, as in data/batch.py.

    Attributes:
      source, target: ids, padded with PAD_ID; each sentence ends with EOS_ID.
      source_segments, target_segments: the number of each token's sentence in its row, from 1; 0 marks padding.
      source_positions, target_positions: the position of each token in its sentence, from 0.
    """

    source: torch.Tensor
    source_segments: torch.Tensor
    source_positions: torch.Tensor
    target: torch.Tensor
    target_segments: torch.Tensor
    target_positions: torch.Tensor


def packed_loss(model: Translator, batch: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Returns the mean label-smoothed cross-entropy over the target tokens, a float32 scalar.

    All positions are projected to the vocabulary, since selecting those with a token would make the host wait for the
    device.

    Args:
      model: float32 parameters, on the same device as the batch.
      batch: the fields of PackedRows, [B, 6, L] int32.
    """
    rows = PackedRows(*batch.unbind(1))
    with torch.autocast(batch.device.type, ACTIVATIONS):
        logits = hidden_states(model, rows) @ model.embedding.weight.T
    return F.cross_entropy(
        logits.flatten(0, 1).float(), rows.target.flatten().long(), ignore_index=PAD_ID, label_smoothing=smoothing
    )


def hidden_states(model: Translator, rows: PackedRows) -> torch.Tensor:
    """Returns the input of the output projection, [B, T, D]; the residual stream has the type of activations."""
    transformer: Any = model.transformer
    previous = torch.cat([rows.target[:, :1], rows.target[:, :-1]], 1)
    target_in = torch.where(rows.target_positions == 0, BOS_ID, previous)
    source_mask = attention_mask(rows.source_segments, rows.source_segments)
    target_mask = attention_mask(rows.target_segments, rows.target_segments, causal=True)
    cross_mask = attention_mask(rows.target_segments, rows.source_segments)
    memory = embed(model, rows.source, rows.source_positions).to(ACTIVATIONS)
    for layer in transformer.encoder.layers:
        memory = encoder_layer(layer, memory, source_mask)
    memory = transformer.encoder.norm(memory).to(ACTIVATIONS)
    x = embed(model, target_in, rows.target_positions).to(ACTIVATIONS)
    for layer in transformer.decoder.layers:
        x = decoder_layer(layer, x, memory, target_mask, cross_mask)
    return transformer.decoder.norm(x)


def attention_mask(queries: torch.Tensor, keys: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """Returns [B, 1, T, S], True where a query may attend to a key: both in the same sentence.

    Padding attends to everything, because softmax over no keys is not a number; the results are never used.

    Args:
      queries, keys: segments, [B, T] and [B, S].
      causal: whether a query may attend only to keys up to its own position.
    """
    mask = queries[:, None, :, None] == keys[:, None, None, :]
    if causal:
        mask = mask.tril()
    return mask | (queries == 0)[:, None, :, None]


def embed(model: Translator, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns `Translator.embed` for packed rows: ids and positions [B, L] -> [B, L, D]."""
    x = model.embedding(ids) * math.sqrt(model.embedding.embedding_dim) + model.positions[positions]
    return model.dropout(x)


def encoder_layer(layer: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Computes an nn.TransformerEncoderLayer: [B, S, D] -> [B, S, D]; mask [B, 1, S, S]."""
    x = residual(layer, layer.norm1, x, lambda x: layer.dropout1(attention(layer.self_attn, x, None, mask)))
    return residual(layer, layer.norm2, x, lambda x: layer.dropout2(feed_forward(layer, x)))


def decoder_layer(
    layer: Any, x: torch.Tensor, memory: torch.Tensor, target_mask: torch.Tensor, cross_mask: torch.Tensor
) -> torch.Tensor:
    """Computes an nn.TransformerDecoderLayer: [B, T, D] -> [B, T, D].

    Args:
      memory: the encoder's output, [B, S, D].
      target_mask, cross_mask: of self-attention, [B, 1, T, T], and of cross-attention, [B, 1, T, S].
    """
    cross_attention = layer.multihead_attn
    x = residual(layer, layer.norm1, x, lambda x: layer.dropout1(attention(layer.self_attn, x, None, target_mask)))
    x = residual(layer, layer.norm2, x, lambda x: layer.dropout2(attention(cross_attention, x, memory, cross_mask)))
    return residual(layer, layer.norm3, x, lambda x: layer.dropout3(feed_forward(layer, x)))


def residual(layer: Any, norm: Sublayer, x: torch.Tensor, sublayer: Sublayer) -> torch.Tensor:
    """Returns the sum of x [B, L, D] and a sublayer's output, normalized before or after it as the layer specifies."""
    return x + sublayer(norm(x)) if layer.norm_first else norm(x + sublayer(x)).to(x.dtype)


def feed_forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Computes the feed-forward sublayer: [B, L, D] -> [B, L, D]."""
    return layer.linear2(layer.dropout(layer.activation(layer.linear1(x))))


def attention(module: Any, x: torch.Tensor, memory: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor:
    """Computes an nn.MultiheadAttention: [B, T, D] -> [B, T, D].

    Args:
      memory: [B, S, D], from which keys and values are projected; x itself if None.
      mask: [B, 1, T, S].
    """
    weight, bias, d = module.in_proj_weight, module.in_proj_bias, x.shape[-1]
    if memory is None:
        projections = F.linear(x, weight, bias).chunk(3, -1)
    else:
        projections = (F.linear(x, weight[:d], bias[:d]), *F.linear(memory, weight[d:], bias[d:]).chunk(2, -1))
    query, keys, values = (p.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for p in projections)  # [B, N, L, H]
    dropout_rate = module.dropout if module.training else 0.0
    heads = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, dropout_p=dropout_rate)
    return module.out_proj(heads.transpose(1, 2).flatten(2))
