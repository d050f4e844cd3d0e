"""What the page is told of a run: metrics that grow or are replaced, checkpoints, and sentences to begin with."""

import json
import shutil

import pytest

from lingua_flax.inspection.run_report import RunReport, example_sentences
from lingua_flax.options.config_files import read_config, to_toml
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from tests.conftest import ROOT

SAMPLE = {"source": "one.", "reference": "un !", "translation": "deux !"}
OTHER = SAMPLE | {"translation": "un !"}


def steps(*numbers, **losses):
    """Returns lines of metrics of training steps, whose loss is their number unless it is given."""
    return "".join(json.dumps({"step": n, "loss": losses.get(f"loss_{n}", float(n))}) + "\n" for n in numbers)


def validation(step, **others):
    line = {"step": step, "validation_loss": 2.0, "validation_loss_shuffled": None, "validation_chrf": 1.5} | others
    return json.dumps(line) + "\n"


@pytest.fixture
def growing(trained, tmp_path):
    """A workdir without metrics and checkpoints."""
    shutil.copy(trained[0] / "config.toml", tmp_path)
    return tmp_path


def append(folder, text):
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(text)


def state(report):
    """Returns what a report says about the steps and the validations."""
    read = report.read()
    return read["step"], read["loss"], read["validation"] and read["validation"]["step"], read["samples"]


def test_report_follows_a_growing_file(growing):
    report = RunReport(growing)
    read = report.read()
    assert (read["checkpoints"], read["best_checkpoint"], read["seconds_since_change"]) == ([], None, None)
    assert state(report) == (0, None, None, [])
    append(growing, steps(1, 2))
    assert state(report) == (2, 2.0, None, [])
    line = validation(2, samples=[SAMPLE])
    for part in (line[:10], line[10:-1]):  # a line that is not complete yet
        append(growing, part)
        assert state(report) == (2, 2.0, None, [])
    append(growing, "\n" + steps(3))
    assert state(report) == (3, 3.0, 2, [SAMPLE])
    append(growing, validation(3, samples=[OTHER]))
    assert state(report) == (3, 3.0, 3, [OTHER])


def test_report_begins_again_when_the_file_is_replaced(growing):
    """As training does when it resumes from a checkpoint before the last step."""
    report = RunReport(growing)

    def replace(text):
        (growing / "other").write_text(text, encoding="utf-8")
        (growing / "other").rename(growing / "metrics.jsonl")

    append(growing, steps(1, 2) + validation(2, samples=[SAMPLE]) + steps(3))
    assert state(report) == (3, 3.0, 2, [SAMPLE])
    replace(steps(1))
    assert state(report) == (1, 1.0, None, [])
    append(growing, steps(2, loss_2=5.0))
    assert state(report) == (2, 5.0, None, [])
    replace(steps(1, 1, 2, loss_2=7.0))  # longer, and perhaps with the inode of the one before
    assert state(report) == (2, 7.0, None, [])
    (growing / "metrics.jsonl").unlink()
    assert state(report) == (0, None, None, [])


def test_best_checkpoint_is_that_of_the_newest_intact_record(trained, growing):
    checkpoints = shutil.copytree(trained[0] / "checkpoints", growing / "checkpoints")
    saved = saved_steps(checkpoints)
    assert RunReport(growing).read()["step"] == saved[-1]  # without metrics
    while saved:
        best = read_metadata(checkpoints, newest := saved.pop())["best_step"]
        assert RunReport(growing).read()["best_checkpoint"] == (best if (checkpoints / str(best)).exists() else None)
        shutil.rmtree(checkpoints / str(newest) / "metadata")
    assert RunReport(growing).read()["best_checkpoint"] is None


def test_examples_are_the_first_pair_of_each_ambiguous_word_of_the_phrasebook(tmp_path):
    config = read_config(ROOT / "configs" / "tiny.toml")
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    examples = example_sentences(tmp_path)
    ambiguous = {each["word"]: each["sentences"] for each in examples["ambiguous"]}
    assert list(ambiguous) == sorted(ambiguous)
    assert len(ambiguous) == 24
    assert ambiguous["bank"][0] == "Alice went across the stream to get to the other bank."
    assert ambiguous["visit"][0] == "We visited the king."
    assert ambiguous["short"][0] == "The man was short."
    assert examples["sentences"]
    reversed_data = config.data.model_copy(update={"source_language": "fr", "target_language": "en"})
    reversed_config = config.model_copy(update={"data": reversed_data})
    (tmp_path / "config.toml").write_text(to_toml(reversed_config), encoding="utf-8")
    assert example_sentences(tmp_path) == {"sentences": [], "ambiguous": []}
