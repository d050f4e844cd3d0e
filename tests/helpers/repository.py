"""Copies of the repository."""

import shutil
import subprocess
from pathlib import Path

from tests.command_server import ROOT


def copy_repository(folder: Path, *, links: bool = True) -> Path:
    """Copies the files that git has or would add; with links as in a clone, or without them, as in a ZIP file."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).rstrip("\0").split("\0"):
        file, copied = ROOT / name, folder / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and (links or not file.is_symlink()):
            shutil.copy(file, copied, follow_symlinks=False)
    return folder
