"""What the notebooks of the course share: labelled matrices, figures, answers to exercises, and short trainings."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from IPython.display import Image, display

from lingua_flax.data.batch import Batch, pad_rows
from lingua_flax.data.training_batches import TrainingBatches
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import MeshConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID
from lingua_flax.training.preparation import prepare
from lingua_flax.training.programs import Programs
from lingua_flax.translation.decoding import mask_special_tokens
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import group_pieces

ROOT = Path("../..")  # of the repository; notebooks run in their own folder
TRAINED = ROOT / "checkpoints" / "tiny"  # what `make train` trains


def show(matrix: Any, rows: Sequence[object], columns: Sequence[object], digits: int = 4) -> None:
    """Prints a matrix with the names of its rows and columns."""
    texts = [[f"{number + 0.0:.{digits}f}" for number in row] for row in np.asarray(matrix, float)]
    first = max(len(str(row)) for row in rows)
    widths = [
        max(len(text) for text in [str(column), *cells]) + 2
        for column, *cells in zip(columns, *texts, strict=True)
    ]
    print(" " * first + "".join(f"{column!s:>{width}}" for column, width in zip(columns, widths, strict=True)))
    for row, cells in zip(rows, texts, strict=True):
        print(f"{row!s:<{first}}" + "".join(f"{text:>{width}}" for text, width in zip(cells, widths, strict=True)))


def draw(figure: Any) -> None:
    """Shows a figure."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    display(Image(picture.getvalue()))


def check(mine: Any, answer: Any) -> None:
    """Compares an answer to an exercise with the right one; numbers may be rounded to two decimals."""
    if mine is None:
        numbers = [] if isinstance(answer, str) else [f"{number:.4f}".rstrip("0").rstrip(".") for number in np.ravel(answer)]
        print("the answer:", answer if isinstance(answer, str) else ", ".join(numbers))
    elif isinstance(answer, str):
        print("right" if mine == answer else "not yet")
    else:
        right = np.shape(mine) == np.shape(answer) and np.allclose(mine, answer, rtol=0, atol=0.0051)
        print("right" if right else "not yet")


def positions_of(word: str, pieces: Sequence[str]) -> list[int]:
    """Returns the positions of the pieces of a word where it occurs last."""
    return [list(found.positions) for found in group_pieces(pieces) if found.text == word][-1]


def train(
    steps: int, change: Callable[[Batch], Batch] = lambda batch: batch
) -> tuple[Translator, list[float]]:
    """Trains a new network of half the width for a few steps, and returns it with the loss of every step.

    `change` may change each batch. The tokenizer is that of the trained network. There is no dropout, and labels are not smoothed.
    """
    config = read_config(ROOT / "configs" / "tiny.toml")
    model = config.model.model_copy(update={"embed_dim": 64, "mlp_dim": 256, "dropout_rate": 0.0})
    training = config.training.model_copy(update={"num_steps": steps, "label_smoothing": 0.0})
    tokenizer = config.tokenizer.model_copy(update={"model_file": TRAINED / "tokenizer.model"})
    changed = config.model_copy(update={"model": model, "training": training, "tokenizer": tokenizer})
    prepared = prepare(changed, TRAINED / "short")  # a folder that does not exist: nothing is saved
    programs = Programs(prepared, make_mesh(MeshConfig()))
    batches = TrainingBatches(prepared.planner, changed.rows_per_batch, processes=0)
    state, losses = programs.initial_state(), []
    for _ in range(steps):
        state, metrics = programs.train_step(state, programs.placed_rows(change(next(batches).rows)))
        losses.append(float(metrics.loss))
    return programs.translator(state.params), losses


def greedy(translator: Translator, lines: Sequence[str], *, positions: bool = True, limit: int = 32) -> list[str]:
    """Translates lines with whole passes of the network, one per position; without positions, all tokens are at 0."""
    source = pad_rows(translator.tokenizer.encode_source(lines), len(lines), limit)
    read = np.full((len(lines), limit + 1), 0, np.int32)
    read[:, 0] = BOS_ID
    for t in range(limit):
        read[:, t + 1] = _next_tokens(translator.params, source, read[:, :-1], t, positions, translator.graphdef)
    ends = [row.index(EOS_ID) if EOS_ID in row else limit for row in read[:, 1:].tolist()]
    return translator.tokenizer.decode_target([row[1 : end + 1].tolist() for row, end in zip(read, ends, strict=True)])


@functools.partial(jax.jit, static_argnums=(4, 5))
def _next_tokens(params: Any, source: jax.Array, read: jax.Array, t: int, positions: bool, graphdef: Any) -> jax.Array:
    zeros = None if positions else jnp.zeros_like(source)
    # What has not been written yet is read as <s>, not as padding; the causal mask hides it.
    read = jnp.where(jnp.arange(read.shape[1]) <= t, read, BOS_ID)
    logits, _ = nnx.merge(graphdef, params)(source, read, source_positions=zeros, target_positions=zeros)
    return jnp.argmax(mask_special_tokens(logits)[:, t], axis=-1)
