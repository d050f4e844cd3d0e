"""Conversion of a network to CTranslate2, a C++ engine for Transformers on CPUs and GPUs."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec, common_spec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

from lingua_flax.export.description import NEVER, Export, filled, tokenizer_names
from lingua_flax.host.errors import UserError
from lingua_flax.model.positions import sinusoidal_positions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import default_max_length
from lingua_flax.translation.translator import Translator

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
}
# CTranslate2 ends a search that has a length penalty after beam_size * patience hypotheses. With its default of 1, 4 to
# 9 of 1,000 lines of the phrasebook scored below greedy search (5 beams), with 2 none, in 1.4 times the time.
PATIENCE = 2
MIN_POSITIONS = 1024  # of sinusoidal tables: CTranslate2 reads up to 1,024 pieces by default, and writes up to 256


def write(export: Export, folder: Path) -> str:
    """Writes the model; raises UserError if CTranslate2 makes its type with PyTorch, and that is not here."""
    translator, quantization = export.translator, export.quantization
    if "bfloat16" in quantization and not find_spec("torch"):
        raise UserError(f"CTranslate2 makes {quantization} with PyTorch: pip install torch, or choose another type")
    spec = _specification(translator)
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(folder))
    pieces = translator.tokenizer.source_pieces(translator.tokenizer.source_tags)
    names, longest = tokenizer_names(translator), translator.max_length - 1  # without the end token
    # CTranslate2 fails where a table ends, and a learned one ends where the network's does.
    beyond = "an error" if translator.config.positions == "learned" else "not refused, but translated badly"
    tags = f"{pieces} + " if pieces else ""
    return filled("ctranslate2", tags=tags, patience=PATIENCE, longest=longest, beyond=beyond, **names)


def _specification(translator: Translator) -> TransformerSpec:
    config, params, tokenizer = translator.config, translator.params, translator.tokenizer
    is_rotary = config.positions == "rotary"
    options = {
        "pre_norm": config.norm == "pre",
        "activation": ACTIVATIONS[config.activation],
        "qk_norm": bool(config.qk_norm),
        "rotary_dim": 0 if is_rotary else None,  # 0: all dimensions
        "rotary_interleave": False,
        "rotary_base": config.position_base,
    }
    spec = TransformerSpec(
        TransformerEncoderSpec(config.num_encoder_layers, config.num_heads, **options),
        TransformerDecoderSpec(config.num_decoder_layers, config.num_heads, **options),
    )
    target_embedding = np.array(params["target_embedding"])
    spec.encoder.embeddings[0].weight = np.array(params.get("source_embedding", target_embedding))
    spec.decoder.embeddings.weight = target_embedding
    spec.decoder.projection.weight = np.array(params.get("output_embedding", target_embedding))
    spec.decoder.projection.bias = np.array(params.get("output_bias", np.zeros(len(target_embedding))), np.float32)
    spec.decoder.projection.bias[[PAD_ID, BOS_ID, UNK_ID]] = NEVER
    if is_rotary:
        del spec.encoder.position_encodings
    else:
        length = max(config.max_length, MIN_POSITIONS)
        sinusoidal = sinusoidal_positions(length, config.embed_dim, config.position_base)
        table = np.array(params.get("position_embedding", sinusoidal))
        spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = table
    for stack, name in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        for number, layer in enumerate(stack.layer):
            _copy_layer(layer, params[name][number])
        if config.norm == "pre":
            _copy_norm(stack.layer_norm, params[f"{name}_norm"])
    spec.register_source_vocabulary(tokenizer.source_pieces(range(tokenizer.source_vocab_size)))
    pieces = tokenizer.target_pieces(range(tokenizer.target_vocab_size))
    spec.register_target_vocabulary(pieces)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.bos_token = spec.config.decoder_start_token = pieces[BOS_ID]
    spec.config.eos_token, spec.config.unk_token = pieces[EOS_ID], pieces[UNK_ID]
    return spec


def _copy_layer(spec: Any, params: Any) -> None:
    _copy_attention(spec.self_attention, params, "self_attention", "query key value", "output")
    if "cross_attention" in params:
        _copy_attention(spec.attention, params, "cross_attention", "query", "key value", "output")
    _copy_norm(spec.ffn.layer_norm, params["feed_forward_residual"]["norm"])
    _copy_linear(spec.ffn.linear_0, params["feed_forward"]["up"])
    _copy_linear(spec.ffn.linear_1, params["feed_forward"]["down"])


def _copy_attention(spec: Any, params: Any, name: str, *fused: str) -> None:
    """Copies one of the attentions of a layer, whose linear layers in CTranslate2 fuse some of ours."""
    attention = params[name]
    _copy_norm(spec.layer_norm, params[f"{name}_residual"]["norm"])
    for linear, parts in zip(spec.linear, fused, strict=True):
        _copy_linear(linear, *(attention[part] for part in parts.split()))
    if "query_norm" in attention:
        spec.q_norm.gamma = np.array(attention["query_norm"]["scale"])
        spec.k_norm.gamma = np.array(attention["key_norm"]["scale"])
    elif hasattr(spec, "q_norm"):  # qk_norm = "self"
        del spec.q_norm, spec.k_norm


def _copy_norm(spec: common_spec.LayerNormSpec, params: Any) -> None:
    spec.gamma, spec.beta = np.array(params["scale"]), np.array(params["bias"])


def _copy_linear(spec: common_spec.LinearSpec, *params: Any) -> None:
    """Copies a linear layer, or fuses several that have the same input by concatenating their outputs."""
    spec.weight = np.concatenate([np.array(layer["kernel"]).T for layer in params])
    if "bias" in params[0]:
        spec.bias = np.concatenate([np.array(layer["bias"]) for layer in params])


def translate(export: Export, folder: Path, lines: Sequence[str], beam_size: int) -> Iterator[tuple[list[int], float]]:
    """Yields what CTranslate2 makes of lines."""
    engine = ctranslate2.Translator(str(folder), compute_type="default")
    tokenizer = export.translator.tokenizer
    for source in tokenizer.encode_source(lines):
        (result,) = engine.translate_batch(
            [tokenizer.source_pieces(source)],
            beam_size=beam_size,
            length_penalty=0,
            return_scores=True,
            min_decoding_length=0,  # by default, the end token is ruled out at the first position
            max_decoding_length=min(default_max_length(len(source)), export.translator.max_length),
        )
        yield [tokenizer.target.piece_to_id(piece) for piece in result.hypotheses[0]], result.scores[0]
