"""A plain pre-norm model of this project as a CTranslate2 model, so that both can decode with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import TransformerSpec, common_spec

from options.special_ids import BOS_ID, EOS_ID, UNK_ID
from translation.attention_maps import position_table
from translation.translator import Translator

EPSILON = 1e-6  # of Flax's layer norm


def export(translator: Translator, directory: Path) -> None:
    """Writes the model's folder; its tokens are the pieces of the translator's tokenizer."""
    config, params = translator.config, translator.params
    plain = (config.norm, config.tied_embeddings, config.activation) == ("pre", "all", "relu")
    if not plain or config.positions == "rotary" or config.qk_norm:
        raise SystemExit(
            "error: only pre-norm models with relu, one embedding, added position encodings and without qk_norm can be "
            "exported to CTranslate2"
        )
    spec = TransformerSpec.from_config((config.num_encoder_layers, config.num_decoder_layers), config.num_heads)
    table, positions = (np.asarray(array) for array in (params["target_embedding"], position_table(translator)))
    for side, layers, norm in (
        (spec.encoder, params["encoder"], params["encoder_norm"]),
        (spec.decoder, params["decoder"], params["decoder_norm"]),
    ):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight, side.position_encodings.encodings = table, positions
        _norm(side.layer_norm, norm)
        for number, layer in enumerate(side.layer):
            _layer(layer, layers[number])
    spec.decoder.projection.weight = table
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


def _layer(spec: Any, params: Any) -> None:
    own = params["self_attention"]
    _norm(spec.self_attention.layer_norm, params["self_attention_residual"]["norm"])
    _linear(spec.self_attention.linear[0], own["query"], own["key"], own["value"])
    _linear(spec.self_attention.linear[1], own["output"])
    if "cross_attention" in params:
        cross = params["cross_attention"]
        _norm(spec.attention.layer_norm, params["cross_attention_residual"]["norm"])
        _linear(spec.attention.linear[0], cross["query"])
        _linear(spec.attention.linear[1], cross["key"], cross["value"])
        _linear(spec.attention.linear[2], cross["output"])
    _norm(spec.ffn.layer_norm, params["feed_forward_residual"]["norm"])
    _linear(spec.ffn.linear_0, params["feed_forward"]["up"])
    _linear(spec.ffn.linear_1, params["feed_forward"]["down"])


def _norm(spec: common_spec.LayerNormSpec, params: Any) -> None:
    spec.gamma, spec.beta = np.asarray(params["scale"]), np.asarray(params["bias"])


def _linear(spec: common_spec.LinearSpec, *params: Any) -> None:
    """Several layers with the same input become one with their outputs side by side."""
    spec.weight = np.concatenate([np.asarray(each["kernel"]).T for each in params])
    if "bias" in params[0]:
        spec.bias = np.concatenate([np.asarray(each["bias"]) for each in params])
