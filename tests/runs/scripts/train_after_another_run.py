"""Trains; another run, the first argument, finishes in the same workdir before that is locked."""

import shutil
import sys
from pathlib import Path

from lingua_flax.commands.train import train
from lingua_flax.runs.workdir import Workdir

create = Workdir.create


def create_after_another_run(workdir: Workdir) -> None:
    shutil.copytree(Path(sys.argv[1]), workdir.path)
    create(workdir)


if __name__ == "__main__":
    Workdir.create = create_after_another_run
    train(sys.argv[2:])
