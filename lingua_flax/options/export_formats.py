"""The formats of exports: what is known of each before a network is trained, and before JAX or a package is imported.

How a format is written, and what translates with it, stands in its module in the package export.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import ModelConfig, Quantization

ExportFormat = Literal["ctranslate2", "safetensors", "transformers", "html", "workdir"]
Values = dict[str, tuple[Any, ...] | None]  # by the fields of [model], those that a format knows; None: all

SIZES = ("num_encoder_layers", "num_decoder_layers", "embed_dim", "num_heads", "mlp_dim", "max_length")
ONLY_IN_TRAINING = ("dropout_rate", "attention")
KNOWN_TO_ALL: Values = {
    **dict.fromkeys((*SIZES, *ONLY_IN_TRAINING)),
    "activation": ("relu", "gelu", "silu"),
    "norm": ("pre", "post"),
    "attention_bias": (False, True),
    "output_bias": (False, True),
    "norm_epsilon": None,
}


def _known_to_our_programs(_: ModelConfig) -> Values:
    """Returns what export/numpy_translator.py and export/browser/network.js have code for."""
    return KNOWN_TO_ALL | {
        "positions": ("sinusoidal", "learned", "rotary"),
        "position_base": None,
        "rotary_cross_attention": (False, True),
        "qk_norm": ("self", False, True),
        "tied_embeddings": ("all", "decoder", "none"),
    }


def _known_to_ctranslate2(model: ModelConfig) -> Values:
    return KNOWN_TO_ALL | {
        "positions": ("sinusoidal", "learned", "rotary"),
        "position_base": None,
        "rotary_cross_attention": (False,) if model.positions == "rotary" else (True,),
        # The queries of cross-attention are normalized over all heads together.
        "qk_norm": ("self", False) if model.num_heads > 1 else ("self", False, True),
        "tied_embeddings": ("all", "decoder", "none"),
    }


def _known_to_transformers(_: ModelConfig) -> Values:
    return KNOWN_TO_ALL | {
        "norm_epsilon": (1e-6, 1e-5),  # the second is that of PyTorch, the difference below what can be noticed
        "positions": ("sinusoidal",),
        "position_base": (10000.0,),
        "rotary_cross_attention": (True,),  # without effect
        "qk_norm": (False,),
        "tied_embeddings": ("all",),
    }


class Format(NamedTuple):
    """A format of exports."""

    module: str  # in the package export: its `write` writes, its `translate` runs what was written
    package: str | None  # of the extra export, that it needs
    known: Callable[[ModelConfig], Values] | None  # None: whatever this program has
    quantizations: tuple[Quantization, ...] = ("float32",)  # the default first
    is_file: bool = False  # rather than a folder with a README.md
    is_for_hub: bool = False  # its README.md has metadata, and its tokenizer files of its own


FORMATS: dict[ExportFormat, Format] = {
    "ctranslate2": Format("ctranslate2_model", "ctranslate2", _known_to_ctranslate2, get_args(Quantization)),
    "safetensors": Format("safetensors_model", "safetensors", _known_to_our_programs),
    "transformers": Format("transformers_model", "safetensors", _known_to_transformers, is_for_hub=True),
    "html": Format("html_file", "safetensors", _known_to_our_programs, ("int8", "float32"), is_file=True),
    "workdir": Format("network_workdir", None, None, ("bfloat16", "float32")),
}


def obstacles(name: ExportFormat, model: ModelConfig) -> list[str]:
    """Returns what of a network the format does not know, and the values that it knows instead; nothing if all."""
    known = FORMATS[name].known
    values = known(model) if known else dict.fromkeys(type(model).model_fields)
    return [
        f"model.{field} = {value} (known: {', '.join(map(str, own)) or 'none'})"
        for field, value in model
        if (own := values.get(field, ())) is not None and value not in own
    ]


def check_exportable(name: ExportFormat, model: ModelConfig) -> None:
    """Raises UserError, which names all obstacles, if the format cannot represent a network with this configuration."""
    if given := obstacles(name, model):
        others = ", ".join(other for other in FORMATS if not obstacles(other, model))
        raise UserError(
            f"{name} cannot represent a network with {' and '.join(given)}: train with the values in parentheses; "
            f"{others} and --engine jax can represent this one"
        )


def summary(model: ModelConfig) -> list[str]:
    """Returns lines for a log: the formats, and what stands in the way of the others."""
    missing = {name: given for name in FORMATS if (given := obstacles(name, model))}
    possible = ", ".join(name for name in FORMATS if name not in missing)
    return [f"can be exported to {possible}", *(f"not to {name}: {', '.join(why)}" for name, why in missing.items())]
