"""A small archive with the layout of ted_hrlr_translate."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.toy import NETWORK

TED = "http://www.phontron.com/data/qi18naacl-dataset.tar.gz"
DIGITS = {
    "pt": ["zero", "um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove"],
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
}
TED_SPLITS = {"train": range(100, 400), "dev": range(400, 417), "test": range(500, 523)}


def spoken(code: str, numbers: range) -> list[str]:
    """Returns each number spelled digit by digit."""
    return [" ".join(DIGITS[code][int(digit)] for digit in str(number)) for number in numbers]


def pack(path: Path, files: Mapping[str, list[str]]) -> Path:
    """Writes a .tar.gz or .tgz of text files from their lines; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, lines in files.items():
            content = "".join(f"{line}\n" for line in lines).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def pack_ted(path: Path) -> Path:
    """Writes an archive with the three splits of pt_to_en, laid out as in the real one; returns its path."""
    names = {(code, split): f"datasets/pt_to_en/{code}.{split}" for code in DIGITS for split in TED_SPLITS}
    files = {name: spoken(code, TED_SPLITS[split]) for (code, split), name in names.items()}
    files["datasets/pt_to_en/pt.train"].append(" ")  # a pair with an empty side
    files["datasets/pt_to_en/en.train"].append("nothing")
    return pack(path, files)


CONFIG = (
    """
[data]
name = "ted_hrlr_translate/pt_to_en"
source_language = "pt"
target_language = "en"
cache_directory = "{cache}"
row_length = 32
"""
    + NETWORK
    + """
[training]
num_steps = 5
tokens_per_batch = 256
eval_every = 0
"""
)
