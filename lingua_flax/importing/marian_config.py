"""What config.json and generation_config.json of a MarianMT network say, in our options; refuses what these lack."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lingua_flax.host.errors import UserError
from lingua_flax.importing.transformers_files import read_json
from lingua_flax.options.messages import validated
from lingua_flax.options.schema import DecodingOptions, ModelConfig

ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu_new": "gelu"}
SIZES = {
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "embed_dim": "d_model",
    "num_heads": "encoder_attention_heads",
    "mlp_dim": "encoder_ffn_dim",
    "max_length": "max_position_embeddings",
}
NORM_EPSILON = 1e-5  # of PyTorch, which transformers does not change
# Fields with the only value that can be computed here; with None, also what a folder without the field means.
REQUIRED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("marian",),
    "activation_function": tuple(ACTIVATIONS),
    "scale_embedding": (True,),
    "static_position_embeddings": (True, None),
    "normalize_before": (False, None),
    "normalize_embedding": (False, None),
    "add_final_layer_norm": (False, None),
    "add_bias_logits": (False, None),
    "share_encoder_decoder_embeddings": (True, None),
    "tie_word_embeddings": (True, None),
}
SAME = (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim"))
# The same of the search.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "do_sample": (False, None),
    "num_beam_groups": (1, None),
    "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "repetition_penalty": (1.0, None),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "forced_bos_token_id": (None,),
    "suppress_tokens": ([], None),
    "begin_suppress_tokens": ([], None),
    "exponential_decay_length_penalty": (None,),
}


class MarianConfig(NamedTuple):
    """The options of a network, those of its search, and numbers of its vocabulary."""

    model: ModelConfig
    decoding: DecodingOptions
    vocab_size: int
    special: dict[str, int]  # pad, eos and start
    banned: list[int]


def read_marian_config(folder: Path, position_base: float | None) -> MarianConfig:
    """Reads both files; raises UserError, which names the field, for what cannot be expressed or is missing.

    `position_base` replaces that of the positions which transformers computes.
    """
    path = folder / "config.json"
    config = read_json(path)
    for field, known in REQUIRED.items():
        _check(path, config, field, known)
    for field, other in SAME:
        _check(path, config, field, (config.get(other),))
    _check(path, config, "decoder_vocab_size", (config.get("vocab_size"), None))
    file = folder / "generation_config.json"
    search = {name: value for name, value in config.items() if name in _SEARCH} | read_json(file, required=False)
    for field, known in NEUTRAL.items():
        _check(file if file.exists() else path, search, field, known)
    numbers = config | search
    special = {
        name: _number(path, numbers, f"{field}_token_id")
        for name, field in (("pad", "pad"), ("eos", "eos"), ("start", "decoder_start"))
    }
    _check(file, search, "forced_eos_token_id", (special["eos"], None))
    return MarianConfig(
        model=validated(
            ModelConfig,
            {name: _number(path, config, field) for name, field in SIZES.items()}
            | {"activation": ACTIVATIONS[config["activation_function"]], "dropout_rate": config.get("dropout", 0.1)}
            | {"attention_bias": True, "output_bias": True, "norm": "post", "norm_epsilon": NORM_EPSILON}
            | ({"position_base": position_base} if position_base else {}),
        ),
        decoding=validated(
            DecodingOptions,
            {"beam_size": search.get("num_beams") or 1, "length_penalty_form": "length"}
            | {"length_penalty": 1.0 if search.get("length_penalty") is None else search["length_penalty"]},
        ),
        vocab_size=_number(path, config, "vocab_size"),
        special=special,
        banned=_banned(file, search),
    )


_SEARCH = {*NEUTRAL, "num_beams", "length_penalty", "bad_words_ids", "forced_eos_token_id"}


def _check(path: Path, content: Mapping[str, Any], field: str, known: tuple[Any, ...]) -> None:
    if (value := content.get(field)) not in known:
        possible = " or ".join(str(each) for each in known if each is not None) or "nothing"
        raise UserError(f"{path}: {field} is {value}, but a network here can only have {possible}")


def _number(path: Path, content: Mapping[str, Any], field: str) -> int:
    if type(value := content.get(field)) is not int:
        raise UserError(f"{path}: {field} is {value}, but must be a whole number")
    return value


def _banned(path: Path, search: Mapping[str, Any]) -> list[int]:
    words = search.get("bad_words_ids") or []
    if several := next((word for word in words if len(word) != 1), None):
        raise UserError(f"{path}: bad_words_ids has {several}, but here only single pieces can be banned")
    return [word[0] for word in words]
