"""What happens to a folder on Google Drive when the machine that writes to it is lost."""

import contextlib
import random
import shutil
from pathlib import Path


def upload(folder: Path, uploaded: Path) -> None:
    """Makes one folder the same as another, in which a process is writing."""
    shutil.rmtree(uploaded, ignore_errors=True)
    for path in folder.rglob("*"):
        copy = uploaded / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # it has just been renamed
            shutil.copy2(path, copy)


def lose_what_is_new(folder: Path, uploaded: Path, draw: random.Random) -> None:
    """Replaces files that have changed since they were uploaded, each with a probability of a half, by what was."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        before = uploaded / path.relative_to(folder)
        if before.exists() and before.stat().st_mtime == path.stat().st_mtime:
            continue
        if draw.random() < 0.5:
            path.unlink()
            if before.exists():
                shutil.copy2(before, path)
