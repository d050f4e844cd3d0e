"""What the notebooks of the course share: labelled matrices, figures, answers to exercises, and short trainings."""

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
from lingua_flax.training.learner import Learner
from lingua_flax.training.preparation import prepare
from lingua_flax.translation.decoding import mask_special_tokens
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import group_pieces

ROOT = Path("../..")  # of the repository: a notebook runs in its own folder
TRAINED = ROOT / "checkpoints" / "tiny"  # the run of `make train`


def show(matrix: Any, rows: Sequence[object], columns: Sequence[object], digits: int = 4) -> None:
    """Prints a matrix with the names of its rows and columns."""
    numbers = [[f"{number + 0.0:.{digits}f}" for number in row] for row in np.asarray(matrix, float)]
    table = [["", *map(str, columns)], *([str(row), *own] for row, own in zip(rows, numbers, strict=True))]
    first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    for name, *cells in table:
        print(name.ljust(first) + "".join(cell.rjust(width + 2) for cell, width in zip(cells, widths, strict=True)))


def draw(figure: Any) -> None:
    """Shows a figure."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    display(Image(picture.getvalue()))


class Folded(str):
    """An answer that one sees when one unfolds it, in Jupyter, in Colab and on the site."""

    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        return f"<details><summary>the answer</summary>{self}</details>"


def check(mine: Any, answer: Any) -> None:
    """Compares an answer to an exercise, text or numbers, with the right one; two decimals are enough."""
    is_text = isinstance(answer, str)
    if mine is None:
        numbers = [] if is_text else [f"{number:.4f}".rstrip("0").rstrip(".") for number in np.ravel(answer)]
        display(Folded(answer if is_text else ", ".join(numbers)))
    else:
        is_right = (
            mine == answer if is_text else np.shape(mine) == np.shape(answer) and np.allclose(mine, answer, 0, 0.0051)
        )
        print("right" if is_right else "not yet")


def positions_of(word: str, pieces: Sequence[str]) -> list[int]:
    """Returns the positions of the pieces of a word where it occurs last."""
    return [list(found.positions) for found in group_pieces(pieces) if found.text == word][-1]


def train(steps: int, change: Callable[[Batch], Batch] = lambda batch: batch) -> tuple[Translator, list[float]]:
    """Trains a new network on the phrasebook for a few steps; returns it with the loss of every step.

    It is the network of configs/tiny.toml with half the width and without dropout; labels are not smoothed. `change` is
    applied to every batch.
    """
    config = read_config(ROOT / "configs" / "tiny.toml")
    parts = {
        "model": config.model.model_copy(update={"embed_dim": 64, "mlp_dim": 256, "dropout_rate": 0.0}),
        "training": config.training.model_copy(update={"num_steps": steps, "label_smoothing": 0.0}),
        "tokenizer": config.tokenizer.model_copy(update={"model_file": TRAINED / "tokenizer.model"}),
    }
    config = config.model_copy(update=parts)
    prepared = prepare(config, TRAINED / "short")  # a folder that does not exist; nothing is saved
    learner = Learner(prepared, make_mesh(MeshConfig()))
    learner.initialize()
    batches = TrainingBatches(prepared.planner, config.rows_per_batch, processes=0)
    losses = [float(learner.step(learner.placed(change(next(batches).rows))).loss) for _ in range(steps)]
    return learner.translator(), losses


def greedy(translator: Translator, lines: Sequence[str], *, positions: bool = True, limit: int = 32) -> list[str]:
    """Translates lines by a pass over the whole sentence for every token, as on page 6, or with all at position 0."""
    source = pad_rows(translator.tokenizer.encode_source(lines), len(lines), limit)
    read = np.full((len(lines), limit + 1), BOS_ID, np.int32)  # the causal mask hides what is not written yet
    for t in range(limit):
        read[:, t + 1] = _next_tokens(translator.params, source, read[:, :-1], t, positions, translator.graphdef)
    ends = [row.index(EOS_ID) if EOS_ID in row else limit for row in read[:, 1:].tolist()]
    return translator.tokenizer.decode_target([row[1 : end + 1].tolist() for row, end in zip(read, ends, strict=True)])


@functools.partial(jax.jit, static_argnames=("positions", "graphdef"))
def _next_tokens(
    params: Any, source: jax.Array, read: jax.Array, t: int, positions: bool, graphdef: nnx.GraphDef
) -> jax.Array:
    zeros = None if positions else jnp.zeros_like(source)
    logits, _ = nnx.merge(graphdef, params)(source, read, source_positions=zeros, target_positions=zeros)
    return jnp.argmax(mask_special_tokens(logits)[:, t], axis=-1)
