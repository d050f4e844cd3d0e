"""Attention and position encodings as pictures: heat maps drawn to a fixed size for each token, so that labels stay
legible, on as many pages as they need.

Everything is measured in inches; a page's axes are placed one by one from its top left corner.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data.tokenizer import CONTROL_PIECES, SPACE
from translation.attention_maps import AttentionMaps

if TYPE_CHECKING:  # matplotlib takes half a second to import: only what draws does so
    from matplotlib.figure import Figure

CELL = 0.16  # width and height of a weight
CHARACTER = 0.06  # width of a letter of a label, which is 7 points high
LONGEST_LABEL = 14  # characters; longer pieces are cut
MARGIN = 0.3
LINE = 0.2  # height of a line of the title
HEADING = 0.5  # above a row of maps: what they are, and a line for the name of each
NARROWEST = 0.95  # a map, so that its name fits
WIDEST = 30.0
TALLEST = 45.0  # a page of 30 by 45 inches is 3600 by 5400 pixels
LEGEND = "each row adds up to 1; a dot joins a token to the one before it"
COLOURS = "Blues"  # white is a weight of 0
# The first comes with matplotlib; those of the others that are installed draw what it has no glyphs for.
FONTS = ["DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Thai"]


class _Row(NamedTuple):
    """Maps side by side: some heads of a layer, which have the same queries and keys."""

    heading: str
    layer: int
    first_head: int
    weights: np.ndarray  # [heads, queries, keys]
    queries: Sequence[str]
    keys: Sequence[str]

    @property
    def height(self) -> float:
        return HEADING + CELL * len(self.queries) + _room(self.keys) + 0.1


def attention_figures(maps: AttentionMaps) -> list[Figure]:
    """A heat map for each layer and head of the three kinds of attention, labelled, on one page or several."""
    source, written = _labels(maps.source_tokens), _labels(maps.target_written)
    kinds = (
        ("encoder self-attention: where each source token looks", maps.encoder, source, source),
        (
            "masked decoder self-attention: where it looks in what it has written, before it writes each token",
            maps.decoder,
            written,
            _labels(maps.target_read),
        ),
        ("cross-attention: where it looks in the source, before it writes each token", maps.cross, written, source),
    )
    rows = [row for kind in kinds for row in _rows(*kind)]
    title = [f"source: {maps.text}", f"translation: {maps.translation}", LEGEND]
    return [_page(page, title) for page in _pages(rows)]


def labelled_heat_map(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str, cell: float = 1.6 * CELL
) -> Figure:
    """One heat map of weights [rows, columns] with a colour bar."""
    page = _Page([title], _room(rows), cell * len(columns), cell * len(rows) + _room(columns))
    page.heat_map(values, page.left, page.top, cell, rows, columns, "")
    return page.finish()


def positions_figure(table: np.ndarray, kind: str) -> Figure:
    """Position encodings [positions, D] as a heat map, negative blue and positive red; kind says which they are."""
    figure = _figure(8.0, 5.0)
    axes = figure.add_axes((0.09, 0.11, 0.78, 0.8))
    largest = float(np.abs(table).max()) or 1.0
    image = axes.imshow(table, aspect="auto", cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
    axes.set_xlabel("dimension")
    axes.set_ylabel("position")
    axes.set_title(f"{kind} position encodings: {table.shape[0]} positions, {table.shape[1]} dimensions", fontsize=10)
    figure.colorbar(image, cax=figure.add_axes((0.89, 0.11, 0.02, 0.8)))
    return figure


def _rows(heading: str, weights: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> Iterator[_Row]:
    """The maps of a kind, [layers, N, queries, keys], in rows that are not too wide."""
    several = max(1, int((WIDEST - 2 * MARGIN - _room(queries)) / _map_width(keys)))
    for layer, heads in enumerate(weights, 1):
        for first in range(0, len(heads), several):
            yield _Row(heading, layer, first + 1, heads[first : first + several], queries, keys)


def _pages(rows: Sequence[_Row]) -> list[list[_Row]]:
    """As many rows on each page as its height allows, one at least."""
    pages: list[list[_Row]] = [[]]
    for row in rows:
        if pages[-1] and sum(other.height for other in pages[-1]) + row.height > TALLEST:
            pages.append([])
        pages[-1].append(row)
    return pages


def _page(rows: Sequence[_Row], title: Sequence[str]) -> Figure:
    left = max(_room(row.queries) for row in rows)
    width = max(len(row.weights) * _map_width(row.keys) for row in rows)
    page = _Page(title, left, width, sum(row.height for row in rows))
    top = page.top
    for row in rows:
        for i, weights in enumerate(row.weights):
            place = page.left + i * _map_width(row.keys)
            name = f"layer {row.layer}, head {row.first_head + i}"
            page.heat_map(weights, place, top + HEADING, CELL, row.queries if i == 0 else [], row.keys, name)
        page.text(page.left, top + 0.1, row.heading, 8)
        top += row.height
    return page.finish()


class _Page:
    """A figure with a title, a colour bar from 0 to 1 below it, and room for maps of a given width and height."""

    def __init__(self, title: Sequence[str], left: float, width: float, height: float):
        self.left = MARGIN + left
        self.width = max(self.left + width + MARGIN, 5.0)
        lines = [line for text in title for line in textwrap.wrap(text, int(self.width / 0.1)) or [""]]
        self.top = MARGIN + LINE * len(lines) + 0.65
        self.height = self.top + height + MARGIN
        self.figure = _figure(self.width, self.height)
        for i, line in enumerate(lines):
            self.text(MARGIN, MARGIN + LINE * i, line, 10)
        self.bar = self._axes(MARGIN, self.top - 0.6, min(3.0, self.width - 2 * MARGIN), 0.12)
        self.image: Any = None

    def text(self, left: float, top: float, text: str, size: float) -> None:
        """Writes a line."""
        place = (left / self.width, 1 - top / self.height)
        self.figure.text(*place, text, fontsize=size, va="top", parse_math=False)

    def heat_map(
        self,
        weights: np.ndarray,
        left: float,
        top: float,
        cell: float,
        rows: Sequence[str],
        columns: Sequence[str],
        title: str,
    ) -> None:
        """Draws weights [queries, keys] with the labels that are given."""
        axes = self._axes(left, top, cell * weights.shape[1], cell * weights.shape[0])
        self.image = axes.imshow(weights, cmap=COLOURS, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=7, loc="left", pad=3)
        axes.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
        axes.set_yticks(range(len(rows)), rows, parse_math=False)
        axes.tick_params(length=0, labelsize=7, pad=2)
        for spine in axes.spines.values():
            spine.set_linewidth(0.4)

    def finish(self) -> Figure:
        """Adds the colour bar."""
        self.figure.colorbar(self.image, cax=self.bar, orientation="horizontal").ax.tick_params(labelsize=7)
        return self.figure

    def _axes(self, left: float, top: float, width: float, height: float) -> Any:
        place = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(place)


def _figure(width: float, height: float) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    matplotlib.rcParams["font.family"] = [name for name in FONTS if name in installed]
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box is drawn for it
    return Figure(figsize=(width, height))


def _labels(pieces: Sequence[str]) -> list[str]:
    """Pieces as people read them: one that goes on with the word before it begins with a dot."""
    labels = []
    for i, piece in enumerate(pieces):
        text = piece.replace(SPACE, " ").strip() or "_"
        joined = i > 0 and not piece.startswith(SPACE) and piece not in CONTROL_PIECES
        label = f"·{text}" if joined else text
        labels.append(label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…")
    return labels


def _room(labels: Sequence[str]) -> float:
    """What the longest label takes."""
    return 0.1 + CHARACTER * max(map(len, labels))


def _map_width(keys: Sequence[str]) -> float:
    return max(CELL * len(keys), NARROWEST) + 0.25
