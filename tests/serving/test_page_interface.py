"""What the page of the server asks for: inspections, the state of the run, and examples, from a real server process."""

import base64
import json
import os
import shutil
import time

import numpy as np
import pytest

from lingua_flax.data.corpora.phrasebook import generate
from lingua_flax.inspection.interventions import Head, Intervention, inspect
from lingua_flax.inspection.run_report import MAX_POINTS, RunReport, example_sentences
from lingua_flax.options.config_files import read_config, to_toml
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import EOS_ID
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from lingua_flax.translation.translator import Translator
from tests.conftest import ROOT
from tests.processes import read_lines, start_command
from tests.serving.test_serving import JSON, request

LINE = "one two three."
OPTIONS = DecodingOptions(beam_size=3, length_penalty=0.4)
HEADS = [
    {"attention": "encoder", "layer": 0, "head": 1},
    {"attention": "decoder", "layer": 0, "head": 0},
    {"attention": "cross", "layer": 0, "head": 1},
]


@pytest.fixture(scope="module")
def workdir(trained):
    return trained[0]


@pytest.fixture(scope="module")
def url(workdir):
    options = ("--beam-size", 3, "--length-penalty", 0.4, "--batch-size", 1, "--max-characters", 400)
    process = start_command("serve", "--workdir", workdir, "--port", 0, *options)
    log = iter(process.stderr.readline, "")
    url = next(line.split()[-1] for line in log if line.startswith("listening on "))
    assert "ready\n" in log
    yield url
    process.terminate()
    assert process.communicate()[1].endswith("stopped by SIGTERM\n")  # programs may have been compiled meanwhile


@pytest.fixture(scope="module")
def translator(workdir):
    return Translator.load(workdir)


def ask(url, **question):
    """Returns the status and the JSON of an answer of POST /inspect."""
    return request(url, "/inspect", {"q": LINE} | question)[:2]


def check_same(actual, expected):
    """Checks that two JSON values are equal, numbers up to rounding."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            if name == "weights":
                arrays = (np.frombuffer(base64.b64decode(each), "<u2").astype(int) for each in (actual[name], value))
                np.testing.assert_allclose(*arrays, rtol=0, atol=2)
            else:
                check_same(actual[name], value)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            check_same(one, other)
    else:
        assert actual == (pytest.approx(expected, abs=1e-5) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("question", "intervention"),
    [
        ({}, Intervention()),
        ({"q": "nine eight.", "target": "fr"}, Intervention()),
        ({"prefix": [9, 12]}, Intervention(prefix=(9, 12))),
        ({"prefix": [9, EOS_ID]}, Intervention(prefix=(9, EOS_ID))),
        ({"masked": [1, 2]}, Intervention(masked=(1, 2))),
        ({"heads_off": HEADS}, Intervention(heads_off=tuple(Head(**head) for head in HEADS))),
        ({"beam": True}, Intervention()),
        (
            {"prefix": [9], "masked": [0], "heads_off": HEADS[2:], "beam": "true", "target": ""},
            Intervention((9,), (0,), (Head("cross", 0, 1),)),
        ),
    ],
)
def test_server_inspects_as_python_does(url, translator, question, intervention):
    record_beam = "beam" in question
    expected = inspect(translator, question.get("q", LINE), OPTIONS, intervention, record_beam=record_beam)
    status, answer = ask(url, **question)
    assert status == 200
    assert (answer["beam"] is not None) == record_beam
    check_same(answer, expected.as_json(translator.tokenizer) | {"checkpoint": translator.step, "sentences": []})


def test_example_of_the_documentation_is_a_sentence_of_the_validation(url, workdir):
    sample = next(line["samples"][0] for line in reversed(read_lines(workdir)) if line.get("samples"))
    paths = request(url, "/openapi.json")[1]["paths"]
    for path in ("/translate", "/inspect"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"]["q"]["examples"] == [sample["source"]]


def test_text_is_inspected_sentence_by_sentence(url):
    sentences = ["two nine.", "three zero.", "five six."]
    alone = [ask(url, q=sentence)[1] for sentence in sentences]
    for number, own in enumerate(alone):
        status, answer = ask(url, q="two nine. three zero.  five six.", sentence=number)
        assert status == 200
        told = [
            {"source": text, "translation": each["translation"]} for text, each in zip(sentences, alone, strict=True)
        ]
        check_same(answer, own | {"sentences": told})
    for text, number, there_are in (("two nine. three zero.", 2, 2), ("two nine.", 1, 1)):
        assert ask(url, q=text, sentence=number) == (
            400,
            {"error": f"Invalid request: there is no sentence {number}: the text has {there_are}"},
        )


def test_unknown_words_are_named_and_marked(url):
    text = "👍 pizza, one Ananas kiwi."
    asked = {"q": text, "source": "en", "target": "fr"}
    assert request(url, "/translate", asked)[1]["unknownWords"] == ["pizza", "Ananas", "kiwi"]
    answer = ask(url, q=text)[1]
    assert answer["unknown_words"] == [[2, 7], [13, 19], [20, 24]]
    assert answer["mostly_unknown"]
    answer = ask(url, q="One pizza two.")[1]
    assert (answer["unknown_words"], answer["mostly_unknown"]) == ([[4, 9]], False)
    answer = ask(url, q="ONE two 3.")[1]
    assert (answer["unknown_words"], answer["mostly_unknown"]) == ([], False)
    assert "unknownWords" not in request(url, "/translate", asked | {"q": "ONE two 3."})[1]


def test_sentence_in_unknown_characters_stays_as_it_is_wherever_it_is_asked_for(url, translator):
    text = "two nine. Привет мир."
    first, kept = ask(url, q=text)[1], ask(url, q=text, sentence=1, beam=True)[1]
    told = [
        {"source": "two nine.", "translation": first["translation"]},
        {"source": "Привет мир."} | {"translation": "Привет мир."},
    ]
    assert first["sentences"] == told
    expected = {"text": "Привет мир.", "translation": "Привет мир.", "kept": True, "checkpoint": translator.step}
    assert kept == expected | {"sentences": told}
    assert ask(url, q=" Привет мир.\n") == (200, expected | {"sentences": []})
    asked = {"q": text, "source": "en", "target": "fr"}
    assert request(url, "/translate", asked)[1] == {"translatedText": f"{first['translation']} Привет мир."}


def test_inspection_is_of_the_translation_that_the_server_gives(url):
    texts = request(url, "/translate", {"q": LINE, "source": "en", "target": "fr", "alternatives": 2})[1]
    answer = ask(url)[1]
    assert answer["translation"] == texts["translatedText"]
    assert [hypothesis["text"] for hypothesis in answer["hypotheses"][1:]] == texts["alternatives"]


def test_other_checkpoint_by_number(url, workdir, translator):
    first, *_ = saved_steps(workdir / "checkpoints")
    assert first != translator.step
    other = Translator.load(workdir, str(first))
    expected = inspect(other, LINE, OPTIONS).as_json(other.tokenizer) | {"checkpoint": first, "sentences": []}
    for _ in range(2):  # loaded, then from memory
        status, answer = ask(url, checkpoint=first)
        assert status == 200
        check_same(answer, expected)
    assert ask(url)[1]["checkpoint"] == translator.step
    assert ask(url)[1]["target"] != expected["target"]


@pytest.mark.parametrize(
    ("question", "status", "message"),
    [
        ({"q": None}, 400, "q: input should be a valid string, got None"),
        ({"q": ""}, 400, r"q: string should match pattern '\S', got"),
        ({"q": " \n"}, 400, r"q: string should match pattern '\S', got"),
        ({"q": ["one."]}, 400, "q: input should be a valid string, got ['one.']"),
        ({"q": "a" * 401}, 413, "401 characters exceed the limit of 400"),
        ({"sentence": -1}, 400, "sentence: input should be greater than or equal to 0, got -1"),
        ({"prefix": "9"}, 400, 'prefix: input should be a valid list, got "9"'),
        ({"prefix": [9.5]}, 400, "prefix.0: input should be a valid integer, got 9.5"),
        ({"prefix": [True]}, 400, "prefix.0: input should be a valid integer, got True"),
        ({"prefix": None}, 400, "prefix: input should be a valid list, got None"),
        ({"prefix": [0]}, 400, "a prescribed token must be an id from 1 to 44"),
        ({"prefix": [10**30]}, 400, "a prescribed token must be an id from 1 to 44"),
        ({"prefix": [3]}, 400, "a prescribed token must be an id"),
        ({"prefix": [EOS_ID, 9]}, 400, "the end of the sentence can only be the last"),
        ({"prefix": [9] * 32}, 400, "32 tokens are prescribed"),
        ({"masked": {"0": 1}}, 400, "masked: input should be a valid list, got {'0': 1}"),
        ({"masked": [[1]]}, 400, "masked.0: input should be a valid integer, got [1]"),
        ({"masked": [31]}, 400, "a masked position must be from 0 to"),
        ({"heads_off": HEADS[0]}, 400, "heads_off: input should be a valid list, got {"),
        ({"heads_off": ["encoder"]}, 400, "heads_off.0: input should be a dictionary"),
        ({"heads_off": [{"attention": "encoder", "layer": 0}]}, 400, "missing heads_off.0.head parameter"),
        ({"heads_off": [HEADS[0] | {"attention": "self"}]}, 400, "input should be 'encoder', 'decoder' or 'cross'"),
        ({"heads_off": [HEADS[0] | {"attention": ["cross"]}]}, 400, "input should be 'encoder', 'decoder' or 'cross'"),
        ({"heads_off": [HEADS[0] | {"head": "1"}]}, 400, 'heads_off.0.head: input should be a valid integer, got "1"'),
        ({"heads_off": [HEADS[0] | {"head": 2}]}, 400, "there is no head 2 in layer 0 of encoder attention"),
        ({"beam": "perhaps"}, 400, 'beam: must be True or False, got "perhaps"'),
        ({"target": "de"}, 400, "de is not available as a target language"),
        ({"target": 3}, 400, "target: input should be a valid string, got 3"),
        ({"checkpoint": 7}, 400, "Invalid request: checkpoints: no checkpoint 7; saved: "),
        ({"checkpoint": 10**30}, 400, "no checkpoint 1000"),
        ({"checkpoint": "last"}, 400, 'checkpoint: input should be a valid integer, got "last"'),
        ({"checkpoint": -1}, 400, "checkpoint: input should be greater than 0, got -1"),
        ({"checkpoint": 0}, 400, "checkpoint: input should be greater than 0, got 0"),
        ({"checkpoint": True}, 400, "checkpoint: input should be a valid integer, got True"),
        ({"checkpoint": [80]}, 400, "checkpoint: input should be a valid integer, got [80]"),
    ],
)
def test_invalid_questions_are_refused(url, question, status, message):
    answer = ask(url, **question)
    assert answer[0] == status, answer
    assert message in answer[1]["error"]


def test_a_source_cannot_be_hidden_entirely(url):
    tokens = len(ask(url)[1]["source"])
    status, answer = ask(url, masked=list(range(tokens)))
    assert status == 400
    assert "at least one source token must remain visible" in answer["error"]
    assert ask(url, masked=list(range(tokens - 1)))[0] == 200


def test_question_that_is_no_json_object_is_refused(url):
    for body in (b"{", b"[1]"):
        assert request(url, "/inspect", body, **JSON)[:2] == (400, {"error": "Invalid JSON format"})


def test_run_is_that_of_the_files(url, workdir):
    changed = os.path.getmtime(workdir / "metrics.jsonl")
    earliest = time.time() - changed
    status, answer, _ = request(url, "/run")
    assert status == 200
    assert earliest <= answer.pop("seconds_since_change") <= time.time() - changed
    lines = read_lines(workdir)
    steps = [line for line in lines if "loss" in line]
    validations = [line for line in lines if "validation_loss" in line]
    checkpoints = saved_steps(workdir / "checkpoints")
    assert answer.pop("training_loss") == [[line["step"], pytest.approx(line["loss"], abs=1e-4)] for line in steps]
    assert answer == {
        "name": workdir.name,
        "step": 240,
        "num_steps": 240,
        "checkpoints": checkpoints,
        "best_checkpoint": read_metadata(workdir / "checkpoints", 240)["best_step"],
        "validations": [
            {
                "step": line["step"],
                "loss": line["validation_loss"],
                "loss_shuffled": line["validation_loss_shuffled"],
                "bleu": line["validation_bleu"],
            }
            for line in validations
        ],
        "samples": validations[-1]["samples"],
        "label_smoothing": 0.1,
    }
    assert [validation["step"] for validation in answer["validations"]] == [80, 160, 240]
    assert answer["best_checkpoint"] in checkpoints
    assert len(answer["samples"]) == 3


def test_page_answers_only_its_own_paths(url):
    assert request(url, "/inspect")[0] == request(url, "/translate")[0] == 405
    assert request(url, "/main.js")[0] == 404


def test_examples_of_another_corpus(url):
    assert request(url, "/examples")[:2] == (200, {"sentences": [], "ambiguous": []})


# --- Without a server -----------------------------------------------------------------------------------------------


SAMPLE = {"source": "one.", "reference": "un !", "translation": "deux !"}


def step_line(step, loss=None):
    return {"step": step, "loss": float(step) if loss is None else loss, "batch": "ab"}


def validation_line(step, **others):
    return {"step": step, "validation_loss": 2.0, "validation_loss_shuffled": None, "validation_bleu": 1.5} | others


def text_of(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def growing(workdir, tmp_path):
    """A workdir without metrics and checkpoints."""
    shutil.copy(workdir / "config.toml", tmp_path)
    return tmp_path


def append(folder, text):
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(text)


def state(report):
    """Returns what a report says about the steps and the validations."""
    read = report.read()
    steps = [step for step, _ in read["training_loss"]]
    return read["step"], steps, [validation["step"] for validation in read["validations"]], read["samples"]


def test_report_of_a_run_without_metrics(growing):
    read = RunReport(growing).read()
    assert (read["step"], read["training_loss"], read["validations"], read["samples"]) == (0, [], [], [])
    assert (read["checkpoints"], read["best_checkpoint"], read["seconds_since_change"]) == ([], None, None)
    assert read["num_steps"] == 240


def test_report_follows_a_growing_file(growing):
    report = RunReport(growing)
    assert state(report) == (0, [], [], [])
    append(growing, text_of(step_line(1), step_line(2)))
    assert state(report) == (2, [1, 2], [], [])
    line = text_of(validation_line(2, samples=[SAMPLE]))
    for part in (line[:10], line[10:-1]):  # a line that is not complete yet
        append(growing, part)
        assert state(report) == (2, [1, 2], [], [])
    append(growing, "\n" + text_of(step_line(3)))
    assert state(report) == (3, [1, 2, 3], [2], [SAMPLE])
    assert state(report) == (3, [1, 2, 3], [2], [SAMPLE])
    other = SAMPLE | {"translation": "un !"}
    append(growing, text_of(validation_line(3, samples=[other])))
    assert state(report) == (3, [1, 2, 3], [2, 3], [other])
    assert state(RunReport(growing)) == state(report)
    append(growing, text_of(validation_line(4)))  # of a version that wrote no samples
    assert state(report) == (3, [1, 2, 3], [2, 3, 4], [])


@pytest.mark.parametrize("in_place", [False, True])
def test_report_begins_again_when_the_file_is_replaced(growing, in_place):
    """As training does when it resumes from a checkpoint before the last step."""
    report = RunReport(growing)
    append(growing, text_of(step_line(1), step_line(2), validation_line(2, samples=[SAMPLE]), step_line(3)))
    assert state(report) == (3, [1, 2, 3], [2], [SAMPLE])
    path = growing / "metrics.jsonl" if in_place else growing / "other"
    path.write_text(text_of(step_line(1)), encoding="utf-8")
    path.rename(growing / "metrics.jsonl")
    assert state(report) == (1, [1], [], [])
    append(growing, text_of(step_line(2, 5.0)))
    assert report.read()["training_loss"] == [[1, 1.0], [2, 5.0]]
    longer = text_of(*(step_line(step) for step in range(1, 9)))
    (growing / "other").write_text(longer, encoding="utf-8")
    (growing / "other").rename(growing / "metrics.jsonl")
    assert state(report) == (8, list(range(1, 9)), [], [])
    (growing / "metrics.jsonl").unlink()
    assert state(report) == (0, [], [], [])


def test_report_begins_again_when_a_longer_file_has_the_same_inode(growing):
    """As happens when the file is replaced twice between two reads: the inode of the first is free again."""
    report = RunReport(growing)
    append(growing, text_of(step_line(1), step_line(2)))
    assert state(report) == (2, [1, 2], [], [])
    (growing / "metrics.jsonl").write_text(text_of(step_line(1), step_line(2, 7.0), step_line(3)), encoding="utf-8")
    assert report.read()["training_loss"] == [[1, 1.0], [2, 7.0], [3, 3.0]]


def test_training_loss_is_averaged(growing):
    """Of a long run, groups of consecutive steps; a loss that is not finite is left out."""
    lines = [step_line(step) for step in range(1, 2 * MAX_POINTS + 2)]
    lines[2]["loss"] = None
    append(growing, text_of(*lines))
    points = RunReport(growing).read()["training_loss"]
    assert len(points) == MAX_POINTS
    assert points[:2] == [[1.5, 1.5], [4.5, 4.5]]
    assert points[-1] == [2 * MAX_POINTS + 0.5] * 2


def test_best_checkpoint_is_that_of_the_newest_intact_record(workdir, growing):
    shutil.copytree(workdir / "checkpoints", growing / "checkpoints")
    steps = saved_steps(growing / "checkpoints")
    best = {step: read_metadata(growing / "checkpoints", step)["best_step"] for step in steps}
    assert RunReport(growing).read()["best_checkpoint"] == best[steps[-1]]
    shutil.rmtree(growing / "checkpoints" / str(steps[-1]) / "metadata")
    expected = best[steps[-2]] if best[steps[-2]] in steps else None
    assert RunReport(growing).read()["best_checkpoint"] == expected
    for step in steps[:-1]:
        shutil.rmtree(growing / "checkpoints" / str(step) / "metadata")
    assert RunReport(growing).read()["best_checkpoint"] is None


def test_examples_of_the_phrasebook_are_pairs_that_differ_in_one_word(tmp_path):
    config = read_config(ROOT / "configs" / "tiny.toml")
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    examples = example_sentences(tmp_path)
    contrasts = generate().contrasts
    french = dict(pair for contrast in contrasts for pair in (contrast.first, contrast.second))
    assert len(examples["ambiguous"]) == 24
    assert [each["word"] for each in examples["ambiguous"]] == sorted({contrast.word for contrast in contrasts})
    for each in examples["ambiguous"]:
        first, second = each["sentences"]
        words = [sentence.replace("?", " ").replace(".", " ").lower().split() for sentence in (first, second)]
        form = {"bring": "brought", "know": "knew"}.get(each["word"], each["word"])
        assert any(word.startswith(form) for word in set(words[0]) & set(words[1]))
        assert sum(a != b for a, b in zip(*words, strict=True)) == 1
        assert french[first] != french[second]
    assert len(examples["sentences"]) == 6
    reversed_data = config.data.model_copy(update={"source_language": "fr", "target_language": "en"})
    reversed_config = config.model_copy(update={"data": reversed_data})
    (tmp_path / "config.toml").write_text(to_toml(reversed_config), encoding="utf-8")
    assert example_sentences(tmp_path) == {"sentences": [], "ambiguous": []}
