"""lingua-flax compare: runs of two systems, their translations kept, and what makes a comparison invalid."""

import csv
import json
import logging
import shutil
import statistics
from pathlib import Path

import pytest

from lingua_flax.commands.compare import _warn_about_mistakes
from lingua_flax.evaluation.kept_translations import keep

BEAMS = ["--beam-size", 2, "--baseline-beam-size", 1]
SEEDS = {"a1": 1, "a2": 2, "b1": 1, "b2": 2}


def replace_in_config(workdir: Path, *replacements: tuple[str, str]) -> None:
    config = (workdir / "config.toml").read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in config
        config = config.replace(old, new)
    (workdir / "config.toml").write_text(config, encoding="utf-8")


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """Returns workdirs of two systems, which differ in an option and, like seeds, in what they have learned."""
    folder = tmp_path_factory.mktemp("systems")
    for name, seed in SEEDS.items():
        shutil.copytree(trained[0], folder / name)
        (folder / name / "held_out.json").write_text('{"test": []}')  # started with one data.held_out, they have copies
        replace_in_config(
            folder / name,
            ("\nseed = 1\n", f"\nseed = {seed}\n"),
            ("[data]", '[data]\nheld_out = "first.json"'),
            ("num_steps = 240", f"num_steps = {250 + ord(name[0])}"),
        )
    for name, steps in {"a2": [240], "b1": [240, 160]}.items():  # which leaves 160, the best then, and 200
        for step in steps:
            shutil.rmtree(folder / name / "checkpoints" / str(step))
    return folder


@pytest.fixture(scope="module")
def compared(runs, succeed, tmp_path_factory):
    """Returns the completed command, its JSON, its CSV and the picture."""
    folder = tmp_path_factory.mktemp("compared")
    outputs = [folder / f"out.{ending}" for ending in ("json", "csv", "svg")]
    options = ["--names", "new", "old", "--split", "test", "validation", *BEAMS]
    done = succeed(
        *["compare", runs / "a1", runs / "a2", "--baseline", runs / "b1", runs / "b2", *options],
        *["--json", outputs[0], "--csv", outputs[1], "--plot", outputs[2]],
    )
    return done, json.loads(outputs[0].read_text()), list(csv.DictReader(outputs[1].open())), outputs[2]


def test_every_run_has_the_scores_that_evaluate_gives(compared, succeed, tmp_path):
    _, content, rows, _ = compared
    assert [(row["data"], row["system"], row["seed"]) for row in rows] == [
        (f"text, {split}", system, seed)
        for split in ("test", "validation")
        for system in ("new", "old")
        for seed in "12"
    ]
    for row in (rows[1], rows[6]):
        split, scores = row["data"].split()[-1], tmp_path / "scores.json"
        options = ["--split", split, "--beam-size", row["beam_size"], "--ter", "--json", scores]
        succeed("evaluate", "--workdir", row["workdir"], *options)
        expected = json.loads(scores.read_text())
        assert int(row["checkpoint_step"]) == expected["checkpoint_step"]
        for name in ("bleu", "bleu_lowercase", "chrf", "ter"):
            assert float(row[name]) == pytest.approx(expected[name])
            assert content["metrics"][row["data"]][name]["signature"] == expected[f"{name}_signature"]
    assert len({row["bleu"] for row in rows[:3]}) == 3
    assert [row["beam_size"] for row in rows[:4]] == ["2", "2", "1", "1"]


def test_means_and_significance_are_those_of_the_rows(compared):
    done, content, rows, picture = compared
    bleu = content["metrics"]["text, test"]["bleu"]
    for name in ("new", "old"):
        own = [row for row in rows[:4] if row["system"] == name]
        column = [float(row["bleu"]) for row in own]
        mean, deviation = statistics.mean(column), statistics.stdev(column)
        assert (bleu["mean"][name], bleu["deviation"][name]) == pytest.approx((mean, deviation))
        assert f"| {name} | 2 | {mean:.2f} ± {deviation:.2f} | " in done.stdout
        best = own[column.index(max(column))]
        assert f"- best run of {name}: seed {best['seed']}, {best['workdir']}, BLEU {max(column):.2f}" in done.stdout
    difference = bleu["mean"]["new"] - bleu["mean"]["old"]
    assert bleu["difference"] == pytest.approx(difference)
    assert f"| difference |  | {difference:+.2f} ({bleu['low']:+.2f} to {bleu['high']:+.2f}), " in done.stdout
    assert f"- BLEU: `{bleu['signature']}`" in done.stdout
    assert done.stdout.count("| difference |") == 2
    assert all(line.count("|") in (4, 7) for line in done.stdout.splitlines() if line.startswith("|"))
    assert "new (mean of 2)" in picture.read_text(encoding="utf-8")


def test_options_that_differ_and_mistakes_are_told(compared, caplog):
    done, content, _, _ = compared
    assert "| training.num_steps | 347 | 348 |" in done.stdout
    differing = {"training.num_steps": {"new": [347], "old": [348]}, "beam_size": {"new": [2], "old": [1]}}
    assert content["options"] == differing
    assert "should differ" not in done.stderr
    assert "few runs (new: 2, old: 2): below 5, means and standard deviations over seeds say little" in done.stderr
    seeds = {"five": range(5), "same": [1, 1], "a file": [None]}
    runs = {name: [{"seed": seed} for seed in own] for name, own in seeds.items()}
    _warn_about_mistakes(runs, {"training.num_steps": {"five": [347, 348], "same": [1], "a file": []}})
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "few runs (same: 2): below 5, means and standard deviations over seeds say little",
        "five: its runs should differ in nothing but the seed, but training.num_steps is 347 and 348",
        "same: its runs should differ in training.seed, but some have the same",
    ]


def test_nothing_is_translated_twice(compared, runs, succeed, refused, tmp_path):
    """Without the arrays of the networks, another metric can be computed, but not another translation."""
    done, *_ = compared
    assert done.stderr.count("translating") == 8
    for name in SEEDS:
        shutil.copytree(runs / name, tmp_path / name)
        for params in (tmp_path / name / "checkpoints").glob("*/params"):
            shutil.rmtree(params)
    workdirs = [tmp_path / "a1", tmp_path / "a2", "--baseline", tmp_path / "b1", tmp_path / "b2"]
    again = succeed("compare", *workdirs, "--names", "new", "old", *BEAMS)
    assert "translating" not in again.stderr
    assert again.stdout.startswith(done.stdout.split("\n\n")[0])
    other = succeed("compare", *workdirs, *BEAMS, "--evaluation.tokenize", "char")
    assert "tok:char" in other.stdout
    for options in (["--beam-size", 3], ["--length-penalty", 0, *BEAMS[:2]], ["--checkpoint", "160", *BEAMS[:2]]):
        refused("is damaged", "compare", tmp_path / "a1", *options)
    for kept in (tmp_path / "a1" / "translations").iterdir():
        kept.write_text("edited\n")
    refused("is damaged", "compare", tmp_path / "a1", *BEAMS[:2])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can write")
def test_translations_are_not_kept_in_a_read_only_workdir(caplog):
    caplog.set_level(logging.INFO)
    assert keep(Path("/proc/self"), [], 1, lambda: ["a"]) == ["a"]
    assert "/proc/self: its translations are not kept (" in caplog.text


def test_different_lines_and_languages_are_refused(compared, runs, toy, succeed, refused, tmp_path):
    """The languages not even on the same lines, of which one network knows neither language."""
    other, swapped = (shutil.copytree(runs / "b1", tmp_path / name) for name in ("b1", "swapped"))
    succeed("compare", other, *BEAMS[:2])  # which keeps its translations
    lines = (toy.parent / "test.en").read_text(encoding="utf-8").replace("one", "two")
    (tmp_path / "test.en").write_text(lines, encoding="utf-8")
    replace_in_config(other, (str(toy.parent / "test.en"), str(tmp_path / "test.en")))
    refused("b1: text, test is not that of", "compare", runs / "a1", "--baseline", other)
    again = succeed("compare", other, *BEAMS[:2])
    assert "translating text, test" in again.stderr  # the kept ones are those of other lines
    languages = (
        ('source_language = "en"', 'source_language = "fr"'),
        ('target_language = "fr"', 'target_language = "en"'),
    )
    replace_in_config(swapped, *languages)
    (tmp_path / "lines.tsv").write_text("one.\tun !\n", encoding="utf-8")
    files = ("--baseline", swapped, "--source", tmp_path / "lines.tsv")
    refused("the runs translate into en and fr", "compare", runs / "a1", *files)
