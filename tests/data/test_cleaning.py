"""Whole corpora are cleaned: in parts and processes, with lines and counts, and with faults planted in Multi30k."""

import json
import tempfile
from pathlib import Path

import pytest

from lingua_flax.data.cleaning import pipeline
from lingua_flax.data.cleaning.readers import Row
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import CleaningOptions
from tests.data.planted_faults import MENDED, measure, read_multi30k
from tests.helpers.pairs import WORDS, lengths_of, made_up_rows


@pytest.fixture
def run_pipeline(tmp_path):
    """Returns a function that returns the report, and the lines of the files with kept and rejected pairs."""

    def run(rows, **options):
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            files = {name: Path(folder, f"{name}.jsonl") for name in ("output", "rejected")}
            report = pipeline.clean(rows, CleaningOptions(language=False), ("", ""), **files, **options)
            return report, *(list(map(json.loads, path.read_bytes().splitlines())) for path in files.values())

    return run


def test_result_depends_neither_on_processes_nor_on_chunks(run_pipeline, monkeypatch):
    rows = made_up_rows(2000)
    rows[700] = rows[700]._replace(target=rows[1700].target)
    rows[800] = rows[800]._replace(target=rows[799].target, source=rows[799].source)
    whole = run_pipeline(rows)
    monkeypatch.setattr(pipeline, "CHUNK", 500)
    for processes in (1, 2):
        assert run_pipeline(rows, processes=processes) == whole
    report, kept, rejected = whole
    assert {name: found.pairs for name, found in report.left_out.items()} == {"misaligned": 1, "duplicates": 1}
    assert [pair["line"] for pair in rejected] == [701, 801]
    assert len(kept) == report.kept == 1998


def test_pairs_beyond_the_sample_are_scored(run_pipeline, monkeypatch):
    monkeypatch.setattr(pipeline, "SAMPLED_ALIGNMENTS", 1000)
    rows, wrong = made_up_rows(3000), set(range(10, 3000, 100))
    rows = [row._replace(target=rows[i - 5].target) if i in wrong else row for i, row in enumerate(rows)]
    report, _, rejected = run_pipeline(rows)
    found = {pair["line"] - 1 for pair in rejected}
    assert len(found & wrong) >= 28
    assert len(found - wrong) <= 15
    assert report.misaligned_below


def test_examples_and_counts_are_those_of_the_first_pairs(run_pipeline):
    rows = [Row(i, f"bana  {WORDS[i]}", f"lorek {WORDS[-i]}", garbled="x" if i == 9 else "") for i in range(1, 10)]
    many = [Row(10 + i, "tena gora", f"mit{chr(97 + i)} sul") for i in range(15)]
    report, *_ = run_pipeline([*rows, *many, Row(25, "raw", "", "torn")])
    assert report.mended["whitespace"].pairs == 9
    assert [example["line"] for example in report.mended["whitespace"].examples] == [1, 2, 3]
    assert report.mended["encoding"].examples == [{"line": 9, "before": "x", "after": f"{rows[8][1]} | {rows[8][2]}"}]
    assert report.left_out["unreadable"].examples == [{"line": 25, "source": "raw", "target": "", "detail": "torn"}]
    assert report.left_out["max_targets"].pairs == 5
    assert report.left_out["max_targets"].examples[0]["line"] == 20
    assert (report.pairs, report.kept) == (25, 19)


def test_shifts_have_the_lines_of_the_file(run_pipeline):
    """Every row of this file begins two lines after the one before, on line 3."""
    texts = [("a" * max(1, int(s)), "b" * max(1, int(t))) for s, t in lengths_of(lambda i: i >= 1000, 2000)]
    rows = [Row(3 + 2 * number, *pair) for number, pair in enumerate(texts)]
    report, *_ = run_pipeline(rows)
    ((first, last, by),) = report.shifts
    assert abs(first - 2003) <= 40
    assert (last, by) == (rows[-1].line, 1)
    assert report.left_out["shifts"].examples[0]["line"] == first


def test_corpora_without_pairs_are_refused(run_pipeline):
    for rows in ([], [Row(1, "x", "", "torn")]):
        with pytest.raises(UserError, match="has no pairs"):
            run_pipeline(rows)


# Faults planted in Multi30k.


def check_found(corpus, kinds, share, least):
    planted, found, others, lost = measure(corpus, "de", kinds, share, 31)
    assert found >= least * planted
    assert lost <= 0.01 * others


def test_random_targets_are_found(multi30k):
    check_found(read_multi30k(multi30k, "de", 4000), ["random target"], 0.05, 0.95)


def test_mended_lines_are_as_before(multi30k):
    """Misaligned and repeated ones among them are left out."""
    check_found(read_multi30k(multi30k, "de", 1600), list(MENDED), 0.3, 0.97)


@pytest.mark.slow
def test_faults_are_found_in_the_whole_corpus(multi30k):
    corpus = read_multi30k(multi30k, "de")
    check_found(corpus, ["random target"], 0.2, 0.95)
    for kind in ("swapped sides", "third language"):
        check_found(corpus, [kind], 0.05, 0.9)
