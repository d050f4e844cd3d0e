"""The command import: a network that others have trained -> a workdir, from which everything else goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lingua_flax.host.errors import UserError
from lingua_flax.host.files import new_folder
from lingua_flax.options.command_line import ANY_VALUE, Command, Flag, Given, Positional, required_workdir
from lingua_flax.options.schema import MAX_PLACEHOLDERS, PositiveFloat
from lingua_flax.runs.workdir import Workdir

log = logging.getLogger(__name__)


class ImportCommand(Command):
    """Makes a workdir of a MarianMT network of transformers, such as those of OPUS-MT."""

    folder: Positional
    """Folder with config.json, vocab.json, source.spm, target.spm and model.safetensors or pytorch_model.bin; or, with
    the extra hub, the name of one on the Hugging Face hub, such as Helsinki-NLP/opus-mt-en-de."""
    workdir: Path
    """Folder to write; it must not exist yet."""
    source_language: str | None = None
    """Code of the language to translate from; by default what tokenizer_config.json says."""
    target_language: str | None = None
    """Code of the language to translate into; of a network with several, as in >>fra<<, the one that is the default."""
    position_base: PositiveFloat | None = None
    """Base of the positions, instead of 10000, with which transformers computes: 10000^(D / (D - 2)), such as 10368 for
    a width D of 512, for those that Marian itself trained with."""
    placeholders: Annotated[int, Field(ge=0, le=MAX_PLACEHOLDERS)] = 0
    """Number of new pieces, as tokenizer.placeholders, which the network learns to use when it is fine-tuned."""
    plain_punctuation: Flag = False
    """Read 36 marks, such as “ 。 … and full-width digits, as the plain ones by which OPUS-MT replaced them in the text
    that it trained on. Transformers does not, so ids of lines with such marks differ from its own."""
    license: str | None = None
    """Licence of the network, to be recorded; by default what its README.md says."""
    verify: Annotated[Path | None, ANY_VALUE] = None
    """Compare ids and logits with those of transformers, if it is installed: on lines of this text file, or without a
    file on sequences of random pieces."""

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        required_workdir(given)
        return {}

    def check(self, given: Given) -> None:
        if len(self.folder) != 1:
            raise UserError("import takes one folder, or one name on the hub")
        if self.workdir.exists() or self.workdir.is_symlink():
            raise UserError(f"--workdir {self.workdir} exists already; delete it or choose another name")
        Workdir(self.workdir).check_creatable()


def import_(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = ImportCommand.read(argv)
    from lingua_flax.data.text_files import read_lines
    from lingua_flax.devices.platform import initialize_devices
    from lingua_flax.importing.hub import found_folder
    from lingua_flax.importing.marian_folder import Wishes, read_folder
    from lingua_flax.importing.verification import MAX_LINES, verify
    from lingua_flax.runs.new_workdir import new_metadata, write_network

    initialize_devices("cpu")
    file = options.verify if options.verify != Path() else None
    lines = list(islice(read_lines(file), MAX_LINES)) if file else None
    folder, name = found_folder(options.folder[0])
    chosen = options.model_dump(include={*Wishes._fields} - {"name"})
    imported = read_folder(folder, Wishes(name, **chosen))
    options.workdir.absolute().parent.mkdir(parents=True, exist_ok=True)
    with new_folder(options.workdir) as new:
        write_network(new, imported.files, imported.params, new_metadata(imported.config, imported.tokenizers))
        if options.verify is not None:
            verify(folder, new, lines)
    log.info("imported as %s", options.workdir)
