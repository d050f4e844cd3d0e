"""Cleans a corpus of any size in two passes: pairs one by one, then what follows from all of them.

The first pass mends pairs, finds their own faults, and stores them in a temporary file; 45 bytes for each pair stay in
memory. Then the lengths and digests of all pairs, and word alignments of a sample, decide about others. The second pass
scores the pairs and writes them. Chunks of pairs are processed independently, in any number of processes.
"""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from lingua_flax.data.cleaning.corpus_alignment import UNRELATED, Shift, correlation, find_shifts
from lingua_flax.data.cleaning.corpus_filters import deviations, digests, occurrences
from lingua_flax.data.cleaning.filters import FAULTS, Expected, expect, find_fault
from lingua_flax.data.cleaning.lexical_scores import LexicalModel, Vocabulary, find_cut, train
from lingua_flax.data.cleaning.mending import mend, steps
from lingua_flax.data.cleaning.readers import Row
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.text_files import chunks
from lingua_flax.host.errors import UserError
from lingua_flax.host.workers import WorkerPool, worker_death_as_run_error
from lingua_flax.options.schema import CleaningOptions

T = TypeVar("T")
CHUNK = 4096  # pairs
SAMPLED = 1000  # pairs that tell languages and scripts
SAMPLED_ALIGNMENTS = 60_000  # pairs
MIN_ALIGNED = 200  # pairs from which word alignments can be learned
EXAMPLES = 3
# Why a pair is left out; mostly the name of the option that turns the check off.
REASONS = ("", "unreadable", *FAULTS, "shifts", "duplicates", "max_targets", "max_deviation", "misaligned")


class Tally:
    """How many pairs something was done to, by name, with the first examples."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(self, name: str, **example: Any) -> None:
        self.counts[name] += 1
        if len(self.examples[name]) < EXAMPLES:
            self.examples[name].append(example)

    def update(self, later: Tally) -> None:
        self.counts += later.counts
        for name, examples in later.examples.items():
            self.examples[name] += examples[: EXAMPLES - len(self.examples[name])]


@dataclass
class Report:
    """What was found in a corpus.

    Attributes:
      mended, left_out: by step, and by reason.
      correlation: of the logarithms of the lengths of both sides.
      shifts: parts in which the sides do not match.
      cut: the score below which a pair is misaligned, if that can be told.
      notes: what was not checked, and why.
    """

    pairs: int
    correlation: float
    shifts: Sequence[Shift]
    cut: float | None
    notes: list[str]
    mended: Tally = field(default_factory=Tally)
    left_out: Tally = field(default_factory=Tally)


class Examined(NamedTuple):
    """The pairs of a chunk after the first pass: one JSON array per line, the index of REASONS of each, and so on."""

    rows: bytes
    reasons: np.ndarray
    lengths: np.ndarray
    digests: np.ndarray
    mended: Tally


class Layout(NamedTuple):
    """How pairs are written: as "jsonl" or "tsv", with these keys; and the name of the file for rejected pairs."""

    kind: str
    keys: tuple[str, str]
    file: str


def clean(
    rows: Iterable[Row],
    options: CleaningOptions,
    languages: tuple[str, str],
    layout: Layout,
    write: Callable[[bytes, bytes], object],
    *,
    folder: Path | None = None,
    processes: int = 1,
    advance: Callable[[float], object] = lambda fraction: None,
) -> Report:
    """Cleans a corpus.

    Args:
      languages: of source and target; "" if unknown.
      write: is given the lines of pairs that are kept, and of those that are not, in order.
      folder: for temporary files; by default that of the system.
      advance: is told which fraction of the second pass has been done since the last call.

    Raises UserError if none of the first rows can be read.
    """
    rows = iter(rows)
    first = list(itertools.islice(rows, CHUNK))
    readable = [row for row in first if not row.fault][:SAMPLED]
    if not readable:
        raise UserError(f"line {first[0].line}: {first[0].fault}; no row is better" if first else "no pairs in it")
    names = steps(options)
    sample = [Pair(mend(row.source, names)[0], mend(row.target, names)[0]) for row in readable]
    expected, notes = expect(sample, languages, options)
    several = processes > 1 and len(first) == CHUNK
    with (
        tempfile.TemporaryDirectory(prefix=".cleaning-", dir=folder) as temporary,
        WorkerPool(processes) if several else nullcontext() as pool,
        (Path(temporary) / "rows").open("w+b") as stored,
    ):
        tally, parts, sizes = Tally(), [], []
        tasks = ((chunk, options, expected) for chunk in itertools.chain([first], chunks(rows, CHUNK)))
        for examined in _in_order(pool, processes, examine, tasks):
            stored.write(examined.rows)
            sizes.append(len(examined.rows))
            tally.update(examined.mended)
            parts.append((examined.reasons, examined.lengths, examined.digests))
        reasons, lengths, keys = map(np.concatenate, zip(*parts, strict=True))
        del parts
        report = _judge(reasons, lengths, keys, options, notes)
        report.mended = tally
        model, scores = None, np.full(len(reasons), np.nan, np.float32)
        if options.misaligned:
            model = _align(stored, sizes, reasons, scores, report, Path(temporary))
        stored.seek(0)
        begins = range(0, len(reasons), CHUNK)
        blocks = (
            (
                stored.read(size),
                reasons[begin : begin + CHUNK],
                scores[begin : begin + CHUNK],
                model,
                report.cut,
                layout,
            )
            for begin, size in zip(begins, sizes, strict=True)
        )
        for count, kept, rejected, left_out in _in_order(pool, processes, finish, blocks):
            write(kept, rejected)
            report.left_out.update(left_out)
            advance(count / report.pairs)
    return report


def _in_order(pool: WorkerPool | None, processes: int, task: Callable[..., T], tasks: Iterable[Any]) -> Iterator[T]:
    """Yields the results of a task for each of the tuples of arguments; a few run at the same time."""
    if not pool:
        yield from itertools.starmap(task, tasks)
        return
    running: deque[Future[T]] = deque()
    with worker_death_as_run_error("cleans"):
        for arguments in tasks:
            running.append(pool.submit(task, *arguments))
            if len(running) > 2 * processes:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def examine(rows: Sequence[Row], options: CleaningOptions, expected: Expected) -> Examined:
    """Mends the pairs of a chunk and finds the faults that each has by itself."""
    names, mended = steps(options), Tally()
    lines, reasons, lengths, keys = [], [], [], []
    for row in rows:
        pair, reason = Pair(row.source, row.target), "unreadable"
        if not row.fault:
            if row.garbled:
                mended.add("encoding", line=row.line, before=row.garbled, after=f"{row.source} | {row.target}")
            pair, reason = _mended(row, names, mended), ""
            reason = find_fault(pair, options, expected)
        lines.append(json.dumps([row.line, *pair, row.fault], ensure_ascii=False))
        reasons.append(REASONS.index(reason))
        lengths.append((0, 0) if row.fault else tuple(map(len, pair)))
        keys.append(digests(pair))
    content = "".join(f"{line}\n" for line in lines).encode()
    arrays = (np.array(reasons, np.uint8), np.array(lengths, np.int32), np.array(keys, np.uint64))
    return Examined(content, *arrays, mended)


def _mended(row: Row, names: Sequence[str], tally: Tally) -> Pair:
    sides = []
    changes: dict[str, tuple[str, str]] = {}
    for text in (row.source, row.target):
        mended, changed = mend(text, names)
        changes |= dict.fromkeys(changed, (text, mended))
        sides.append(mended)
    for name, (before, after) in changes.items():
        tally.add(name, line=row.line, before=before, after=after)
    return Pair(*sides)


def _judge(
    reasons: np.ndarray, lengths: np.ndarray, keys: np.ndarray, options: CleaningOptions, notes: list[str]
) -> Report:
    """Fills in the reasons that follow from lengths and digests of all pairs, and returns the report of these."""

    def reject(rows: np.ndarray, reason: str) -> None:
        reasons[rows] = REASONS.index(reason)

    readable = reasons != REASONS.index("unreadable")
    full = readable & (lengths.min(axis=1) > 0)
    shifts = find_shifts(lengths)
    report = Report(len(reasons), correlation(lengths[full]) if full.any() else 0.0, shifts, None, notes)
    if options.shifts:
        for shift in shifts:
            if shift.by != UNRELATED:
                rows = np.arange(shift.begin, shift.end)
                reject(rows[readable[rows]], "shifts")
    kept = np.flatnonzero(reasons == 0)
    if options.duplicates != "none":
        for column in range(1 + (options.duplicates == "similar")):
            reject(kept[occurrences(keys[kept, column]) > 0], "duplicates")
            kept = np.flatnonzero(reasons == 0)
    if options.max_targets:
        reject(kept[occurrences(keys[kept, 2]) >= options.max_targets], "max_targets")
        kept = np.flatnonzero(reasons == 0)
    if options.max_deviation and len(kept):
        reject(kept[deviations(lengths[kept]) > options.max_deviation], "max_deviation")
    return report


def _align(
    stored: BinaryIO, sizes: list[int], reasons: np.ndarray, scores: np.ndarray, report: Report, folder: Path
) -> Path | None:
    """Trains the lexical model on a sample, fills in its scores, and returns the file of the model.

    Returns None, with a note, if the corpus does not tell which pairs match.
    """
    kept = np.flatnonzero(reasons == 0)
    if len(kept) < MIN_ALIGNED:
        report.notes.append(f"misaligned pairs are not looked for in fewer than {MIN_ALIGNED} pairs")
        return None
    chosen = kept[np.unique(np.linspace(0, len(kept) - 1, SAMPLED_ALIGNMENTS, dtype=np.int64))]
    stored.seek(0)
    pairs = []
    for begin, size in zip(itertools.count(0, CHUNK), sizes, strict=False):
        lines = stored.read(size).split(b"\n")
        wanted = chosen[np.searchsorted(chosen, begin) : np.searchsorted(chosen, begin + CHUNK)]
        pairs += [Pair(*json.loads(lines[index - begin])[1:3]) for index in wanted.tolist()]
    model, trained, own, mismatched = train(pairs)
    report.cut = find_cut(own, mismatched)
    if report.cut is None:
        report.notes.append(
            "misaligned pairs are not left out: the words of the two sides hardly tell which pairs match"
        )
        return None
    scores[chosen[trained]] = own
    path = folder / "model.npz"
    np.savez(path, *model.source, *model.target, model.keys, model.of_target, model.of_source)
    return path


@functools.lru_cache(maxsize=1)
def _load(path: Path) -> LexicalModel:
    with np.load(path) as file:
        arrays = [file[name] for name in file.files]
    return LexicalModel(Vocabulary(*arrays[:2]), Vocabulary(*arrays[2:4]), *arrays[4:])


def finish(
    content: bytes, reasons: np.ndarray, scores: np.ndarray, model: Path | None, cut: float | None, layout: Layout
) -> tuple[int, bytes, bytes, Tally]:
    """Scores the pairs of a chunk that have no score, and returns their number, the lines to write, and the reasons."""
    rows = [json.loads(line) for line in content.splitlines()]
    reasons, scores = reasons.copy(), scores.copy()
    if model:
        unknown = np.flatnonzero((reasons == 0) & np.isnan(scores))
        scores[unknown] = _load(model).score([Pair(*rows[index][1:3]) for index in unknown])
        reasons[(reasons == 0) & (scores < cut)] = REASONS.index("misaligned")
    kept, rejected, left_out = [], [], Tally()
    for (line, source, target, fault), reason, score in zip(rows, reasons.tolist(), scores.tolist(), strict=True):
        fields = dict(zip(layout.keys, (source, target), strict=True))
        if score == score:
            fields["alignment"] = round(score, 3)
        if not reason:
            kept.append(f"{source}\t{target}" if layout.kind == "tsv" else json.dumps(fields, ensure_ascii=False))
            continue
        fields |= {"file": layout.file, "line": line, "reason": REASONS[reason]} | ({"detail": fault} if fault else {})
        rejected.append(json.dumps(fields, ensure_ascii=False))
        left_out.add(REASONS[reason], **{name: value for name, value in fields.items() if name != "reason"})
    to_write, to_reject = ("".join(f"{line}\n" for line in lines).encode() for lines in (kept, rejected))
    return len(rows), to_write, to_reject, left_out
