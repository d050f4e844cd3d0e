"""Exports a plain pre-norm model of this project to CTranslate2, so that both can decode with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import TransformerSpec, common_spec

from options.special_ids import BOS_ID, EOS_ID, UNK_ID
from translation.attention_maps import position_table
from translation.translator import Translator

EPSILON = 1e-6  # default of Flax's layer norm


def export(translator: Translator, directory: Path) -> None:
    """Writes the model to a directory; its vocabulary consists of the pieces of the translator's tokenizer.

    Raises:
      SystemExit: the architecture is not supported.
    """
    config, params = translator.config, translator.params
    is_plain = (config.norm, config.tied_embeddings, config.activation) == ("pre", "all", "relu")
    if not is_plain or config.positions == "rotary" or config.qk_norm:
        raise SystemExit(
            'error: only models with norm "pre", tied_embeddings "all", activation "relu", positions that are not '
            '"rotary", and no qk_norm can be exported to CTranslate2'
        )
    spec = TransformerSpec.from_config((config.num_encoder_layers, config.num_decoder_layers), config.num_heads)
    embedding, positions = (np.asarray(array) for array in (params["target_embedding"], position_table(translator)))
    for stack, layers, norm in (
        (spec.encoder, params["encoder"], params["encoder_norm"]),
        (spec.decoder, params["decoder"], params["decoder_norm"]),
    ):
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight, stack.position_encodings.encodings = embedding, positions
        _copy_norm(stack.layer_norm, norm)
        for number, layer in enumerate(stack.layer):
            _copy_layer(layer, layers[number])
    spec.decoder.projection.weight = embedding
    tokenizer = translator.tokenizer
    pieces = tokenizer.target_pieces(range(tokenizer.target_vocab_size))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.layer_norm_epsilon = EPSILON
    spec.config.bos_token = spec.config.decoder_start_token = pieces[BOS_ID]
    spec.config.eos_token, spec.config.unk_token = pieces[EOS_ID], pieces[UNK_ID]
    spec.validate()
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def _copy_layer(spec: Any, params: Any) -> None:
    self_attention = params["self_attention"]
    _copy_norm(spec.self_attention.layer_norm, params["self_attention_residual"]["norm"])
    _copy_linear(spec.self_attention.linear[0], self_attention["query"], self_attention["key"], self_attention["value"])
    _copy_linear(spec.self_attention.linear[1], self_attention["output"])
    if "cross_attention" in params:
        cross_attention = params["cross_attention"]
        _copy_norm(spec.attention.layer_norm, params["cross_attention_residual"]["norm"])
        _copy_linear(spec.attention.linear[0], cross_attention["query"])
        _copy_linear(spec.attention.linear[1], cross_attention["key"], cross_attention["value"])
        _copy_linear(spec.attention.linear[2], cross_attention["output"])
    _copy_norm(spec.ffn.layer_norm, params["feed_forward_residual"]["norm"])
    _copy_linear(spec.ffn.linear_0, params["feed_forward"]["up"])
    _copy_linear(spec.ffn.linear_1, params["feed_forward"]["down"])


def _copy_norm(spec: common_spec.LayerNormSpec, params: Any) -> None:
    spec.gamma, spec.beta = np.asarray(params["scale"]), np.asarray(params["bias"])


def _copy_linear(spec: common_spec.LinearSpec, *params: Any) -> None:
    """Copies a linear layer, or fuses several that have the same input by concatenating their outputs."""
    spec.weight = np.concatenate([np.asarray(layer["kernel"]).T for layer in params])
    if "bias" in params[0]:
        spec.bias = np.concatenate([np.asarray(layer["bias"]) for layer in params])
