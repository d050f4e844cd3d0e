"""Heat maps of attention weights and position encodings.

Figures grow with the number of tokens, so that cells and their labels stay legible. Measures are in inches.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lingua_flax.data.tokenizer import CONTROL_PIECES, SPACE

if TYPE_CHECKING:  # importing matplotlib is slow, so only functions that draw import it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lingua_flax.inspection.attention_maps import AttentionMaps

CELL = 0.16  # width and height of the cell of one weight
CHARACTER_WIDTH = 0.06  # in a label, which is set in 7 points
MAX_LABEL_LENGTH = 14  # characters; longer pieces are truncated
MIN_MAP_WIDTH = 0.95  # wide enough for the name of a map
MIN_WIDTH = 7.0  # wide enough for a heading
GAP = 0.1  # between maps, as a part of their width
HEADING_HEIGHT = 0.5  # above a row of maps: its heading, and a line for the name of each map
LEGEND = "each row sums to 1; a dot marks a token that continues the previous word"
ENCODER = "encoder self-attention: source tokens that each source token attends to"
DECODER = "masked decoder self-attention: previous target tokens that the prediction of each token attends to"
CROSS = "cross-attention: source tokens that the prediction of each token attends to"
COLOURS = "Blues"  # white is a weight of 0
# The first font comes with matplotlib; the others, if installed, supply glyphs that it lacks.
FONTS = ["DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Thai"]


def attention_figure(maps: AttentionMaps) -> Figure:
    """Returns labelled heat maps: a row for each layer of the three kinds of attention, a column for each head."""
    source, read, written = map(_labels, (maps.source_tokens, maps.target_tokens_read, maps.target_tokens_written))
    rows = [
        *((ENCODER, layer, heads, source, source) for layer, heads in enumerate(maps.encoder_self_attention, 1)),
        *((DECODER, layer, heads, written, read) for layer, heads in enumerate(maps.decoder_self_attention, 1)),
        *((CROSS, layer, heads, written, source) for layer, heads in enumerate(maps.cross_attention, 1)),
    ]
    left = max(_label_space(source), _label_space(written))
    column = max(CELL * max(len(source), len(read)), MIN_MAP_WIDTH) * (1 + GAP)
    width = max(MIN_WIDTH, left + column * maps.cross_attention.shape[1])
    title = [f"source: {maps.text}", f"translation: {maps.translation}", LEGEND]
    lines = [line for text in title for line in textwrap.wrap(text, int(width / 0.1)) or [""]]
    y = 0.2 * len(lines) + 0.7
    heights = [HEADING_HEIGHT + CELL * len(queries) + _label_space(keys) for *_, queries, keys in rows]
    height = y + sum(heights)
    figure = _new_figure(width, height)
    figure.text(0.2 / width, 1 - 0.1 / height, "\n".join(lines), fontsize=10, va="top", parse_math=False)
    bar = figure.add_axes((0.2 / width, 1 - (y - 0.35) / height, 3.0 / width, 0.12 / height))
    for (heading, layer, heads, queries, keys), row_height in zip(rows, heights, strict=True):
        figure.text(left / width, 1 - (y + 0.1) / height, heading, fontsize=8, va="top")
        bottom = y + HEADING_HEIGHT + CELL * len(queries)
        for number, weights in enumerate(heads):
            place = (left + number * column, height - bottom, CELL * len(keys), CELL * len(queries))
            axes = figure.add_axes(tuple(np.divide(place, (width, height, width, height))))
            image = _heat_map(axes, weights, queries, keys, f"layer {layer}, head {number + 1}")
            axes.tick_params(labelleft=number == 0)
        y += row_height
    figure.colorbar(image, cax=bar, orientation="horizontal").ax.tick_params(labelsize=7)
    return figure


def labelled_heat_map(values: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    """Returns one heat map of weights from 0 to 1, [rows, columns], with a colour bar."""
    cell = 1.6 * CELL
    width = max(_label_space(rows) + cell * len(columns) + 0.8, 5.0)
    figure = _new_figure(width, cell * len(rows) + _label_space(columns) + 0.4, layout="constrained")
    image = _heat_map(figure.subplots(), values, rows, columns, title)
    figure.colorbar(image).ax.tick_params(labelsize=7)
    return figure


def positions_figure(table: np.ndarray, kind: str) -> Figure:
    """Returns a heat map of position encodings [positions, D]: negative values are blue, positive ones red."""
    figure = _new_figure(8.0, 5.0, layout="constrained")
    axes = figure.subplots()
    largest = float(np.abs(table).max()) or 1.0
    image = axes.imshow(table, aspect="auto", cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
    axes.set_xlabel("dimension")
    axes.set_ylabel("position")
    axes.set_title(f"{kind} position encodings: {table.shape[0]} positions, {table.shape[1]} dimensions", fontsize=10)
    figure.colorbar(image)
    return figure


def _heat_map(axes: Axes, weights: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> Any:
    image = axes.imshow(weights, cmap=COLOURS, vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set_anchor("NW")
    axes.set_title(title, fontsize=7, loc="left", pad=3)
    axes.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.tick_params(length=0, labelsize=7, pad=2)
    return image


def _new_figure(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    matplotlib.rcParams["font.family"] = [name for name in FONTS if name in installed]
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # matplotlib draws a box instead
    return Figure(figsize=(width, height), layout=layout)


def _labels(pieces: Sequence[str]) -> list[str]:
    """Returns readable labels; a leading dot marks a piece that continues the previous word."""
    labels = []
    for i, piece in enumerate(pieces):
        text = piece.replace(SPACE, " ").strip() or "_"
        continues_word = i > 0 and not piece.startswith(SPACE) and piece not in CONTROL_PIECES
        label = f"·{text}" if continues_word else text
        labels.append(label if len(label) <= MAX_LABEL_LENGTH else label[: MAX_LABEL_LENGTH - 1] + "…")
    return labels


def _label_space(labels: Sequence[str]) -> float:
    return 0.1 + CHARACTER_WIDTH * max(map(len, labels))
