"""A program of the user's: trains from Python, stopped in every way; arguments: config, folder."""

import json
import logging
import os
import signal
import sys
import threading
import tomllib
from pathlib import Path

import jax.numpy as jnp

import lingua_flax

config, workdir = Path(sys.argv[1]), Path(sys.argv[2], "w")
assert jnp.ones(3).sum() == 3.0
logging.basicConfig(level=logging.CRITICAL)
lines: list[dict] = []
seen: dict[str, object] = {}


class StopError(Exception):
    pass


def stop(number: int, _=None) -> None:
    raise StopError(number)


def train_until(step: int, action, config, workdir) -> None:
    """Trains until an action that stops it after a step; notes what is raised then."""

    def on_metrics(line):
        lines.append(line)
        if line["step"] == step and "loss" in line:
            action()

    try:
        lingua_flax.train(config, workdir, on_metrics)
    except StopError as error:
        seen[str(step)] = repr(error)


def train_in_thread() -> None:
    """Trains with the tables of a config, with a path relative to the working directory."""
    os.chdir(config.parent)
    tables = tomllib.loads(config.read_text(encoding="utf-8"))
    tables["data"]["train_source"] = "train.en"
    results.append(lingua_flax.train(tables, workdir, lines.append))


signal.signal(signal.SIGTERM, stop)
train_until(30, lambda: stop(0), str(config), workdir)
seen["saved"] = sorted(path.name for path in (workdir / "checkpoints").iterdir())
train_until(110, lambda: os.kill(os.getpid(), signal.SIGTERM), None, workdir)
assert signal.getsignal(signal.SIGTERM) is stop
assert not (workdir / "training.lock").exists()
results: list = []
thread = threading.Thread(target=train_in_thread)
thread.start()
thread.join()
told = len(lines)
assert lingua_flax.train(None, workdir, lines.append) == results[0]
assert len(lines) == told
seen["result"] = results[0]._asdict()
seen["lines"] = lines
Path(sys.argv[2], "seen.json").write_text(json.dumps(seen), encoding="utf-8")
