"""The data report: the contents of a corpus before training, as tables on stdout and a picture of its lengths."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from lingua_flax.data.cleaning import is_installed
from lingua_flax.data.mixture import TrainingCorpus
from lingua_flax.host.errors import UserError
from lingua_flax.host.figures import save_figure
from lingua_flax.host.files import check_writable
from lingua_flax.host.installation import install_command
from lingua_flax.host.terminal import print_table, progress_bar, share
from lingua_flax.host.workers import usable_cores
from lingua_flax.options.schema import CleaningOptions, Config, DataConfig
from lingua_flax.runs.checkpoint import DamagedCheckpoint, check_corpus, saved_steps
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.preparation import open_with_tokenizer, tagged_tokenizer
from lingua_flax.training.reports.corpus_counts import SideCounts, SplitCounts, inspect_corpora, inspected_splits

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)
PICTURE_NAME = "inspection.png"
NORMALIZED = 0.01  # the share of sentences that the tokenizer may change without being mentioned
MAX_BARS = 80  # in a histogram
HISTOGRAM_PERCENTILE = 99.9  # of the lengths: the histograms end there, however long the longest sentence is


def report_data(config: Config, workdir: Path | None) -> None:
    """Inspects the corpus, prints the tables and saves the picture in the workdir, by default the current folder.

    The tokenizer is that of the workdir, or trained as for training. Raises UserError if the corpus or the tokenizer's
    options are not usable, or the picture cannot be written.
    """
    picture = (workdir or Path()) / PICTURE_NAME
    if workdir:
        Workdir(workdir).check_creatable()
    if picture.parent.exists():
        check_writable(picture)
    training, tokenizer, _ = open_with_tokenizer(config, workdir)
    if workdir and (steps := saved_steps(Workdir(workdir).checkpoints)):
        try:
            check_corpus(workdir, steps[-1], training[0].corpus.fingerprint, "train")
        except (UserError, DamagedCheckpoint) as error:
            log.warning("checkpoint %d: %s", steps[-1], error)
    corpora = {entry.option: entry.corpus for entry in training}
    tokenizers = {entry.option: tagged_tokenizer(config, entry, tokenizer) for entry in training}
    count = sum(len(corpus.splits[split]) for _, corpus, split in inspected_splits(corpora))
    with progress_bar(count, "pairs") as advance:
        splits = inspect_corpora(corpora, tokenizers, advance)
    title = "; ".join(f"{each.name}, {each.source_language} to {each.target_language}" for each in corpora.values())
    picture.parent.mkdir(parents=True, exist_ok=True)
    save_figure(_histograms(title, splits, config.data.row_length), picture)
    tables = (_pairs_table(title, splits, config.data.row_length), _lengths_table(splits))
    for table in (*tables, _sides_table(splits, config.model.max_length)):
        print_table(table)
        print()
    for side in (splits["train"].source, splits["train"].target):
        if (changed := side.normalized / max(1, len(side.words))) > NORMALIZED:
            rule = f"tokenizer.normalization {config.tokenizer.normalization}"
            print(f"{rule} changes {changed:.0%} of the sentences in {side.language}; is that wanted?")
    print(f"histograms of the lengths: {picture}")
    for entry in training:
        _report_pairs(entry, config.data)


def _report_pairs(training: TrainingCorpus, data: DataConfig) -> None:
    """Prints what lingua-flax clean would do with training pairs, and the command that does it."""
    if not is_installed():
        print(f"to check the pairs themselves, install the extra clean: {install_command('clean')}")
        return
    from lingua_flax.data.cleaning.pipeline import clean
    from lingua_flax.data.cleaning.readers import Row

    corpus = training.corpus
    languages = (corpus.source_language, corpus.target_language)
    rows = (Row(number, *pair) for number, pair in enumerate(corpus.split("train"), start=1))
    report = clean(rows, CleaningOptions(), languages, processes=usable_cores())
    print()
    report.show()
    for sentence in (*report.notes, *report.warnings()):
        print(f"{training.option}: {sentence}")
    section: Any = data if training.option == "data" else data.mixture[int(training.option.rpartition(".")[2])]
    if (report.mended or report.left_out) and corpus.name == "text":
        files = " ".join(shlex.quote(str(path)) for path in (section.train_source, section.train_target) if path)
        options = f"--source-language {languages[0]} --target-language {languages[1]}"
        print(f"to mend them: lingua-flax clean {files} {options} --output clean.jsonl --rejected rejected.jsonl")


def _table(title: str, text_columns: str, number_columns: str, *caption: str) -> Table:
    """Returns an empty table with the given lines as its caption; the names of columns are separated by "|"."""
    lines = escape("\n".join(caption))
    table = Table(title=escape(title), title_justify="left", caption=lines, caption_justify="left")
    for column in text_columns.split("|"):
        table.add_column(escape(column), vertical="bottom")
    for column in number_columns.split("|") if number_columns else []:
        table.add_column(escape(column), vertical="bottom", justify="right")
    return table


def _pairs_table(title: str, splits: Mapping[str, SplitCounts], row_length: int) -> Table:
    table = _table(title, "split", f"pairs|pairs\nin train|sources\nin train|left out by\nrow_length {row_length}")
    for name, split in splits.items():
        longer = np.maximum(split.source.tokens, split.target.tokens)
        left_out = np.count_nonzero(longer > row_length) if split.in_train is None else None
        counts = (split.in_train, split.sources_in_train, left_out)
        table.add_row(escape(name), f"{len(longer):,}", *(share(count, len(longer)) for count in counts))
    return table


def _lengths_table(splits: Mapping[str, SplitCounts]) -> Table:
    table = _table(
        "lengths of the sentences, in words and in tokens",
        "split|side",
        "words|mean|median|99%|longest|tokens|mean|median|99%|longest",
        "words: separated by whitespace",
        "tokens: SentencePiece's, the </s> that ends a sentence, and the tags that a source may begin with",
        "99%: the length that 99% of the sentences do not exceed",
    )
    for name, side in _sides(splits):
        table.add_row(name, escape(side.language), *_statistics(side.words), *_statistics(side.tokens))
    return table


def _sides_table(splits: Mapping[str, SplitCounts], max_length: int) -> Table:
    fallback, meaning = "<unk>", "unknown tokens"
    if any(side.spells_bytes for _, side in _sides(splits)):
        fallback, meaning = "byte tokens", "they spell unknown characters"
    columns = f"tokens per word|{fallback}|empty|above max_length {max_length}"
    caption = ("tokens per word: without </s> and tags; empty: sentences without a word", f"{fallback}: {meaning}")
    table = _table("tokenization of the sentences", "split|side", columns, *caption)
    for name, side in _sides(splits):
        words, sentences = side.words.sum(), len(side.words)
        ratio = f"{side.pieces / words:.2f}" if words else ""
        empty, long = np.count_nonzero(side.words == 0), np.count_nonzero(side.tokens > max_length)
        parts = (share(side.fallbacks, side.pieces), share(empty, sentences), share(long, sentences))
        table.add_row(name, escape(side.language), ratio, *parts)
    return table


def _sides(splits: Mapping[str, SplitCounts]) -> Iterator[tuple[str, SideCounts]]:
    return ((escape(name), side) for name, split in splits.items() for side in (split.source, split.target))


def _statistics(lengths: np.ndarray) -> list[str]:
    median, high = _percentiles(lengths, [50, 99])
    return [f"{lengths.sum():,}", f"{lengths.mean():.1f}", f"{median:,}", f"{high:,}", f"{lengths.max():,}"]


def _percentiles(lengths: np.ndarray, percent: float | list[float]) -> np.ndarray:
    """Returns the smallest length that at least `percent` percent of the sentences do not exceed."""
    return np.percentile(lengths, percent, method="inverted_cdf")


def _histograms(title: str, splits: Mapping[str, SplitCounts], row_length: int) -> Figure:
    """Draws the lengths in words above and in tokens below, of sources on the left and of targets on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(f"{title}: distribution of sentence lengths", parse_math=False)
    axes = figure.subplots(2, 2, sharex="row", sharey="row")
    for row, unit in zip(axes, ("words", "tokens"), strict=True):
        limit = max(int(_percentiles(getattr(side, unit), HISTOGRAM_PERCENTILE)) for _, side in _sides(splits))
        if unit == "tokens":
            limit = max(limit, row_length)
        for axis, side_name in zip(row, ("source", "target"), strict=True):
            sides = {name: getattr(split, side_name) for name, split in splits.items()}
            width = -(-(limit + 1) // MAX_BARS)
            edges = np.arange(0, limit + 1 + width, width) - 0.5
            for name, side in sides.items():
                counts, _ = np.histogram(getattr(side, unit), edges)
                is_train = name == "train"
                axis.stairs(counts / len(side.words), edges, fill=is_train, alpha=0.5 if is_train else 1, label=name)
            axis.yaxis.set_major_formatter("{x:.0%}")
            language = ", ".join(dict.fromkeys(side.language for side in sides.values()))
            axis.set_title(f"{side_name} ({language}), {unit}", parse_math=False)
            longest = max(getattr(side, unit).max() for side in sides.values())
            axis.set_xlabel(f"{unit} per sentence (longest: {longest:,})")
            if unit == "tokens":
                axis.axvline(row_length + 0.5, color="black", linestyle="--", label=f"data.row_length {row_length}")
        row[0].set_ylabel("share of the split's sentences")
        row[-1].legend()
    return figure
