"""Folders of the Hugging Face hub, downloaded by its own library."""

import re
from importlib.util import find_spec
from pathlib import Path

from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command
from lingua_flax.importing.transformers_files import WEIGHTS

NAME = re.compile(r"[\w.-]+/[\w.-]+")
FILES = ("*.json", "*.spm", "README.md")  # and the weights


def found_folder(folder: Path) -> tuple[Path, str]:
    """Returns a folder on this machine, downloaded if there is none of that name, and the name of its network.

    Raises UserError if there is none on the hub either, or its library is not installed.
    """
    if folder.is_dir():
        return folder, folder.absolute().name
    name = folder.as_posix()
    if not NAME.fullmatch(name):
        raise UserError(f"{folder}: there is no such folder")
    if not find_spec("huggingface_hub"):
        hub = f"to download it from the Hugging Face hub, {install_command('hub')}"
        raise UserError(f"{folder}: there is no such folder; {hub}")
    import huggingface_hub

    try:
        listed = huggingface_hub.list_repo_files(name)
        weights = next(([each] for each in WEIGHTS if each in listed), [])
        path = huggingface_hub.snapshot_download(name, allow_patterns=[*FILES, *weights])
    except Exception as error:  # of many types, of the connection as well
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{name}: not downloaded from the Hugging Face hub: {reason}") from error
    return Path(path), name
