"""The PyTorch loop for a GPU; benchmarks/pytorch_training.py --device gpu runs it.

Packed rows of a fixed shape, float32 parameters, bfloat16 autocast, torch.compile, fused Adam, and a CUDA graph of the
whole step (forward, backward, clipping and Adam), so that the host only copies batches, one ahead of the device. The
device never waits for the host to read a result.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from pytorch_model import Translator
from pytorch_packed_model import packed_loss
from torch import nn

from lingua_flax.data.batch import Batch, gather
from lingua_flax.data.packing import assign_rows, lay_out_rows
from lingua_flax.options.schema import Config
from lingua_flax.options.special_ids import PAD_ID

EAGER_STEPS = 3  # before the CUDA graph is recorded: they compile, and allocate the optimizer's state
STEPS_IN_FLIGHT = 3  # queued on the device, of which the host waits for the oldest

Step = Callable[[torch.Tensor], torch.Tensor]  # from a batch [B, 6, L] on the device to its loss


def packed_rows(tokens: Path, row_length: int) -> torch.Tensor:
    """Packs all pairs into rows, each pair once.

    Args:
      tokens: the file written by benchmarks/pytorch_comparison.py.

    Returns:
      The fields of pytorch_packed_model.PackedRows, [rows, 6, row_length] int32.
    """
    with np.load(tokens) as arrays:
        ids = arrays["source"], arrays["target"]
        ends = np.stack([arrays["source_ends"], arrays["target_ends"]])
    lengths = np.diff(ends, prepend=0)
    rows = assign_rows(lengths[0], lengths[1], row_length)
    window = lay_out_rows(rows, ends - lengths, lengths, np.zeros_like(rows))
    batch, every_row = Batch.zeros(len(window), row_length), np.arange(len(window))
    gather(batch, every_row, window, every_row, [ids])
    source = (batch.source, batch.source_segments, batch.source_positions)
    target = (batch.target_out, batch.target_segments, batch.target_positions)
    return torch.from_numpy(np.stack((*source, *target), axis=1))


def shuffled_rows(rows: int, rows_per_batch: int, seed: int) -> Iterator[torch.Tensor]:
    """Yields the row numbers of endless batches, [rows_per_batch] int64; each epoch has its own order."""
    random = np.random.default_rng(seed)
    numbers = np.empty(0, np.int64)
    while True:
        while len(numbers) < rows_per_batch:
            numbers = np.concatenate([numbers, random.permutation(rows)])
        yield torch.from_numpy(numbers[:rows_per_batch])
        numbers = numbers[rows_per_batch:]


def batches_on_device(
    rows: torch.Tensor, numbers: Iterator[torch.Tensor], device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields batches on the device, [B, 6, L], with their row numbers [B] on the host.

    A GPU receives the next batch from pinned memory, on a stream of its own, while it computes. The host waits for old
    steps only, so that the device always has work and the same few buffers are used again and again.
    """
    if device.type != "cuda":
        yield from ((rows[batch], batch) for batch in numbers)
        return
    copies = torch.cuda.Stream(device)

    def start_copy(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(copies):
            return rows[batch].pin_memory().to(device, non_blocking=True), batch

    in_flight: deque[torch.cuda.Event] = deque()
    ahead = start_copy(next(numbers))
    for following in numbers:
        computation = torch.cuda.current_stream(device)
        computation.wait_stream(copies)
        current, ahead = ahead, start_copy(following)
        current[0].record_stream(computation)
        yield current
        in_flight.append(computation.record_event())
        if len(in_flight) > STEPS_IN_FLIGHT:
            in_flight.popleft().synchronize()


def make_step(model: Translator, config: Config, device: torch.device) -> tuple[Step, torch.Tensor]:
    """Returns a training step, and its learning rate as a scalar on the device, which the caller sets."""
    o = config.optimizer
    how = {"fused": True, "capturable": device.type == "cuda"}
    rate = torch.zeros((), device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(o.beta1, o.beta2), eps=o.epsilon, **how)
    loss_function = torch.compile(packed_loss, dynamic=False, fullgraph=True)  # the shapes of a run never change

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_function(model, batch, config.training.label_smoothing)
        loss.backward()
        if o.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
        optimizer.step()
        return loss.detach()

    return step, optimizer.param_groups[0]["lr"]


def recorded(step: Step, batch: torch.Tensor) -> Step:
    """Returns the step as a CUDA graph, recorded on the current stream, which must not be the default one.

    The returned step overwrites its previous result. Recording does not take a step.
    """
    inputs = batch.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        loss = step(inputs)

    def replay(batch: torch.Tensor) -> torch.Tensor:
        inputs.copy_(batch)
        graph.replay()
        return loss

    return replay


def train(config: Config, options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Trains for `options.steps` steps and returns measurements, like `train` in pytorch_training.py.

    Args:
      device: a GPU; on a CPU, everything but streams and CUDA graphs can be tested.
    """
    torch.manual_seed(config.training.seed)
    torch.set_float32_matmul_precision("high")  # TF32 for the products that autocast leaves in float32
    model = Translator(config.model, options.vocab_size).to(device)
    step, learning_rate = make_step(model, config, device)
    rows = packed_rows(options.tokens, config.data.row_length)
    numbers = shuffled_rows(len(rows), config.rows_per_batch, config.training.seed)
    batches = batches_on_device(rows, numbers, device)
    warmup = max(1, config.optimizer.num_warmup_steps(options.steps))
    rates = [config.optimizer.peak_lr * min(1.0, (number + 1) / warmup) for number in range(options.steps)]
    synchronize(device)
    is_gpu = device.type == "cuda"
    with torch.cuda.stream(torch.cuda.Stream(device)) if is_gpu else contextlib.nullcontext():  # graphs need a stream
        measurements, used = take_steps(step, learning_rate, rates, batches, options, device)
    seconds = measurements["step_seconds"] * (options.steps - options.warm_up)
    is_token = rows[used][:, [0, 3]] != PAD_ID  # [rows, 2, L], source and target
    return measurements | {
        "tokens_per_second": is_token[:, 1].sum().item() / seconds,
        "source_real": is_token[:, 0].float().mean().item(),
        "target_real": is_token[:, 1].float().mean().item(),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_memory": torch.cuda.max_memory_reserved(device) if is_gpu else 0,
    }


def take_steps(
    step: Step,
    learning_rate: torch.Tensor,
    rates: Sequence[float],
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    options: argparse.Namespace,
    device: torch.device,
) -> tuple[dict[str, float], torch.Tensor]:
    """Takes a step for each of the learning rates.

    Returns:
      The times until the first step and per measured step, with the losses of the first and the last step; and the row
      numbers of the measured steps, those after the first `options.warm_up`.
    """
    measured = []
    for number, (rate, (batch, row_numbers)) in enumerate(zip(rates, batches, strict=False)):
        if number == options.warm_up:
            synchronize(device)
            started = time.perf_counter()
        learning_rate.fill_(rate)
        loss = step(batch)
        if number == 0:
            first_loss, first_step_seconds = loss.item(), time.time() - options.started
        if number == EAGER_STEPS - 1 and device.type == "cuda":
            step = recorded(step, batch)
        if number >= options.warm_up:
            measured.append(row_numbers)
    synchronize(device)
    step_seconds = (time.perf_counter() - started) / len(measured)
    measurements = {"step_seconds": step_seconds, "first_step_seconds": first_step_seconds}
    return measurements | {"first_loss": first_loss, "loss": loss.item()}, torch.cat(measured)


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
