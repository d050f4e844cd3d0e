"""Stands in for google.colab.drive: DRIVE_DECLINED makes the user decline; a Drive that is there already is mounted."""

import os
from pathlib import Path


class MessageError(Exception):
    """What google.colab raises if the user declines; it is not exported there."""


def mount(mountpoint: str) -> None:
    if "DRIVE_DECLINED" in os.environ:
        raise MessageError("Error: credential propagation was unsuccessful")
    Path(mountpoint, "MyDrive").mkdir(parents=True, exist_ok=True)
    print("Mounted at", mountpoint)
