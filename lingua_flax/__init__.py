"""A small sequence-to-sequence translator in JAX and Flax.

The names below are the public interface. Those that need JAX are imported when they are first used, so that importing
the package takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.version import VERSION as __version__

if TYPE_CHECKING:
    from lingua_flax.commands.from_python import evaluate, train
    from lingua_flax.options.schema import Config
    from lingua_flax.translation.html_text import translate_html
    from lingua_flax.translation.hypotheses import Hypothesis, Translation
    from lingua_flax.translation.translator import Translator

__all__ = ["Config", "Hypothesis", "RunError", "Translation", "Translator", "UserError"]
__all__ += ["__version__", "evaluate", "train", "translate_html"]

_MODULES = {"Config": "options.schema", "translate_html": "translation.html_text"}
_MODULES |= dict.fromkeys(("evaluate", "train"), "commands.from_python")
_MODULES |= dict.fromkeys(("Hypothesis", "Translation"), "translation.hypotheses")
_MODULES["Translator"] = "translation.translator"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
