"""The command clean as users run it, and the warnings of training about the same faults."""

from __future__ import annotations

import csv
import gzip
import json
import random
import sys

import pytest

from lingua_flax.commands.clean import CleanCommand
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_config
from lingua_flax.runs.checkpoint import COMMIT_MARK
from lingua_flax.training.preparation import prepare
from tests.data.planted_faults import read_multi30k
from tests.helpers.folders import contents
from tests.helpers.pairs import made_up_rows


@pytest.fixture
def files(tmp_path):
    """Returns a folder with two text files: a repeated pair, an empty side, mojibake and a line in windows-1252."""
    _, source, target, *_ = map(list, zip(*made_up_rows(300), strict=True))
    source[10], target[10] = source[9], target[9]
    target[20] = ""
    source[30] = f"<b>{source[30]}</b> lorÃ©k &amp; mit"
    lines = [text.encode() for text in target]
    lines[40] = "größe ".encode("cp1252") + lines[40]
    (tmp_path / "a.en").write_text("\n".join(source) + "\n", encoding="utf-8")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    return tmp_path


CLEAN = ["clean", "a.en", "a.de.gz", "--source-language", "en", "--target-language", "de", "--language", "False"]


def test_clean_writes_pairs_rejected_pairs_and_a_report(succeed, refused, files):
    before = contents(files)
    done = succeed(*CLEAN, "--output", "c.jsonl", "--rejected", "r.jsonl", "--json", "report.json", cwd=files)
    after = contents(files)
    assert {path: after[path] for path in before} == before
    assert {path.name for path in after.keys() - before.keys()} == {"c.jsonl", "r.jsonl", "report.json"}
    kept, rejected = (
        [json.loads(line) for line in (files / name).read_text().splitlines()] for name in ("c.jsonl", "r.jsonl")
    )
    assert len(kept) + len(rejected) == 300
    assert all(set(pair) == {"en", "de", "alignment"} for pair in kept)
    assert any(pair["en"].endswith("lorék & mit") for pair in kept)
    assert any(pair["de"].startswith("größe ") for pair in kept)
    reasons = {(row["file"], row["line"]): row["reason"] for row in rejected}
    assert (reasons["a.en", 11], reasons["a.en", 21]) == ("duplicates", "empty")
    report = json.loads((files / "report.json").read_text())
    assert (report["pairs"], report["kept"], report["warnings"]) == (300, len(kept), [])
    assert set(report["mended"]) == {"mojibake", "entities", "tags", "encoding"}
    assert "left out: duplicates" in done.stdout
    refused("exists already", *CLEAN, "--output", "c.jsonl", cwd=files)
    succeed(*CLEAN, "--output", "c.tsv.gz", cwd=files)
    rows = gzip.decompress((files / "c.tsv.gz").read_bytes()).decode().splitlines()
    assert rows == [f"{pair['en']}\t{pair['de']}" for pair in kept]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Zstandard is in the standard library")
def test_a_package_that_is_missing_inside_of_another_is_named_by_its_extra(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.delitem(sys.modules, "backports.zstd", raising=False)
    with pytest.raises(UserError, match=r"^clean needs the extra clean: pip install -e "):
        CleanCommand.read([str(files / "a.en"), str(files / "a.de.gz"), "--dry-run"])


def test_config_file_and_dry_run(succeed, refused, files):
    rules = files / "rules.toml"
    rules.write_text("duplicates = false\nmax_length = 40\n")
    before = contents(files)
    command = [*CLEAN, "--config", rules, "--dry-run"]
    done = succeed(*command, "--json", "r.json", "--max-length", "0", "--misaligned", "False", cwd=files)
    assert "300 pairs: 29" in done.stdout
    assert set(json.loads((files / "r.json").read_text())["left_out"]) == {"empty"}
    (files / "r.json").unlink()
    assert contents(files) == before
    rules.write_text("max_lenght = 40\n")
    refused(r"rules.toml: unknown option max_lenght", *command, cwd=files)
    (files / "a.de.gz").write_bytes((files / "a.de.gz").read_bytes()[:-200])
    refused("truncated or damaged", *CLEAN, "--output", "c.jsonl", "--rejected", "r.jsonl", cwd=files)


def test_spreadsheets_need_no_options(succeed, tmp_path):
    """The languages are recognized; a column can be chosen by its name."""
    texts = [
        ("A man sits on a bench in the park.", "Ein Mann sitzt auf einer Bank im Park."),
        ("Two dogs are playing with a ball.", "Zwei Hunde spielen mit einem Ball."),
        ("The children are waiting for the bus.", "Die Kinder warten auf den Bus."),
    ] * 6
    wrong = ("Le chat noir est assis sur la table de la cuisine.", "Die schwarze Katze sitzt auf dem Tisch.")
    with (tmp_path / "sheet.csv").open("w", newline="", encoding="utf-16") as file:
        csv.writer(file).writerows([("English", "Note", "German"), *((en, "", de) for en, de in (wrong, *texts))])
    options = ["--columns", "English", "German", "--duplicates", "False", "--max-targets", "0", "--output", "c.tsv"]
    done = succeed("clean", "sheet.csv", *options, cwd=tmp_path)
    assert (tmp_path / "c.tsv").read_text().splitlines() == ["\t".join(pair) for pair in texts]
    assert "line 1 is the header: English, Note, German" in done.stderr
    assert "the target language is de, judging by the first pairs" in done.stderr


def config_of(folder, **files):
    """Writes a config that trains from these files into German, and returns its path."""
    data = "".join(f'{name} = "{path}"\n' for name, path in files.items())
    (folder / "c.toml").write_text(
        f'[data]\nname = "text"\ntarget_language = "de"\n{data}[tokenizer]\nvocab_size = 500\n'
    )
    return folder / "c.toml"


@pytest.mark.slow
def test_training_warns_of_a_shift(succeed, multi30k, caplog, tmp_path):
    """Unless it is resumed: line 1,000 of the target is missing."""
    corpus = read_multi30k(multi30k, "de", 2001)
    source, target = corpus.source[:2000], [*corpus.target[:999], *corpus.target[1000:2001]]
    for side, lines in (("en", source), ("de", target)):
        (tmp_path / f"a.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    config = config_of(tmp_path, train_source=tmp_path / "a.en", train_target=tmp_path / "a.de")
    prepare(read_config(config), tmp_path / "w")
    assert "are misaligned: the source side is 1 line behind" in caplog.text
    checkpoint = tmp_path / "w" / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    (checkpoint / COMMIT_MARK).touch()
    caplog.clear()
    prepare(read_config(config), tmp_path / "w")
    assert "misaligned" not in caplog.text
    done = succeed("train", "--config", config, "--dry-run", cwd=tmp_path, process=True)
    assert "are misaligned: the source side is 1 line behind" in done.stderr
    assert "see lingua-flax clean" in done.stderr


def test_training_warns_of_swapped_languages(caplog, multi30k, tmp_path):
    corpus = read_multi30k(multi30k, "de", 600)
    lines = [f"{target}\t{source}\n" for source, target, _ in zip(*corpus, strict=True)]
    random.Random(1).shuffle(lines)
    (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
    prepare(read_config(config_of(tmp_path, train_source=tmp_path / "a.tsv")), tmp_path / "w")
    assert "en and de seem to be swapped" in caplog.text
    assert "misaligned" not in caplog.text
