"""Cleans a corpus of any size in two passes: first what each pair shows by itself, then what follows from all of them.

The first pass mends pairs, finds their own faults, and stores them in a temporary file; 45 bytes for each pair stay in
memory. Then the lengths and digests of all pairs, and word alignments of a sample, decide about others. The second pass
scores the pairs and hands them out. Chunks of pairs are processed independently, in any number of processes.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from lingua_flax.data.cleaning import filters
from lingua_flax.data.cleaning.corpus_alignment import UNRELATED, Shift, correlation, find_shifts
from lingua_flax.data.cleaning.corpus_filters import deviations, digests, occurrences
from lingua_flax.data.cleaning.lexical_scores import LexicalModel, find_cut, train
from lingua_flax.data.cleaning.mending import mend, steps
from lingua_flax.data.cleaning.readers import Row
from lingua_flax.data.cleaning.report import Found, Report, merge
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.corpora.pair_files import SIDES
from lingua_flax.data.text_files import chunks
from lingua_flax.host.errors import UserError
from lingua_flax.host.workers import WorkerPool, worker_death_as_run_error
from lingua_flax.options.schema import CleaningOptions

T = TypeVar("T")
CHUNK = 4096  # pairs
SAMPLED = 1000  # pairs that tell languages and scripts
SAMPLED_ALIGNMENTS = 60_000  # pairs
MIN_ALIGNED = 200  # pairs from which word alignments can be learned
# Why a pair is left out, mostly by the option that turns the check off; an array of them has their indices.
REASONS = ("", "unreadable", *filters.FAULTS, "shifts", "duplicates", "max_targets", "max_deviation", "misaligned")


class Examined(NamedTuple):
    """The pairs of a chunk after the first pass: a JSON array on each line, and arrays with an entry for each."""

    content: bytes
    lines: np.ndarray
    reasons: np.ndarray
    lengths: np.ndarray
    digests: np.ndarray
    mended: dict[str, Found]


class Finished(NamedTuple):
    """The pairs of a chunk after the second pass, as lines of text, and their share of the corpus."""

    kept: bytes
    rejected: bytes
    share: float
    left_out: dict[str, Found]


def clean(
    rows: Iterable[Row],
    options: CleaningOptions,
    languages: Sequence[str],
    write: Callable[[Finished], object] = lambda finished: None,
    *,
    keys: Sequence[str] = SIDES,
    file: str = "",
    folder: Path | None = None,
    processes: int = 1,
) -> Report:
    """Cleans a corpus.

    Args:
      languages: of source and target; "" if unknown.
      write: is given the pairs, in order.
      keys: of source and target in JSON objects; without keys, pairs that are kept are lines of TSV.
      file: what rejected pairs have as their file.
      folder: for a temporary file; by default that of the system.

    Raises UserError if none of the first rows is a pair.
    """
    rows = iter(rows)
    first = list(itertools.islice(rows, CHUNK))
    report = Report()
    expected = _expected([row for row in first if not row.fault][:SAMPLED], options, languages, report.notes)
    if not expected:
        reason = f" that can be read (line {first[0].line}: {first[0].fault})" if first else ""
        raise UserError(f"{file or 'the corpus'} has no pairs{reason}")
    with (
        WorkerPool(processes) if processes > 1 and len(first) == CHUNK else nullcontext() as pool,
        tempfile.TemporaryFile(dir=folder) as stored,
    ):
        sizes, arrays = [], []
        tasks = ((chunk, expected) for chunk in itertools.chain([first], chunks(rows, CHUNK)))
        for examined in _in_order(pool, processes, examine, tasks):
            sizes.append(stored.write(examined.content))
            arrays.append(examined[1:5])
            merge(report.mended, examined.mended)
        numbers, reasons, lengths, repeated = map(np.concatenate, zip(*arrays, strict=True))
        del arrays
        _judge(reasons, lengths, repeated, options, report)
        report.shifts = [Shift(int(numbers[a - 1]), int(numbers[b - 1]), by) for a, b, by in report.shifts]
        scores = np.full(len(reasons), np.nan, np.float32)
        model = _train(stored, sizes, reasons, scores, report) if options.misaligned else None
        stored.seek(0)
        known = zip(sizes, *(np.split(each, range(CHUNK, len(each), CHUNK)) for each in (reasons, scores)), strict=True)
        about = (model, report.misaligned_below, keys, file, 1 / len(reasons))
        for finished in _in_order(
            pool, processes, finish, ((stored.read(size), *each, *about) for size, *each in known)
        ):
            write(finished)
            merge(report.left_out, finished.left_out)
    report.pairs = len(reasons)
    report.kept = report.pairs - sum(found.pairs for found in report.left_out.values())
    return report


def _expected(
    rows: Sequence[Row], options: CleaningOptions, languages: Sequence[str], notes: list[str]
) -> filters.Expected | None:
    """Returns what the pairs of a corpus that begins with these rows should be like, and adds to the notes."""
    if not rows:
        return None
    names, checked, scripts = steps(options), ["", ""], []
    for index, (side, language) in enumerate(zip(("source", "target"), languages, strict=True)):
        texts = [mend((row.source, row.target)[index], names)[0] for row in rows]
        scripts.append(filters.frequent_scripts(texts) if options.script else None)
        if options.language:
            checked[index] = filters.known_language(language) if language else filters.frequent_language(texts)
            if not checked[index]:
                notes.append(f"the {side} language, {language or 'which is not given'}, is unknown and not checked")
            elif not language:
                notes.append(f"the {side} language is {checked[index]}, judging by the first pairs")
    return filters.Expected(options, checked, scripts)


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


def examine(rows: Sequence[Row], expected: filters.Expected) -> Examined:
    """Mends the pairs of a chunk and finds the faults that each shows by itself."""
    names = steps(expected.options)
    mended: dict[str, Found] = {}
    lines, reasons, lengths, repeated = [], [], [], []
    numbers = np.array([row.line for row in rows], np.uint32)
    for row in rows:
        pair, reason = Pair(row.source, row.target), "unreadable"
        if not row.fault:
            sides = [mend(text, names) for text in pair]
            changes = {"encoding": (row.garbled, " | ".join(pair))} if row.garbled else {}
            for before, (after, changed) in zip(pair, sides, strict=True):
                changes |= dict.fromkeys(changed, (before, after))
            for name, (before, after) in changes.items():
                merge(mended, {name: Found(1, [{"line": row.line, "before": before, "after": after}])})
            pair = Pair(sides[0][0], sides[1][0])
            reason = filters.find_fault(pair, expected)
        lines.append(json.dumps([row.line, *pair, row.fault], ensure_ascii=False) + "\n")
        reasons.append(REASONS.index(reason))
        lengths.append((0, 0) if row.fault else (len(pair.source), len(pair.target)))
        repeated.append(digests(pair))
    arrays = (numbers, np.array(reasons, np.uint8), np.array(lengths, np.int32), np.array(repeated, np.uint64))
    return Examined("".join(lines).encode(), *arrays, mended)


def _judge(
    reasons: np.ndarray, lengths: np.ndarray, repeated: np.ndarray, options: CleaningOptions, report: Report
) -> None:
    """Fills in the reasons that follow from the lengths and digests of all pairs."""
    full = lengths.min(axis=1) > 0
    if full.any():
        report.length_correlation = correlation(lengths[full])
        report.shifts = find_shifts(lengths)
    for shift in report.shifts:
        if options.shifts and shift.by != UNRELATED:
            part = reasons[shift.first - 1 : shift.last]
            part[part != REASONS.index("unreadable")] = REASONS.index("shifts")

    def reject(reason: str, find: Callable[[np.ndarray], np.ndarray]) -> None:
        kept = np.flatnonzero(reasons == 0)
        if len(kept):
            reasons[kept[find(kept)]] = REASONS.index(reason)

    if options.duplicates != "none":
        reject("duplicates", lambda kept: occurrences(repeated[kept, 0]) > 0)
    if options.duplicates == "similar":
        reject("duplicates", lambda kept: occurrences(repeated[kept, 1]) > 0)
    if options.max_targets:
        reject("max_targets", lambda kept: occurrences(repeated[kept, 2]) >= options.max_targets)
    if options.max_deviation:
        reject("max_deviation", lambda kept: deviations(lengths[kept]) > options.max_deviation)


def _train(
    stored: BinaryIO, sizes: Sequence[int], reasons: np.ndarray, scores: np.ndarray, report: Report
) -> LexicalModel | None:
    """Trains on a sample, and fills in its scores and the cut; returns None if the corpus does not tell."""
    kept = np.flatnonzero(reasons == 0)
    if len(kept) < MIN_ALIGNED:
        report.notes.append(f"words are not compared, since fewer than {MIN_ALIGNED} pairs are left")
        return None
    chosen = kept[np.unique(np.linspace(0, len(kept) - 1, SAMPLED_ALIGNMENTS, dtype=np.int64))]
    stored.seek(0)
    pairs: list[Pair] = []
    for begin, size in zip(itertools.count(0, CHUNK), sizes, strict=False):
        lines = stored.read(size).split(b"\n")
        wanted = chosen[np.searchsorted(chosen, begin) : np.searchsorted(chosen, begin + CHUNK)]
        pairs += [Pair(*json.loads(lines[index - begin])[1:3]) for index in wanted.tolist()]
    model, trained, own, mismatched = train(pairs)
    report.misaligned_below = find_cut(own, mismatched)
    if report.misaligned_below is None:
        report.notes.append("words are not compared, since those of both sides hardly tell which pairs match")
        return None
    scores[chosen[trained]] = own
    return model


def finish(
    content: bytes,
    reasons: np.ndarray,
    scores: np.ndarray,
    model: LexicalModel | None,
    cut: float,
    keys: Sequence[str],
    file: str,
    share: float,
) -> Finished:
    """Scores the pairs of a chunk that have no score yet, and writes all of them as text."""
    rows = [json.loads(line) for line in content.splitlines()]
    reasons, scores = reasons.copy(), scores.copy()
    if model:
        unknown = np.flatnonzero((reasons == 0) & np.isnan(scores))
        scores[unknown] = model.score([Pair(*rows[index][1:3]) for index in unknown])
        reasons[(reasons == 0) & (scores < cut)] = REASONS.index("misaligned")
    source_key, target_key = keys or SIDES
    kept, rejected = [], []
    left_out: dict[str, Found] = {}
    for (line, source, target, fault), reason, score in zip(rows, reasons.tolist(), scores.tolist(), strict=True):
        fields = {source_key: source, target_key: target}
        if score == score:
            fields["alignment"] = round(score, 3)
        if not reason:
            kept.append(json.dumps(fields, ensure_ascii=False) if keys else f"{source}\t{target}")
            continue
        fields |= {"file": file, "line": line, "reason": REASONS[reason], "detail": fault}
        rejected.append(json.dumps(fields, ensure_ascii=False))
        example = {"line": line, "source": source, "target": target, "detail": fault or fields.get("alignment", "")}
        merge(left_out, {REASONS[reason]: Found(1, [example])})
    to_keep, to_reject = ("".join(f"{line}\n" for line in lines).encode() for lines in (kept, rejected))
    return Finished(to_keep, to_reject, share * len(rows), left_out)
