"""Stands in for google.colab.drive: mounts an empty Drive."""

from pathlib import Path


def mount(mountpoint: str) -> None:
    Path(mountpoint, "MyDrive").mkdir(parents=True)
    print("Mounted at", mountpoint)
