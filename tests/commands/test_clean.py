"""The command clean as users run it, and the warnings of training and of the data report about the same faults."""

from __future__ import annotations

import csv
import gzip
import json
import random

import pytest

from tests.data.planted_faults import read_multi30k
from tests.helpers.pairs import made_up_rows


@pytest.fixture
def files(tmp_path):
    """Returns two text files with a repeated pair, an empty side, mojibake and a line in windows-1252."""
    rows = made_up_rows(300)
    source, target = ([list(side) for side in zip(*rows, strict=True)][index] for index in (1, 2))
    source[10], target[10] = source[9], target[9]
    target[20] = ""
    source[30] = f"<b>{source[30]}</b> lorÃ©k &amp; mit"
    lines = [text.encode() for text in target]
    lines[40] = "größe ".encode("cp1252") + lines[40]
    (tmp_path / "a.en").write_text("\n".join(source) + "\n", encoding="utf-8")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    return tmp_path


OPTIONS = ["--source-language", "en", "--target-language", "de", "--language", "False"]


def clean(run, folder, *arguments, **options):
    return run("clean", "a.en", "a.de.gz", *OPTIONS, *arguments, cwd=folder, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_clean_writes_pairs_rejected_pairs_and_a_report(run, files):
    before = contents(files)
    done = clean(run, files, "--output", "c.jsonl", "--rejected", "r.jsonl", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    assert {name: content for name, content in contents(files).items() if name in before} == before
    assert set(contents(files)) - set(before) == {"c.jsonl", "r.jsonl", "report.json"}
    kept = [json.loads(line) for line in (files / "c.jsonl").read_text().splitlines()]
    rejected = [json.loads(line) for line in (files / "r.jsonl").read_text().splitlines()]
    assert len(kept) + len(rejected) == 300
    assert all(set(pair) == {"en", "de", "alignment"} for pair in kept)
    assert any(pair["en"].endswith("lorék & mit") for pair in kept)
    assert any(pair["de"].startswith("größe ") for pair in kept)
    reasons = {row["line"]: row["reason"] for row in rejected}
    assert (reasons[11], reasons[21]) == ("duplicates", "empty")
    assert {row["file"] for row in rejected} == {"a.en"}
    report = json.loads((files / "report.json").read_text())
    assert (report["pairs"], report["kept"], report["warnings"]) == (300, len(kept), [])
    assert {name: found["pairs"] for name, found in report["mended"].items()} == {
        "mojibake": 1,
        "entities": 1,
        "tags": 1,
        "encoding": 1,
    }
    assert report["left_out"]["empty"]["examples"][0]["line"] == 21
    assert "left out: duplicates" in done.stdout
    again = clean(run, files, "--output", "c.jsonl")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)


def test_formats_of_the_output(run, files):
    assert clean(run, files, "--output", "c.tsv.gz").returncode == 0
    assert clean(run, files, "--output", "c.jsonl.gz").returncode == 0
    rows = [line.split("\t") for line in gzip.decompress((files / "c.tsv.gz").read_bytes()).decode().splitlines()]
    pairs = [json.loads(line) for line in gzip.decompress((files / "c.jsonl.gz").read_bytes()).splitlines()]
    assert rows == [[pair["en"], pair["de"]] for pair in pairs]


def test_dry_run_writes_nothing(run, files):
    before = contents(files)
    done = clean(run, files, "--dry-run")
    assert (done.returncode, contents(files)) == (0, before)
    assert "300 pairs: 29" in done.stdout


def test_config_file_and_options(run, files):
    (files / "rules.toml").write_text('duplicates = "none"\nmax_length = 40\n')
    done = clean(
        run,
        files,
        "--config",
        "rules.toml",
        "--json",
        "r.json",
        "--dry-run",
        "--max-length",
        "0",
        "--misaligned",
        "False",
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads((files / "r.json").read_text())["left_out"]) == {"empty"}
    (files / "rules.toml").write_text("max_lenght = 40\n")
    done = clean(run, files, "--config", "rules.toml", "--dry-run")
    assert (done.returncode, done.stderr) == (
        2,
        "error: rules.toml: unknown option max_lenght; did you mean max_length?\n",
    )


def test_failure_leaves_nothing_behind(run, files):
    (files / "a.de.gz").write_bytes((files / "a.de.gz").read_bytes()[:-200])
    before = contents(files)
    done = clean(run, files, "--output", "c.jsonl", "--rejected", "r.jsonl")
    assert (done.returncode, contents(files)) == (2, before)
    assert "truncated or damaged" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: PATH"),
        (["a.en", "a.de.gz"], "--output is required"),
        (["a.en", "a.de.gz", "--output", "c.txt"], "--output c.txt: the name must end in .jsonl or .tsv"),
        (["a.en", "a.de.gz", "--output", "c.tsv", "--rejected", "r.tsv"], "--rejected r.tsv: the name must end in"),
        (["a.en", "a.de.gz", "--output", "c.tsv", "--columns", "1"], "--columns must be two"),
        (["a.en", "a.de.gz", "--output", "c.tsv", "--source-language", "en"], "go together"),
        (["a.en", "a.de.gz", "--output", "c.tsv", "--encoding", "latin-99"], 'unknown encoding "latin-99"'),
        (["a.en", "--output", "c.tsv"], "give two text files"),
        (["a.en", "a.de.gz", "--dry-run", "--output", "c.tsv"], "--output has no effect with --dry-run"),
        (["a.en", "a.de.gz", "--dry-run", "--rejected", "r.jsonl"], "--rejected has no effect with --dry-run"),
        (["a.en", "a.de.gz", "--dry-run", "--columns", "1", "2"], "--columns has no effect with two text files"),
        (["a.en", "b.de", "--output", "c.tsv"], "b.de: no such file"),
        (["a.en", "a.de.gz", "--output", "c.tsv", "--whitespace", "False"], "would not fit into .tsv"),
        (["a.en", "a.de.gz", "--output", "c.jsonl", "--rejected", "c.jsonl"], "would be used twice"),
        (["a.en", "a.de.gz", "--dry-run", "--json", "a.en"], "would be used twice"),
    ],
)
def test_mistakes_get_one_sentence(run, files, arguments, message):
    before = contents(files)
    done = run("clean", *arguments, cwd=files)
    assert (done.returncode, contents(files)) == (2, before)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_spreadsheets_need_no_options(run, tmp_path):
    """The languages are recognized; a column can be chosen by its name."""
    texts = [
        ("A man sits on a bench in the park.", "Ein Mann sitzt auf einer Bank im Park."),
        ("Two dogs are playing with a ball.", "Zwei Hunde spielen mit einem Ball."),
        ("The children are waiting for the bus.", "Die Kinder warten auf den Bus."),
    ] * 6
    wrong = (
        "Le chat noir est assis sur la table de la cuisine.",
        "Die schwarze Katze sitzt auf dem Tisch in der Küche.",
    )
    with (tmp_path / "sheet.csv").open("w", newline="", encoding="utf-16") as file:
        rows = [("English", "Note", "German"), *((source, "", target) for source, target in (wrong, *texts))]
        csv.writer(file).writerows(rows)
    options = ["--columns", "English", "German", "--duplicates", "none", "--max-targets", "0", "--output", "c.tsv"]
    done = run("clean", "sheet.csv", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.tsv").read_text().splitlines() == ["\t".join(pair) for pair in texts]
    assert "line 1 is the header: English, Note, German" in done.stderr
    assert "the target language is de, judging by the first pairs" in done.stderr


# Warnings where training begins.


@pytest.fixture(scope="module")
def shifted(multi30k, tmp_path_factory):
    """Returns a folder with 5,000 pairs of Multi30k, of which line 3,000 of the target is missing."""
    folder = tmp_path_factory.mktemp("shifted")
    corpus = read_multi30k(multi30k, "de", 5001)
    (folder / "a.en").write_text("\n".join(corpus.source[:5000]) + "\n", encoding="utf-8")
    target = [*corpus.target[:2999], *corpus.target[3000:5001]]
    (folder / "a.de").write_text("\n".join(target) + "\n", encoding="utf-8")
    return folder


def test_a_shift_is_reported_with_its_line(run, shifted):
    done = run("clean", "a.en", "a.de", "--dry-run", "--json", "r.json", cwd=shifted)
    assert done.returncode == 0, done.stderr
    report = json.loads((shifted / "r.json").read_text())
    ((first, last, by),) = report["shifts"]
    assert abs(first - 3000) <= 10
    assert (last, by) == (5000, -1)
    assert f"lines {first:,} to 5,000 are misaligned: the source side is 1 line behind" in done.stderr
    assert report["left_out"]["shifts"]["pairs"] == 5001 - first


TRAIN = ["--config", "configs/tiny.toml", "--data.name", "text", "--tokenizer.vocab-size", "500"]
TRAIN += ["--training.num-steps", "1", "--training.eval-every", "0", "--model.embed-dim", "8"]


def test_training_warns_of_a_shift(run, shifted, tmp_path):
    files = ["--data.target-language", "de", "--data.train-source", shifted / "a.en"]
    files += ["--data.train-target", shifted / "a.de"]
    done = run("train", *TRAIN, *files, "--workdir", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    assert "are misaligned: the source side is 1 line behind" in done.stderr
    resumed = run("train", "--training.num-steps", "2", "--workdir", tmp_path / "w")
    assert (resumed.returncode, "misaligned" in resumed.stderr) == (0, False), resumed.stderr
    done = run("train", *TRAIN, *files, "--inspect-data", "--workdir", tmp_path / "w")
    assert "left out: shifts" in done.stdout
    assert f"lingua-flax clean {shifted}/a.en {shifted}/a.de --source-language en" in done.stdout.splitlines()[-1]


def test_training_warns_of_swapped_languages(run, multi30k, tmp_path):
    corpus = read_multi30k(multi30k, "de", 600)
    lines = [f"{target}\t{source}\n" for source, target, _ in zip(*corpus, strict=True)]
    random.Random(1).shuffle(lines)
    (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
    files = ["--data.target-language", "de", "--data.train-source", tmp_path / "a.tsv"]
    done = run("train", *TRAIN, *files, "--workdir", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    assert "en and de seem to be swapped" in done.stderr
    assert "misaligned" not in done.stderr
