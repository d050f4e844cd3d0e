"""What is in a folder."""

from pathlib import Path


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Returns every path below a folder except for locks, with the bytes of files."""
    paths = [path for path in folder.rglob("*") if path.suffix != ".lock"]
    return {path: path.read_bytes() if path.is_file() else None for path in paths}
