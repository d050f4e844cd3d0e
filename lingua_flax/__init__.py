"""A small sequence-to-sequence translator in JAX and Flax.

The names below are the public interface. Those that need JAX are imported when they are first used, so that importing
the package takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lingua_flax.host.errors import UserError
from lingua_flax.host.version import VERSION as __version__

if TYPE_CHECKING:
    from lingua_flax.translation.translator import Hypothesis, Translation, Translator

__all__ = ["Hypothesis", "Translation", "Translator", "UserError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.translation.translator"), name)
