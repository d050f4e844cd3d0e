"""Makes the first batch of a corpus; prints how often its file, the first argument, was opened, and its pairs."""

import sys
from pathlib import Path

from lingua_flax.options.schema import Config
from lingua_flax.training.preparation import prepare

opened = 0


def count(event: str, arguments: tuple) -> None:
    global opened
    opened += event == "open" and arguments[0] == sys.argv[1]


if __name__ == "__main__":  # the processes that plan batches import this
    sys.addaudithook(count)
    data = {"name": "text", "train_source": Path(sys.argv[1]), "cache_directory": Path(sys.argv[2])}
    prepared = prepare(Config(data=data, tokenizer={"vocab_size": 30}), Path(sys.argv[2]) / "workdir")
    next(prepared.batches())
    print(opened, len(prepared.planner.draws))
