"""lingua-flax compare: runs of two systems, their translations kept, and what makes a comparison invalid."""

import csv
import json
import logging
import re
import shutil
import statistics
import tomllib
from pathlib import Path

import pytest

from lingua_flax.commands.compare import _warn_about_mistakes
from lingua_flax.evaluation.kept_translations import keep

GREEDY = ["--beam-size", 1]
SEEDS = {"a1": 1, "a2": 2, "b1": 1, "b2": 2}


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """Returns workdirs of two systems, which differ in an option and, like seeds, in what they have learned."""
    folder = tmp_path_factory.mktemp("systems")
    for name, seed in SEEDS.items():
        shutil.copytree(trained[0], folder / name)
        (folder / name / "held_out.json").write_text('{"test": []}')  # started with one data.held_out, they have copies
        config = (folder / name / "config.toml").read_text(encoding="utf-8")
        config = config.replace("\nseed = 1\n", f"\nseed = {seed}\n")
        config = config.replace("[data]", '[data]\nheld_out = "first.json"')
        config = config.replace("num_steps = 240", f"num_steps = {250 + ord(name[0])}")
        (folder / name / "config.toml").write_text(config, encoding="utf-8")
    for name, steps in {"a2": [240], "b1": [240, 160]}.items():  # which leaves 160, the best then, and 200
        for step in steps:
            shutil.rmtree(folder / name / "checkpoints" / str(step))
    return folder


@pytest.fixture(scope="module")
def compared(runs, run, tmp_path_factory):
    """Returns the completed command, its JSON, its CSV and the picture."""
    folder = tmp_path_factory.mktemp("compared")
    outputs = [folder / f"out.{ending}" for ending in ("json", "csv", "svg")]
    options = ["--names", "new", "old", "--split", "test", "validation", *GREEDY]
    done = run(
        *["compare", runs / "a1", runs / "a2", "--baseline", runs / "b1", runs / "b2", *options],
        *["--json", outputs[0], "--csv", outputs[1], "--plot", outputs[2]],
    )
    assert done.returncode == 0, done.stderr
    return done, json.loads(outputs[0].read_text()), list(csv.DictReader(outputs[1].open())), outputs[2]


def test_every_run_has_the_scores_that_evaluate_gives(compared, runs, run, tmp_path):
    _, content, rows, _ = compared
    assert [(row["data"], row["system"], row["seed"]) for row in rows] == [
        (f"text, {split}", system, seed)
        for split in ("test", "validation")
        for system in ("new", "old")
        for seed in "12"
    ]
    for row in (rows[1], rows[6]):
        split = row["data"].split()[-1]
        scores = tmp_path / "scores.json"
        done = run("evaluate", "--workdir", row["workdir"], "--split", split, *GREEDY, "--ter", "--json", scores)
        assert done.returncode == 0, done.stderr
        expected = json.loads(scores.read_text())
        assert int(row["checkpoint_step"]) == expected["checkpoint_step"]
        for name in ("bleu", "bleu_lowercase", "chrf", "ter"):
            assert float(row[name]) == pytest.approx(expected[name])
            assert content["metrics"][row["data"]][name]["signature"] == expected[f"{name}_signature"]
    assert len({row["bleu"] for row in rows[:3]}) == 3


def test_few_runs_are_warned_of_in_one_sentence(compared):
    done, *_ = compared
    (warning,) = [line for line in done.stderr.splitlines() if "few runs" in line]
    assert warning.startswith("few runs (new: 2, old: 2): below 5, means and standard deviations over seeds say little")


def test_five_runs_are_not_few(caplog):
    runs = {"five": [{"seed": seed} for seed in range(5)], "four": [{"seed": seed} for seed in range(4)]}
    _warn_about_mistakes(runs, {})
    (record,) = caplog.records
    assert "few runs (four: 4)" in record.getMessage()


def test_means_and_significance_are_those_of_the_rows(compared, runs):
    done, content, rows, _ = compared
    bleu = content["metrics"]["text, test"]["bleu"]
    texts = {"new": ["a1", "a2"], "old": ["b1", "b2"]}
    columns = {name: [float(row["bleu"]) for row in rows[:4] if row["system"] == name] for name in texts}
    for name, column in columns.items():
        mean, deviation = statistics.mean(column), statistics.stdev(column)
        assert (bleu["mean"][name], bleu["deviation"][name]) == pytest.approx((mean, deviation))
        assert f"| {name} | 2 | {mean:.2f} ± {deviation:.2f} | " in done.stdout
        best = rows[["new", "old"].index(name) * 2 + column.index(max(column))]
        shown = f"best run of {name}: seed {best['seed']}, {best['workdir']}, BLEU {max(column):.2f}"
        assert f"- {shown}" in done.stdout
    difference = bleu["mean"]["new"] - bleu["mean"]["old"]
    assert bleu["difference"] == pytest.approx(difference)
    assert f"| difference |  | {difference:+.2f} ({bleu['low']:+.2f} to {bleu['high']:+.2f}), " in done.stdout
    assert 0 < bleu["p_value"] <= 1
    assert f"- BLEU: `{bleu['signature']}`" in done.stdout
    assert done.stdout.count("| difference |") == 2
    assert all(line.count("|") in (4, 7) for line in done.stdout.splitlines() if line.startswith("|"))


def test_options_that_differ_are_listed(compared):
    done, content, _, _ = compared
    assert "| training.num_steps | 347 | 348 |" in done.stdout
    assert content["options"] == {"training.num_steps": {"new": [347], "old": [348]}}
    assert "should differ" not in done.stderr


def test_picture_has_the_curves(compared):
    text = compared[3].read_text(encoding="utf-8")
    assert "<svg" in text
    assert "new (mean of 2)" in text


def test_nothing_is_translated_twice(compared, runs, run, tmp_path):
    """Without the arrays of the networks, another metric can be computed, but not another translation."""
    done, *_ = compared
    assert done.stderr.count("translating") == 8
    for name in SEEDS:
        shutil.copytree(runs / name, tmp_path / name)
        for params in (tmp_path / name / "checkpoints").glob("*/params"):
            shutil.rmtree(params)
    workdirs = [tmp_path / "a1", tmp_path / "a2", "--baseline", tmp_path / "b1", tmp_path / "b2"]
    again = run("compare", *workdirs, "--names", "new", "old", *GREEDY)
    assert again.returncode == 0, again.stderr
    assert "translating" not in again.stderr
    table = done.stdout.split("\n\n")[0]
    assert again.stdout.startswith(table)
    other = run("compare", *workdirs, *GREEDY, "--evaluation.tokenize", "char")
    assert other.returncode == 0, other.stderr
    assert "tok:char" in other.stdout
    changes = (["--beam-size", 2], ["--length-penalty", 0, *GREEDY], ["--checkpoint", "160", *GREEDY])
    for options in changes:
        refused = run("compare", tmp_path / "a1", *options)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert re.search(r"^error: .* is damaged", refused.stderr, re.MULTILINE)


def test_files_are_compared_with_all_references(compared, runs, toy, run, tmp_path):
    test = toy.parent / "test.en", toy.parent / "test.fr"
    (tmp_path / "b.fr").write_text(test[1].read_text(encoding="utf-8").upper(), encoding="utf-8")
    shutil.copytree(runs / "a1", tmp_path / "a1")
    options = ["--source", test[0], "--reference", test[1], tmp_path / "b.fr", *GREEDY]
    done = run("compare", tmp_path / "a1", "--names", "one", *options)
    assert done.returncode == 0, done.stderr
    assert "nrefs:2|" in done.stdout
    assert "translating" not in done.stderr  # the same lines as those of the test split
    assert "| one | 1 | " in done.stdout
    assert "difference" not in done.stdout
    assert "±" not in done.stdout
    (kept,) = [
        path for path in (tmp_path / "a1" / "translations").iterdir() if len(path.read_bytes().splitlines()) == 37
    ]
    kept.write_text("edited\n")
    again = run("compare", tmp_path / "a1", "--names", "one", *options)
    assert again.stdout == done.stdout
    assert "translating" in again.stderr


def test_mistakes_in_a_group_are_warned_of(runs, run):
    done = run("compare", runs / "a1", runs / "b1", *GREEDY)
    assert done.returncode == 0, done.stderr
    assert "system: its runs should differ in training.seed" in done.stderr
    assert (
        "system: its runs should differ in nothing but the seed, but training.num_steps is 347 and 348" in done.stderr
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can write")
def test_translations_are_not_kept_in_a_read_only_workdir(caplog):
    caplog.set_level(logging.INFO)
    assert keep(Path("/proc/self"), [], 1, lambda: ["a"]) == ["a"]
    assert "/proc/self: its translations are not kept (" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the following arguments are required: PATH"),
        (["a1", "--baseline"], "--baseline: expected at least one argument"),
        (["a1", "a1"], "a1 is given twice; each run counts once"),
        (["a1", "--baseline", "a1/../a1"], "is given twice"),
        (["a1", "--names", "x", "y"], "--names: there must be 1"),
        (["a1", "--baseline", "b1", "--names", "x"], "--names: there must be 2"),
        (["a1", "--baseline", "b1", "--names", "x", "x"], "--names: there must be 2"),
        (["a1", "--baseline", "b1", "--names", "x", "x", "y"], "--names: there must be 2, all different, got x, x, y"),
        (["a1", "--plot", "a.jpg"], "--plot a.jpg: the name must end in .png or .svg or .pdf"),
        (["a1", "--plot", "no/a.png"], "there is no folder"),
        (["a1", "--split", "train", "--source", "x.tsv"], "--split has no effect with --source"),
        (["a1", "--split", "nowhere"], "nowhere"),
        (["a1", "--source", "x.en"], "--source and --reference go together"),
        (["a1", "--csv", "x", "--json", "x"], "would be used twice"),
        (["a1", "nothing"], "nothing: not a workdir"),
        (["a1", "--checkpoint", "7"], "no checkpoint 7"),
        (["a1", "--ensemble", "b1"], "unknown option --ensemble"),
        (["a1", "--workdir", "b1"], "unknown option --workdir"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(runs, run, options, message):
    given = [runs / option if option in ("a1", "b1", "a1/../a1", "nothing") else option for option in options]
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    done = run("compare", *given)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_different_lines_are_refused(runs, run, tmp_path):
    shutil.copytree(runs / "b1", tmp_path / "b1")
    config = (tmp_path / "b1" / "config.toml").read_text(encoding="utf-8")
    source = tomllib.loads(config)["data"]["test_source"]
    (tmp_path / "test.en").write_text(Path(source).read_text(encoding="utf-8").replace("one", "two"))
    (tmp_path / "b1" / "config.toml").write_text(config.replace(source, str(tmp_path / "test.en")), encoding="utf-8")
    done = run("compare", runs / "a1", "--baseline", tmp_path / "b1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "b1: text, test is not that of" in done.stderr.splitlines()[-1]


def test_networks_of_different_languages_are_not_compared(runs, run, tmp_path):
    """Not even on the same lines, of which one network knows neither language."""
    shutil.copytree(runs / "b1", tmp_path / "b1")
    config = (tmp_path / "b1" / "config.toml").read_text(encoding="utf-8")
    assert 'target_language = "fr"' in config
    swapped = config.replace('source_language = "en"', 'source_language = "fr"')
    swapped = swapped.replace('target_language = "fr"', 'target_language = "en"')
    (tmp_path / "b1" / "config.toml").write_text(swapped, encoding="utf-8")
    (tmp_path / "lines.tsv").write_text("one.\tun !\n", encoding="utf-8")
    done = run("compare", runs / "a1", "--baseline", tmp_path / "b1", "--source", tmp_path / "lines.tsv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the runs translate into en and fr" in done.stderr.splitlines()[-1]
