"""The data report: what is in a corpus before anything is trained, as tables on stdout and a picture of the lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape
from rich.table import Table

from host.figures import save_figure
from host.files import check_writable
from host.terminal import print_table, progress_bar
from options.schema import Config
from reports.inspection import InspectedSide, InspectedSplit, inspect_corpora, inspected_splits
from runs.workdir import Workdir
from training.preparation import open_with_tokenizer

if TYPE_CHECKING:  # matplotlib takes half a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE_NAME = "inspection.png"
LISTED = 3  # pairs shown as the longest of a split, and as the most lopsided
LOPSIDED = 3.0  # a pair is lopsided where one side has more than so many times the tokens of the other
BARS = 80  # at most, in a histogram
SHOWN_PERCENT = 99.9  # of the sentences are in the histograms, whatever the longest of them is
TEXT_SHOWN = 36  # characters of a sentence in a table


def report_data(config: Config, workdir: Path | None) -> None:
    """Inspects the corpus with the workdir's tokenizer, or the one that training would make: prints the tables and
    saves the picture, in the workdir or else in the current folder. Writes nothing else there.

    Raises:
      UserError: something in the corpus or the tokenizer's options cannot work, or the picture cannot be written.
    """
    picture = (workdir or Path()) / PICTURE_NAME
    if workdir:
        Workdir(workdir).check_creatable()
    if picture.parent.exists():
        check_writable(picture)
    training, tokenizer, _ = open_with_tokenizer(config, workdir)
    if config.data.tag_target:
        tokenizer = tokenizer.with_source_tag(config.data.target_language)
    corpora = {each.option: each.corpus for each in training}
    with progress_bar(
        sum(len(corpus.splits[split]) for _, corpus, split in inspected_splits(corpora)), "pairs"
    ) as advance:
        found = inspect_corpora(corpora, tokenizer, advance)
    title = "; ".join(
        f"{corpus.name}, {corpus.source_language} to {corpus.target_language}" for corpus in corpora.values()
    )
    picture.parent.mkdir(parents=True, exist_ok=True)
    save_figure(_histograms(title, found, config.data.row_length), picture)
    for table in (
        _pairs_table(title, found, config.data.row_length),
        _lengths_table(found),
        _sides_table(found, config.model.max_length),
        _lines_table(found),
    ):
        print_table(table)
        print()
    print(f"histograms of the lengths: {picture}")


def _table(title: str, *columns: str, text_columns: int, caption: str) -> Table:
    """An empty table whose first columns hold text and the others numbers."""
    table = Table(title=escape(title), title_justify="left", caption=escape(caption), caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if number < text_columns else "right", vertical="bottom")
    return table


def _pairs_table(title: str, found: Mapping[str, InspectedSplit], row_length: int) -> Table:
    table = _table(
        title,
        "split", "pairs", "repeated\npairs", "repeated\nsources", "pairs\nin train", "sources\nin train",
        "target\nis source", "lopsided", f"left out by\nrow_length {row_length}",
        text_columns=1,
        caption="repeated: an earlier line of the split is the same, character for character\n"
        f"lopsided: one side has more than {LOPSIDED:g} times the tokens of the other",
    )  # fmt: skip
    for name, split in found.items():
        lopsided, left_out = np.count_nonzero(split.ratio > LOPSIDED), np.count_nonzero(split.longer > row_length)
        counts = (
            split.repeated_pairs, split.repeated_sources, split.in_train, split.sources_in_train,
            split.identical, lopsided, left_out if split.in_train is None else None,
        )  # fmt: skip
        table.add_row(escape(name), f"{len(split.pairs):,}", *(_part(count, len(split.pairs)) for count in counts))
    return table


def _part(count: int | np.integer | None, whole: int) -> str:
    if not count:
        return "" if count is None else "0"
    return f"{count:,} ({count / whole:.2%})" if count / whole >= 0.0001 else f"{count:,} (<0.01%)"


def _lengths_table(found: Mapping[str, InspectedSplit]) -> Table:
    statistics = ("mean", "median", "99%", "longest")
    table = _table(
        "lengths of the sentences, in words and in tokens",
        "split", "side", "words", *statistics, "tokens", *statistics,
        text_columns=2,
        caption="words: what stands between whitespace\n"
        "tokens: SentencePiece's, the </s> that ends a sentence, and the tag that a source may begin with\n"
        "99%: so many sentences are no longer",
    )  # fmt: skip
    for name, side in _sides(found):
        table.add_row(name, escape(side.language), *_statistics(side.words), *_statistics(side.tokens))
    return table


def _sides_table(found: Mapping[str, InspectedSplit], max_length: int) -> Table:
    spells_bytes = any(side.spells_bytes for _, side in _sides(found))
    table = _table(
        "what the tokenizer makes of them",
        "split", "side", "tokens a word", "byte tokens" if spells_bytes else "<unk>", "empty",
        f"above max_length {max_length}",
        text_columns=2,
        caption="tokens a word: without </s>; empty: sentences without a word\n"
        + ("byte tokens: those that spell unknown characters" if spells_bytes else "<unk>: tokens that are unknown"),
    )  # fmt: skip
    for name, side in _sides(found):
        words, sentences = side.words.sum(), len(side.words)
        table.add_row(
            name, escape(side.language), f"{side.pieces / words:.2f}" if words else "",
            _part(side.fallbacks, side.pieces), _part(np.count_nonzero(side.words == 0), sentences),
            _part(np.count_nonzero(side.tokens > max_length), sentences),
        )  # fmt: skip
    return table


def _sides(found: Mapping[str, InspectedSplit]) -> Iterator[tuple[str, InspectedSide]]:
    """Both sides of each split, with its name."""
    return ((escape(name), side) for name, split in found.items() for side in (split.source, split.target))


def _statistics(lengths: np.ndarray) -> list[str]:
    """Sum, mean, median, the length that 99% do not exceed, and the greatest."""
    middle, high = _percentiles(lengths, [50, 99])
    return [f"{lengths.sum():,}", f"{lengths.mean():.1f}", f"{middle:,}", f"{high:,}", f"{lengths.max():,}"]


def _percentiles(lengths: np.ndarray, percent: float | list[float]) -> np.ndarray:
    """The smallest length that at least `percent` of the sentences do not exceed."""
    return np.percentile(lengths, percent, method="inverted_cdf")


def _lines_table(found: Mapping[str, InspectedSplit]) -> Table:
    table = _table(
        "the longest pairs, and the most lopsided",
        "split", "line", "", "words", "tokens", "source", "target",
        text_columns=7,
        caption="line: from 1 in the split as it is used; pairs that were left out or held out are not counted\n"
        "words, tokens: of source and target",
    )  # fmt: skip
    for name, split in found.items():
        lopsided = [line for line in _greatest(split.ratio) if split.ratio[line] > LOPSIDED]
        for what, lines in (("long", _greatest(split.longer)), ("lopsided", lopsided)):
            for line in lines:
                words, tokens = (
                    f"{source[line]:,}, {target[line]:,}"
                    for source, target in (
                        (split.source.words, split.target.words), (split.source.tokens, split.target.tokens)
                    )
                )  # fmt: skip
                text = (escape(_beginning(text)) for text in split.pairs[line])
                table.add_row(escape(name), f"{line + 1:,}", what, words, tokens, *text)
        table.add_section()
    return table


def _greatest(values: np.ndarray) -> list[int]:
    """Where the greatest LISTED values are; of equal ones the first come first."""
    return np.argsort(-values, kind="stable")[:LISTED].tolist()


def _beginning(text: str) -> str:
    """The first part of a sentence, without what would move a terminal's cursor."""
    shown = text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"
    return "".join(character if character.isprintable() else " " for character in shown)


def _histograms(title: str, found: Mapping[str, InspectedSplit], row_length: int) -> Figure:
    """Words above, tokens below; source on the left, target on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(f"{title}: sentences of each length", parse_math=False)
    axes = figure.subplots(2, 2, sharex="row", sharey="row")
    for row, unit in zip(axes, ("words", "tokens"), strict=True):
        reach = max(int(_percentiles(getattr(side, unit), SHOWN_PERCENT)) for _, side in _sides(found))
        if unit == "tokens":
            reach = max(reach, row_length)
        for axis, which in zip(row, ("source", "target"), strict=True):
            sides = {name: getattr(split, which) for name, split in found.items()}
            _draw(axis, {name: getattr(side, unit) for name, side in sides.items()}, reach)
            language = ", ".join(dict.fromkeys(side.language for side in sides.values()))
            axis.set_title(f"{which} ({language}), {unit}", parse_math=False)
            longest = max(getattr(side, unit).max() for side in sides.values())
            axis.set_xlabel(f"{unit} of a sentence (the longest: {longest:,})")
            if unit == "tokens":
                axis.axvline(row_length + 0.5, color="black", linestyle="--", label=f"data.row_length {row_length}")
        row[0].set_ylabel("share of the split's sentences")
        row[-1].legend()
    return figure


def _draw(axis: Axes, by_split: Mapping[str, np.ndarray], reach: int) -> None:
    width = -(-(reach + 1) // BARS)
    edges = np.arange(0, reach + 1 + width, width) - 0.5
    for name, lengths in by_split.items():
        counts, _ = np.histogram(lengths, edges)
        is_train = name == "train"
        axis.stairs(counts / len(lengths), edges, fill=is_train, alpha=0.5 if is_train else 1, label=name)
    axis.yaxis.set_major_formatter("{x:.0%}")
