"""What a document is for those who translate it, whatever its format."""

import dataclasses
from collections.abc import Callable

from lingua_flax.translation.inline_tags import Translations


@dataclasses.dataclass(frozen=True)
class Document:
    """What is in a file to translate."""

    texts: list[str]
    needs_links: list[bool]  # whether each text has elements within it, which are put around words of its translation
    translated: Callable[[Translations], bytes]  # returns the file, with translations in place of the texts; once
