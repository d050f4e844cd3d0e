"""Cleans a corpus of any size in two passes: first what each pair shows by itself, then what follows from all of them.

The first pass stores mended pairs in a temporary file; 41 bytes for each stay in memory, by which all are compared.
Chunks of pairs are processed independently, in any number of processes.
"""

import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from lingua_flax.data.cleaning import corpus_filters
from lingua_flax.data.cleaning.lexical_scores import LexicalModel, find_cut, train
from lingua_flax.data.cleaning.pair_filters import FAULTS, Expected, expected_of, find_fault, has_other_numbers, mend
from lingua_flax.data.cleaning.readers import Row
from lingua_flax.data.cleaning.report import Found, Report, merge
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.corpora.pair_files import SIDES, format_of, json_keys
from lingua_flax.data.text_files import chunks, encode_lines
from lingua_flax.host.errors import UserError
from lingua_flax.host.files import new_file
from lingua_flax.host.workers import KILLED, WorkerPool, in_order
from lingua_flax.options.schema import CleaningOptions

T = TypeVar("T")
CHUNK = 4096  # pairs
SAMPLED = 1000  # pairs that tell languages and scripts
SAMPLED_ALIGNMENTS = 60_000  # pairs
MIN_ALIGNED = 200  # pairs from which word alignments can be learned
# Why a pair is left out, mostly by the option that turns the check off.
REASONS = ("", "unreadable", *FAULTS, "shifts", "duplicates", "max_targets", "max_deviation", "misaligned", "numbers")
# What stays in memory of a pair: the index of the reason among REASONS, and digests of the pair and of its source.
FACTS = np.dtype([("line", "u4"), ("reason", "u1"), ("lengths", "i4", 2), ("digests", "u8", 2), ("score", "f4")])


def clean(
    rows: Iterable[Row],
    options: CleaningOptions,
    languages: tuple[str, str],
    *,
    file: str = "",
    output: Path | None = None,
    rejected: Path | None = None,
    advance: Callable[[float], object] = lambda share: None,
    processes: int = 1,
) -> Report:
    """Cleans a corpus in two languages, "" if unknown; raises UserError if none of the first rows is a pair.

    Args:
      file: what rejected pairs have as their file.
      output: for the pairs that are kept, by its name as TSV or JSON lines; it and `rejected` appear at the end.
      rejected: for the other pairs, as JSON lines.
      advance: is told which share of the pairs has been written since it was last called.
    """
    rows = iter(rows)
    first = list(itertools.islice(rows, CHUNK))
    report = Report()
    sample = [Pair(row.source, row.target) for row in first if not row.fault][:SAMPLED]
    if not sample:
        reason = f" that can be read (line {first[0].line}: {first[0].fault})" if first else ""
        raise UserError(f"{file or 'the corpus'} has no pairs{reason}")
    expected = expected_of(sample, options, languages, report.notes)
    if_killed = KILLED.format("cleans")
    with (
        WorkerPool(processes, if_killed) if processes > 1 and len(first) == CHUNK else nullcontext() as pool,
        tempfile.TemporaryFile(dir=output.absolute().parent if output else None) as stored,
        new_file(output) if output else nullcontext() as kept_file,
        new_file(rejected) if rejected else nullcontext() as rejected_file,
    ):
        facts = bytearray()
        examining = ((chunk, expected) for chunk in itertools.chain([first], chunks(rows, CHUNK)))
        for lines, facts_of_chunk, mended in _in_order(pool, processes, examine, examining):
            stored.write(lines)
            facts += facts_of_chunk.tobytes()
            merge(report.mended, mended)
        pairs = np.frombuffer(facts, FACTS)
        parts = [pairs[begin : begin + CHUNK] for begin in range(0, len(pairs), CHUNK)]
        _judge(pairs, options, report)
        model = _train(stored, pairs, options, report) if options.misaligned else None
        stored.seek(0)
        about = (model, report.misaligned_below, report.numbers_below, languages, file, output, rejected)
        finishing = ((chunk, part, *about) for chunk, part in zip(chunks(stored, CHUNK), parts, strict=True))
        for part, (*contents, left_out) in zip(parts, _in_order(pool, processes, finish, finishing), strict=True):
            for opened, content in zip((kept_file, rejected_file), contents, strict=True):
                if opened:
                    opened.write(content)
            merge(report.left_out, left_out)
            advance(len(part) / len(pairs))
    report.pairs = len(pairs)
    report.kept = report.pairs - sum(found.pairs for found in report.left_out.values())
    return report


def _in_order(pool: WorkerPool | None, processes: int, task: Callable[..., T], tasks: Iterable[Any]) -> Iterator[T]:
    if not pool:
        return itertools.starmap(task, tasks)
    return in_order(lambda arguments: pool.submit(task, *arguments), tasks, 2 * processes)


def examine(rows: Sequence[Row], expected: Expected) -> tuple[bytes, np.ndarray, dict[str, Found]]:
    """Returns lines of JSON with mended pairs, FACTS with the faults that each shows by itself, and what was mended."""
    mended: dict[str, Found] = {}
    lines, facts = [], []
    for row in rows:
        pair, reason, lengths = Pair(row.source, row.target), "unreadable", (0, 0)
        if not row.fault:
            (source, of_source), (target, of_target) = (mend(text, expected.options) for text in pair)
            changes = {"encoding": (row.garbled, " | ".join(pair))} if row.garbled else {}
            changes |= dict.fromkeys(of_source, (pair.source, source)) | dict.fromkeys(of_target, (pair.target, target))
            for name, (before, after) in changes.items():
                merge(mended, {name: Found(1, [{"line": row.line, "before": before, "after": after}])})
            pair = Pair(source, target)
            reason, lengths = find_fault(pair, expected), (len(source), len(target))
        lines.append(json.dumps([row.line, *pair, row.fault], ensure_ascii=False))
        facts.append((row.line, REASONS.index(reason), lengths, corpus_filters.digests(pair), math.nan))
    return encode_lines(lines), np.array(facts, FACTS), mended


def _judge(pairs: np.ndarray, options: CleaningOptions, report: Report) -> None:
    """Fills in the reasons that follow from the lengths and digests of all pairs."""
    reasons, lengths, repeated, lines = (pairs[name] for name in ("reason", "lengths", "digests", "line"))
    full = lengths.min(axis=1) > 0
    if full.any():
        report.length_correlation = corpus_filters.correlation(lengths[full])
        for first, last, by in corpus_filters.find_shifts(lengths):
            report.shifts.append(corpus_filters.Shift(int(lines[first - 1]), int(lines[last - 1]), by))
            if options.shifts and by != corpus_filters.UNRELATED:
                part = reasons[first - 1 : last]
                part[part != REASONS.index("unreadable")] = REASONS.index("shifts")

    def leave_out(reason: str, find: Callable[[np.ndarray], np.ndarray]) -> None:
        if len(kept := np.flatnonzero(reasons == 0)):
            reasons[kept[find(kept)]] = REASONS.index(reason)

    if options.duplicates:
        leave_out("duplicates", lambda kept: corpus_filters.occurrences(repeated[kept, 0]) > 0)
    if options.max_targets:
        leave_out("max_targets", lambda kept: corpus_filters.occurrences(repeated[kept, 1]) >= options.max_targets)
    if options.max_deviation:
        leave_out("max_deviation", lambda kept: corpus_filters.deviations(lengths[kept]) > options.max_deviation)


def _train(stored: BinaryIO, pairs: np.ndarray, options: CleaningOptions, report: Report) -> LexicalModel | None:
    """Trains on a sample, and fills in its scores and the cuts; returns None if the corpus does not tell."""
    kept = np.flatnonzero(pairs["reason"] == 0)
    if len(kept) < MIN_ALIGNED:
        report.notes.append(f"words are not compared, since fewer than {MIN_ALIGNED} pairs are left")
        return None
    chosen = kept[np.unique(np.linspace(0, len(kept) - 1, SAMPLED_ALIGNMENTS, dtype=np.int64))]
    stored.seek(0)
    lines = itertools.compress(stored, np.isin(np.arange(len(pairs)), chosen))
    model, trained, own, mismatched = train([Pair(*json.loads(line)[1:3]) for line in lines])
    report.misaligned_below = report.numbers_below = cut = find_cut(own, mismatched)
    if cut is None:
        report.notes.append("words are not compared, since those of both sides hardly tell which pairs match")
        return None
    pairs["score"][chosen[trained]] = own
    if options.numbers:
        report.numbers_below = (cut + float(np.median(own[own >= cut]))) / 2
    return model


def finish(
    lines: Sequence[bytes],
    pairs: np.ndarray,
    model: LexicalModel | None,
    cut: float,
    numbers_cut: float,
    languages: tuple[str, str],
    file: str,
    output: Path | None,
    rejected: Path | None,
) -> tuple[bytes, bytes, dict[str, Found]]:
    """Scores the pairs of a chunk that have no score yet; returns what both files get, and what was left out."""
    rows = list(map(json.loads, lines))
    reasons, scores = pairs["reason"].copy(), pairs["score"].copy()
    if model:
        unknown = np.flatnonzero((reasons == 0) & np.isnan(scores))
        scores[unknown] = model.score([Pair(*rows[index][1:3]) for index in unknown])
        reasons[(reasons == 0) & (scores < cut)] = REASONS.index("misaligned")
        for index in np.flatnonzero((reasons == 0) & (scores < numbers_cut)):
            if has_other_numbers(Pair(*rows[index][1:3])):
                reasons[index] = REASONS.index("numbers")
    is_table = output and format_of(output) == ".tsv"
    source_key, target_key = SIDES if is_table else json_keys(languages)
    kept, others = [], []
    left_out: dict[str, Found] = {}
    for (line, source, target, fault), reason, score in zip(rows, reasons.tolist(), scores.tolist(), strict=True):
        fields: dict[str, Any] = {source_key: source, target_key: target}
        if not math.isnan(score):
            fields["alignment"] = round(score, 3)
        if not reason:
            kept.append(f"{source}\t{target}" if is_table else json.dumps(fields, ensure_ascii=False))
            continue
        example = {"line": line, "source": source, "target": target, "detail": fault or fields.get("alignment", "")}
        merge(left_out, {REASONS[reason]: Found(1, [example])})
        fields |= {"file": file, "line": line, "reason": REASONS[reason], "detail": fault}
        others.append(json.dumps(fields, ensure_ascii=False))
    return encode_lines(kept, output or ""), encode_lines(others, rejected or ""), left_out
