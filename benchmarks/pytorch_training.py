"""The PyTorch baseline for training speed: torch.nn.Transformer with the sizes of a config of this project.

It trains on padded sentences, sorted by length. benchmarks/pytorch_comparison.py runs it, and writes its tokens.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from pytorch_model import Translator, batch_loss
from torch import nn

from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config
from lingua_flax.options.special_ids import PAD_ID
from lingua_flax.training.optimizer import num_warmup_steps

POOL = 100  # batches; pairs are sorted by length within a pool of about this many


def batches(tokens: Path, positions: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields endless batches of pairs of similar length, in random order.

    Each batch has as many pairs as fit into `positions` padded positions on each side. Pairs are sorted by length
    within pools of about POOL batches.

    Args:
      tokens: the file written by benchmarks/pytorch_comparison.py.
    """
    with np.load(tokens) as arrays:
        source, target = (np.split(arrays[side], arrays[f"{side}_ends"][:-1]) for side in ("source", "target"))
    lengths = np.array([(len(s), len(t)) for s, t in zip(source, target, strict=True)])
    pool = max(1, POOL * positions // int(lengths.mean()))
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(source))
        for start in range(0, len(order), pool):
            members = order[start : start + pool]
            members = members[np.lexsort((lengths[members, 0], lengths[members, 1]))]
            groups, first = [], 0
            for last in range(1, len(members) + 1):
                if last == len(members) or lengths[members[first : last + 1]].max() * (last + 1 - first) > positions:
                    groups.append(members[first:last])
                    first = last
            for index in random.permutation(len(groups)):
                rows = groups[index]
                yield padded([source[i] for i in rows]), padded([target[i] for i in rows])


def padded(sentences: list[np.ndarray]) -> np.ndarray:
    """Returns the sentences as an array [B, length of the longest], padded with PAD_ID."""
    array = np.full((len(sentences), max(map(len, sentences))), PAD_ID, np.int64)
    for row, ids in zip(array, sentences, strict=True):
        row[: len(ids)] = ids
    return array


def train(config: Config, options: argparse.Namespace) -> dict[str, float]:
    """Trains on the CPU for `options.steps` steps and returns measurements.

    Speeds and shares of tokens leave out the first `options.warm_up` steps.
    """
    torch.manual_seed(config.training.seed)
    model = Translator(config.model, options.vocab_size)
    o = config.optimizer
    optimizer = torch.optim.Adam(model.parameters(), lr=o.peak_lr, betas=(o.beta1, o.beta2), eps=o.epsilon, fused=True)
    warmup = max(1, num_warmup_steps(o, options.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    seconds = tokens = 0.0
    token_shares: list[tuple[float, float]] = []
    feed = batches(options.tokens, config.training.tokens_per_batch, config.training.seed)
    for number, (source, target) in zip(range(options.steps), feed, strict=False):
        step_started = time.perf_counter()
        loss = batch_loss(model, torch.from_numpy(source), torch.from_numpy(target), config.training.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        if o.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
        optimizer.step()
        schedule.step()
        loss.item()  # waits, as one who logs the loss does
        if number >= options.warm_up:
            seconds += time.perf_counter() - step_started
            tokens += np.count_nonzero(target)
            token_shares.append((np.count_nonzero(source) / source.size, np.count_nonzero(target) / target.size))
    return {
        "tokens_per_second": tokens / seconds,
        "step_seconds": seconds / len(token_shares),
        "real": float(np.mean(token_shares)),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Prints the measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True, help="number of first steps that are not measured")
    options = parser.parse_args()
    print(json.dumps(train(read_config(options.config), options)))


if __name__ == "__main__":
    main()
