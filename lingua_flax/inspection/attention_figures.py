"""Heat maps of attention weights and position encodings.

Every token gets a cell of fixed size, so that labels stay legible; maps that do not fit on one page continue on further
pages. All measures are in inches, and axes are positioned individually from the top left corner of the page.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lingua_flax.data.tokenizer import CONTROL_PIECES, SPACE
from lingua_flax.inspection.attention_maps import AttentionMaps

if TYPE_CHECKING:  # importing matplotlib is slow, so only functions that draw import it
    from matplotlib.figure import Figure

CELL = 0.16  # width and height of the cell of one weight
CHARACTER_WIDTH = 0.06  # in a label, which is set in 7 points
MAX_LABEL_LENGTH = 14  # characters; longer pieces are truncated
MARGIN = 0.3
TITLE_LINE_HEIGHT = 0.2
HEADING_HEIGHT = 0.5  # above a row of maps: its heading, and a line for the name of each map
MIN_MAP_WIDTH = 0.95  # wide enough for the name of a map
WIDEST = 30.0
TALLEST = 45.0  # a page of 30 by 45 inches has 3600 by 5400 pixels
LEGEND = "each row sums to 1; a dot marks a token that continues the previous word"
HEADINGS = {
    "encoder": "encoder self-attention: source tokens that each source token attends to",
    "decoder": "masked decoder self-attention: previous target tokens that the prediction of each token attends to",
    "cross": "cross-attention: source tokens that the prediction of each token attends to",
}
COLOURS = "Blues"  # white is a weight of 0
# The first font comes with matplotlib; the others, if installed, supply glyphs that it lacks.
FONTS = ["DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Thai"]


class _Row(NamedTuple):
    """Maps drawn side by side: heads of one layer, which share their queries and keys."""

    heading: str
    layer: int
    first_head: int
    weights: np.ndarray  # [heads, queries, keys]
    queries: Sequence[str]
    keys: Sequence[str]

    @property
    def height(self) -> float:
        return HEADING_HEIGHT + CELL * len(self.queries) + _label_space(self.keys) + 0.1


def attention_figures(maps: AttentionMaps) -> list[Figure]:
    """Returns the pages of labelled heat maps, one map for each layer and head of the three kinds of attention."""
    source, read, written = map(_labels, (maps.source_tokens, maps.target_read, maps.target_written))
    rows = [
        *_rows(HEADINGS["encoder"], maps.encoder, source, source),
        *_rows(HEADINGS["decoder"], maps.decoder, written, read),
        *_rows(HEADINGS["cross"], maps.cross, written, source),
    ]
    title = [f"source: {maps.text}", f"translation: {maps.translation}", LEGEND]
    return [_page(page, title) for page in _pages(rows)]


def labelled_heat_map(values: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    """Returns one heat map of weights from 0 to 1, [rows, columns], with a colour bar."""
    cell = 1.6 * CELL
    page = _Page([title], _label_space(rows), cell * len(columns), cell * len(rows) + _label_space(columns), cell)
    page.heat_map(values, page.left, page.top, rows, columns, "")
    return page.finish()


def positions_figure(table: np.ndarray, kind: str) -> Figure:
    """Returns a heat map of position encodings [positions, D]: negative values are blue, positive ones red."""
    figure = _new_figure(8.0, 5.0)
    axes = figure.add_axes((0.09, 0.11, 0.78, 0.8))
    largest = float(np.abs(table).max()) or 1.0
    image = axes.imshow(table, aspect="auto", cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
    axes.set_xlabel("dimension")
    axes.set_ylabel("position")
    axes.set_title(f"{kind} position encodings: {table.shape[0]} positions, {table.shape[1]} dimensions", fontsize=10)
    figure.colorbar(image, cax=figure.add_axes((0.89, 0.11, 0.02, 0.8)))
    return figure


def _rows(heading: str, weights: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> Iterator[_Row]:
    """Splits the maps of one kind of attention, [layers, N, queries, keys], into rows that fit the page width."""
    maps_per_row = max(1, int((WIDEST - 2 * MARGIN - _label_space(queries)) / _map_width(keys)))
    for layer, heads in enumerate(weights, 1):
        for first in range(0, len(heads), maps_per_row):
            yield _Row(heading, layer, first + 1, heads[first : first + maps_per_row], queries, keys)


def _pages(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Distributes the rows over pages: as many rows on each as fit its height, but at least one."""
    pages: list[list[_Row]] = [[]]
    for row in rows:
        if pages[-1] and sum(placed.height for placed in pages[-1]) + row.height > TALLEST:
            pages.append([])
        pages[-1].append(row)
    return pages


def _page(rows: Sequence[_Row], title: Sequence[str]) -> Figure:
    left = max(_label_space(row.queries) for row in rows)
    width = max(len(row.weights) * _map_width(row.keys) for row in rows)
    page = _Page(title, left, width, sum(row.height for row in rows))
    top = page.top
    for row in rows:
        for i, weights in enumerate(row.weights):
            map_left = page.left + i * _map_width(row.keys)
            name = f"layer {row.layer}, head {row.first_head + i}"
            page.heat_map(weights, map_left, top + HEADING_HEIGHT, [] if i else row.queries, row.keys, name)
        page.draw_text(page.left, top + 0.1, row.heading, 8)
        top += row.height
    return page.finish()


class _Page:
    """A figure with a title, below it a colour bar from 0 to 1, and space for maps of a given width and height.

    The attributes left and top are the edges of the maps, but width and height are those of the page.
    """

    def __init__(self, title: Sequence[str], left: float, width: float, height: float, cell: float = CELL):
        self.cell = cell
        self.left = MARGIN + left
        self.width = max(self.left + width + MARGIN, 5.0)
        lines = [line for text in title for line in textwrap.wrap(text, int(self.width / 0.1)) or [""]]
        self.top = MARGIN + TITLE_LINE_HEIGHT * len(lines) + 0.65
        self.height = self.top + height + MARGIN
        self.figure = _new_figure(self.width, self.height)
        for i, line in enumerate(lines):
            self.draw_text(MARGIN, MARGIN + TITLE_LINE_HEIGHT * i, line, 10)
        self.colour_bar_axes = self._axes(MARGIN, self.top - 0.6, min(3.0, self.width - 2 * MARGIN), 0.12)
        self.image: Any = None

    def draw_text(self, left: float, top: float, text: str, size: float) -> None:
        position = (left / self.width, 1 - top / self.height)
        self.figure.text(*position, text, fontsize=size, va="top", parse_math=False)

    def heat_map(
        self, weights: np.ndarray, left: float, top: float, rows: Sequence[str], columns: Sequence[str], title: str
    ) -> None:
        """Draws weights [queries, keys]; an empty list of row or column labels draws none."""
        axes = self._axes(left, top, self.cell * weights.shape[1], self.cell * weights.shape[0])
        self.image = axes.imshow(weights, cmap=COLOURS, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=7, loc="left", pad=3)
        axes.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
        axes.set_yticks(range(len(rows)), rows, parse_math=False)
        axes.tick_params(length=0, labelsize=7, pad=2)
        for spine in axes.spines.values():
            spine.set_linewidth(0.4)

    def finish(self) -> Figure:
        """Adds the colour bar and returns the figure."""
        self.figure.colorbar(self.image, cax=self.colour_bar_axes, orientation="horizontal").ax.tick_params(labelsize=7)
        return self.figure

    def _axes(self, left: float, top: float, width: float, height: float) -> Any:
        rectangle = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(rectangle)


def _new_figure(width: float, height: float) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    matplotlib.rcParams["font.family"] = [name for name in FONTS if name in installed]
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # matplotlib draws a box instead
    return Figure(figsize=(width, height))


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


def _map_width(keys: Sequence[str]) -> float:
    return max(CELL * len(keys), MIN_MAP_WIDTH) + 0.25
