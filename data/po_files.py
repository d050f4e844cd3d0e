"""PO files, the catalogs of messages of gettext."""

import polib

from lingua_flax.host.errors import UserError


def parse_po(text: str, name: str) -> polib.POFile:
    """Returns the catalog in a text, whose last line ends; raises UserError, with its name, if it is not a PO file."""
    try:  # with a line break at its end, polib cannot take the text for the name of a file
        return polib.pofile(text or "\n")
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{name}: not a PO file ({error})") from error
