"""Which formats a network can be exported to, and which options stand in the way: known before it is trained."""

from typing import Literal, get_args

from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import ModelConfig

ExportFormat = Literal["ctranslate2", "safetensors", "transformers", "html", "workdir"]


def obstacles(export_format: ExportFormat, config: ModelConfig) -> list[str]:
    """Returns what of a network the format cannot represent, and how to train one that it can; nothing if all."""
    rotates = config.positions == "rotary" and config.rotary_cross_attention
    # CTranslate2 normalizes the queries of cross-attention over all heads together.
    normalizes = config.qk_norm is True and config.num_heads > 1
    has_other_base = config.positions == "sinusoidal" and config.position_base != 10000.0
    reasons = {
        "ctranslate2": {
            "rotates the queries and keys of cross-attention (--model.rotary-cross-attention False)": rotates,
            "normalizes queries and keys of each head of cross-attention (--model.qk-norm self)": normalizes,
        },
        "transformers": {
            f"has {config.positions} positions (--model.positions sinusoidal)": config.positions != "sinusoidal",
            "has positions of another base (--model.position-base 10000)": has_other_base,
            "normalizes queries and keys (--model.qk-norm False)": config.qk_norm is not False,
            "has several matrices of embeddings (--model.tied-embeddings all)": config.tied_embeddings != "all",
        },
    }.get(export_format, {})
    return [reason for reason, holds in reasons.items() if holds]


def check_exportable(export_format: ExportFormat, config: ModelConfig) -> None:
    """Raises UserError, which names all obstacles, if the format cannot represent a network with this configuration."""
    if given := obstacles(export_format, config):
        raise UserError(
            f"{export_format} cannot represent a network that {' and '.join(given)}: train with the options in "
            "parentheses; safetensors, html and --engine jax can represent this one"
        )


def summary(config: ModelConfig) -> list[str]:
    """Returns lines for a log: the formats, and what stands in the way of the others."""
    missing = {name: given for name in get_args(ExportFormat) if (given := obstacles(name, config))}
    possible = ", ".join(name for name in get_args(ExportFormat) if name not in missing)
    return [
        f"can be exported to {possible}",
        *(f"not to {name}, since it {' and '.join(given)}" for name, given in missing.items()),
    ]
