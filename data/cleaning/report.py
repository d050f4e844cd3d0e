"""What was found in a corpus: counts, examples, and a sentence for each fault of the corpus as a whole."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from lingua_flax.data.cleaning.corpus_filters import MIN_CORRELATION, UNRELATED, Shift
from lingua_flax.host.terminal import excerpt, print_table, share
from lingua_flax.host.wording import counted

EXAMPLES = 3
MIN_PAIRS = 50  # from which a correlation means anything
MANY = 0.5  # the share of pairs that tells that the sides are swapped
CONTEXT = 10  # characters before a change that are shown


@dataclass
class Found:
    """The number of pairs to which something applies, and the first ones: their lines and texts."""

    pairs: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)


def merge(founds: dict[str, Found], later: Mapping[str, Found]) -> None:
    """Adds what was found later."""
    for name, found in later.items():
        earlier = founds.setdefault(name, Found())
        earlier.pairs += found.pairs
        earlier.examples += found.examples[: EXAMPLES - len(earlier.examples)]


@dataclass
class Report:
    """What was found in a corpus; its fields are those of `clean --json`."""

    pairs: int = 0
    kept: int = 0
    mended: dict[str, Found] = field(default_factory=dict)
    left_out: dict[str, Found] = field(default_factory=dict)
    length_correlation: float | None = None
    shifts: list[Shift] = field(default_factory=list)
    misaligned_below: float | None = None
    numbers_below: float | None = None
    notes: list[str] = field(default_factory=list)

    def warnings(self) -> Iterator[str]:
        """Yields a sentence for each fault of the corpus as a whole."""
        yield from alignment_warnings(self.pairs, self.length_correlation, self.shifts)
        if self.left_out.get("swapped", Found()).pairs > MANY * self.pairs:
            yield "the two sides seem to be swapped: exchange the files or the languages"

    def show(self) -> None:
        """Prints what was mended and what was left out."""
        print(f"{counted(self.pairs, 'pair')}: {self.kept:,} kept, {self.pairs - self.kept:,} left out")
        table = Table("", Column("pairs", justify="right"), "line", "examples")
        for kind, founds in (("mended", self.mended), ("left out", self.left_out)):
            for name, found in sorted(founds.items(), key=lambda item: -item[1].pairs):
                heads = [f"{kind}: {name}", share(found.pairs, self.pairs)]
                for example in found.examples:
                    table.add_row(*heads, f"{example['line']:,}", escape(_describe(example)))
                    heads = ["", ""]
                table.add_section()
        if table.rows:
            print_table(table)


def alignment_warnings(pairs: int, correlation: float | None, shifts: Sequence[Shift]) -> Iterator[str]:
    """Yields a sentence for each part of a corpus that is misaligned, or one if all of it is."""
    for part in shifts:
        lines = f"lines {part.first:,} to {part.last:,} are misaligned"
        if part.by == UNRELATED:
            yield f"{lines}: the sides do not match, judging by their lengths"
        else:
            behind, ahead = ("target", "source") if part.by > 0 else ("source", "target")
            count = counted(abs(part.by), "line")
            remedy = f"near line {part.first:,}, remove what the {behind} side has too much"
            yield f"{lines}: the {behind} side is {count} behind; {remedy}, or insert what the {ahead} side lacks"
    if pairs >= MIN_PAIRS and correlation is not None and correlation < MIN_CORRELATION and not shifts:
        yield f"the lengths of both sides are hardly correlated ({correlation:.2f}): do the lines belong together?"


def _describe(example: Mapping[str, Any]) -> str:
    """Returns what was mended, from shortly before the change, or the sides of a pair and what is wrong with it."""
    if "source" in example:
        sides = " | ".join(excerpt(example[side]) for side in ("source", "target"))
        return f"{sides} ({example['detail']})" if example["detail"] else sides
    texts = (example["before"], example["after"])
    change = next((place for place, (old, new) in enumerate(zip(*texts, strict=False)) if old != new), 0)
    begin = max(0, change - CONTEXT)
    return " → ".join("…" * (begin > 0) + excerpt(text[begin:]) for text in texts)
