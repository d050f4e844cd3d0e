"""The report of a cleaned corpus: a table with counts and examples, warnings, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table

from lingua_flax.data.cleaning.corpus_alignment import MIN_CORRELATION, UNRELATED, Shift
from lingua_flax.data.cleaning.pipeline import Report, Tally
from lingua_flax.host.terminal import excerpt, share

MIN_PAIRS = 50  # from which a correlation means anything
MANY = 0.5  # the share of swapped pairs that tells that the files are swapped


def warnings(report: Report) -> Iterator[str]:
    """Yields a sentence for each fault of the corpus as a whole."""
    for shift in report.shifts:
        yield describe_shift(shift)
    if report.pairs >= MIN_PAIRS and report.correlation < MIN_CORRELATION and not report.shifts:
        yield uncorrelated(report.correlation)
    if report.left_out.counts["swapped"] > MANY * report.pairs:
        yield "source and target seem to be swapped: exchange the files, or the languages"


def describe_shift(shift: Shift) -> str:
    lines = f"lines {shift.begin + 1:,} to {shift.end:,}"
    if shift.by == UNRELATED:
        return f"{lines}: the sides do not match, judging by their lengths"
    side, lines_off = ("target" if shift.by > 0 else "source"), f"{abs(shift.by)} line{'s' * (abs(shift.by) > 1)}"
    remedy = f"look for what the {side} side has too much, or the other side lacks, at about line {shift.begin + 1:,}"
    return f"{lines}: each pair matches {lines_off} later on the {side} side: {remedy}"


def uncorrelated(correlation: float) -> str:
    return f"the lengths of the two sides are hardly correlated ({correlation:.2f}): do the lines belong together?"


def table(report: Report) -> Table:
    """Returns a table of what was mended and what was left out."""
    kept = report.pairs - report.left_out.counts.total()
    title = f"{report.pairs:,} pairs: {kept:,} kept, {report.pairs - kept:,} left out"
    table = Table(title=title, title_justify="left")
    for column in ("", "", "line", "examples"):
        table.add_column(column)
    table.columns[1].header, table.columns[1].justify = "pairs", "right"
    for kind, tally in (("mended", report.mended), ("left out", report.left_out)):
        for name, count in tally.counts.most_common():
            for number, example in enumerate(tally.examples[name]):
                first = (f"{kind}: {name}", share(count, report.pairs)) if number == 0 else ("", "")
                table.add_row(*first, f"{example['line']:,}", escape(_describe(example)))
            table.add_section()
    return table


def _describe(example: dict[str, Any]) -> str:
    """Returns what was mended, or the sides of a pair that was left out, its score, and what was wrong with its row."""
    if "before" in example:
        return f"{excerpt(example['before'])} → {excerpt(example['after'])}"
    values = [value for name, value in example.items() if name not in ("line", "file", "detail", "alignment")]
    notes = [str(example[name]) for name in ("alignment", "detail") if name in example]
    return " | ".join(map(excerpt, filter(None, values))) + "".join(f" ({note})" for note in notes)


def as_json(report: Report) -> dict[str, Any]:
    """Returns the report as an object with JSON types."""

    def tallied(tally: Tally) -> dict[str, Any]:
        names = tally.counts.most_common()
        return {name: {"pairs": count, "examples": tally.examples[name]} for name, count in names}

    return {
        "pairs": report.pairs,
        "kept": report.pairs - report.left_out.counts.total(),
        "mended": tallied(report.mended),
        "left_out": tallied(report.left_out),
        "length_correlation": round(report.correlation, 3),
        "shifts": [{"first_line": part.begin + 1, "last_line": part.end, "shift": part.by} for part in report.shifts],
        "misaligned_below": report.cut,
        "warnings": list(warnings(report)),
        "notes": report.notes,
    }
