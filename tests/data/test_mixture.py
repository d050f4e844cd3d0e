"""Training on a mixture of corpora: shares, order, resuming, target languages, and a killed run with all of these."""

import itertools
import json
import os
import shutil
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from lingua_flax.commands.train import resolve_config
from lingua_flax.data.mixture import JoinedPairs, open_training_corpora
from lingua_flax.data.tokenizer import train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig, MixtureConfig, TokenizerConfig
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from lingua_flax.training import preparation
from lingua_flax.training.preparation import prepare
from lingua_flax.training.validation import ValidationSet, validate
from lingua_flax.translation.translator import Translator
from tests.helpers.batches import batches_digest, sampled_mixture
from tests.helpers.commands import succeed
from tests.helpers.pairs import PAIRS, numbered
from tests.processes import digests, metrics, start, wait_for
from tests.toy import ENGLISH, FRENCH, write_corpus

STEPS = 160
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
RESTARTED = """
import json, pathlib, sys
from tests.helpers.batches import batches_digest, sampled_mixture
print(batches_digest(sampled_mixture(pathlib.Path(sys.argv[1])), json.loads(sys.argv[2])))
"""


def test_joined_pairs_are_all_pairs_in_order():
    joined = JoinedPairs([PAIRS[:3], PAIRS[3:4], PAIRS[4:8]])
    assert len(joined) == 8
    assert list(joined) == [joined[i] for i in range(8)] == PAIRS[:8]
    with pytest.raises(IndexError):
        joined[8]


def test_restored_batches_are_the_same_in_any_process(run, tmp_path):
    """In this process, in a worker process, and in another one, which also trains the tokenizers and samples again."""
    planner = sampled_mixture(tmp_path)
    state = {"window": 1, "row": len(planner.window(1)) - 10}  # five batches reach into the next window
    expected = batches_digest(planner, state)
    assert batches_digest(planner, state, processes=1) == expected
    assert batches_digest(planner, state | {"row": state["row"] - 1}) != expected
    restarted = run("-c", RESTARTED, tmp_path / "cache", json.dumps(state), env=os.environ | {"PYTHONHASHSEED": "7"})
    assert restarted.stdout == f"{expected}\n", restarted.stderr


def test_mixture_must_not_train_on_held_out_pairs(files):
    """Both directions of a corpus whose validation or test pairs are held out of its training pairs."""
    source, target = (files.write(f"a.{language}", numbered(40, language)) for language in ("en", "fr"))
    entry = {"train_source": files.folder / "." / "a.fr", "train_target": source}
    reverse = MixtureConfig(source_language="fr", target_language="en", **entry)
    config = DataConfig(name="text", train_source=source, train_target=target, mixture=(reverse,))
    for missing in ("data.validation_source and data.test_source", "data.test_source"):
        with pytest.raises(UserError, match=f"data.mixture.0 has the training pairs of data, .*; set {missing}$"):
            open_training_corpora(config)
        config = config.model_copy(update={"validation_source": source, "validation_target": target})
    assert len(open_training_corpora(config.model_copy(update={"test_source": source, "test_target": target}))) == 2


# Runs.


def write_mixture(folder: Path) -> Path:
    """Writes the toy corpus, and 300 pairs of English and German numbers, not reversed. Returns the config's path."""
    path = write_corpus(folder)
    draw = np.random.default_rng(0)
    sentences = [draw.integers(10, size=draw.integers(1, 6)) for _ in range(300)]
    for words, name in ((ENGLISH, "more.en"), (GERMAN, "more.de")):
        lines = "".join(" ".join(words[n] for n in sentence) + ".\n" for sentence in sentences)
        (folder / name).write_text(lines, encoding="utf-8")
    entry = {"train_source": f"{folder}/more.en", "train_target": f"{folder}/more.de", "target_language": "de"}
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    config["tokenizer"] |= {"vocab_size": 62, "sampling_alpha": 0.3}
    config["data"] |= {"tag_target": True, "weight": 2, "mixture": [entry]}
    config["training"] |= {"num_steps": STEPS, "eval_every": STEPS, "ema_decay": 0.9}
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def trained(toy, run, tmp_path_factory):
    """Returns a workdir trained on a mixture with tags, sampling and averaging, and the completed command."""
    workdir = tmp_path_factory.mktemp("runs") / "mixed"
    return workdir, run("train", "--config", toy, "--workdir", workdir)


def test_training_reports_pairs_and_share_of_each_corpus(trained):
    _, result = trained
    assert result.returncode == 0, result.stderr
    for words in (
        "data, text en-fr: kept 700 of 700 pairs, 0 longer than 32 tokens",
        "data, text en-fr: 66.7% of the training pairs drawn, each 0.95 times an epoch",
        "data.mixture.0, text en-de: kept 300 of 300 pairs",
        "data.mixture.0, text en-de: 33.3% of the training pairs drawn, each 1.11 times an epoch",
    ):
        assert words in result.stderr
    assert "held out" not in result.stderr


@pytest.mark.slow
def test_killed_run_with_mixture_sampling_and_averaging_resumes_bit_for_bit(trained, toy, run, tmp_path):
    process = start(toy, tmp_path / "w")
    wait_for(process, lambda: 40 in saved_steps(tmp_path / "w" / "checkpoints"))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    result = succeed(run, "train", "--config", toy, "--workdir", tmp_path / "w")
    assert "resuming from step" in result.stderr
    assert metrics(tmp_path / "w") == metrics(trained[0])
    assert digests(tmp_path / "w") == digests(trained[0])
    arrays = digests(trained[0])[1]
    average, trained_params = (arrays[f"{item}['target_embedding']"] for item in ("params", "training[4]"))
    assert average != trained_params


def words_of(text: str) -> set[str]:
    return set(text.replace(".", " ").split())


def test_validation_uses_the_saved_moving_average(trained, toy):
    """Without a target language, it translates into that of [data]."""
    sides = [(toy.parent / f"validation.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "fr")]
    translator = Translator.load(trained[0], "last")
    result = validate(translator, ValidationSet.of(list(zip(*sides, strict=True)), translator.tokenizer))
    last = metrics(trained[0])[-1]
    assert last["validation_loss"] == pytest.approx(result.loss, rel=1e-5)
    assert last["validation_bleu"] == pytest.approx(result.bleu)
    translated = words_of(" ".join(sample.translation for sample in result.samples))
    assert translated & set(FRENCH)
    assert not translated & set(GERMAN)


def test_translations_are_in_the_requested_language(trained, run, tmp_path):
    command = ["translate", "--workdir", trained[0], "--target-language", "de", "--beam-size", 1]
    command.append("--translate-unknown")  # also what looks like a tag
    first, empty, last = succeed(run, *command, input="<2fr> two four.\n\none.\n").stdout.splitlines()
    assert empty == ""  # the tag is not added to an empty line
    assert words_of(first + last) <= set(GERMAN)
    assert words_of(first + last) & {"zwei", "vier", "eins"}
    test, output = tmp_path / "test.tsv", tmp_path / "translations"
    test.write_text("one two three four.\teins zwei drei vier.\n" * 3, encoding="utf-8")
    german = ["--data.target-language", "de", "--data.test-source", test, "--data.test-target", "None"]
    succeed(run, "evaluate", "--workdir", trained[0], "--beam-size", 1, "--output", output, *german)
    lines = output.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert words_of(lines[0]) <= set(GERMAN)


def test_languages_of_a_translator(trained, tmp_path):
    """The source language, by whose rules text is divided, is that of the first direction into the target language."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    config = tomllib.loads((workdir / "config.toml").read_text(encoding="utf-8"))
    config["data"]["mixture"][0]["source_language"] = "nl"
    (workdir / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    languages = [Translator.load(workdir, target_language=language).languages for language in (None, "fr", "de")]
    assert languages == [("en", "fr"), ("en", "fr"), ("nl", "de")]
    with pytest.raises(UserError, match="no tag <2es>; it has <2fr>, <2de>"):
        Translator.load(workdir, target_language="es")
    (workdir / "config.toml").write_text("[data]\ntarget_language = 'fr'")
    with pytest.raises(UserError, match=r"tags \(data.tag_target\), so de cannot be selected: it translates into fr"):
        Translator.load(workdir, target_language="de")


def prepared(toy, workdir: Path, *options: object):
    argv = ["--config", toy, "--workdir", workdir, *options]
    return prepare(resolve_config(list(map(str, argv)))[0], workdir)


def test_run_resumes_only_with_the_same_mixture(trained, toy, tmp_path):
    """Whose files may have been moved."""
    workdir, moved = trained[0], write_mixture(tmp_path).parent
    files = ["--data.mixture.0.train-source", moved / "more.en", "--data.mixture.0.train-target", moved / "more.de"]
    saved = read_metadata(workdir / "checkpoints", STEPS)["data_digests"]
    assert prepared(toy, workdir, *files).data_digests == saved
    (moved / "more.de").write_text((moved / "more.de").read_text().replace("eins", "ein"))
    changed = prepared(toy, workdir, *files).data_digests
    assert [name for name in saved if changed[name] != saved[name]] == ["mixture"]
    with pytest.raises(UserError, match=r"data.mixture.0.weight: 1.0 in the workdir, now 2.0"):
        prepared(toy, workdir, "--data.mixture.0.weight", 2)


def test_the_rows_of_an_epoch_are_counted_anew_for_other_weights(toy, tmp_path):
    """With as many epochs as a batch has rows, there are as many steps as an epoch has rows."""
    for weight in (1, 9):
        options = ("--data.mixture.0.weight", weight, "--tokenizer.sampling-alpha", 0, "--training.num-epochs", 16)
        run = prepared(toy, tmp_path, *options)
        assert run.config.rows_per_batch == 16
        assert run.num_steps == len(run.planner.window(0))


def test_a_set_of_corpora_is_named_once_and_validated_by_language(run, tmp_path, monkeypatch):
    """With the temperature 2, 700 and 300 pairs are drawn as their roots are, 26.5 to 17.3."""
    path = write_mixture(tmp_path / "fr")
    (tmp_path / "de").mkdir()
    sizes = {"train": 300, "validation": 40, "test": 20}
    for (split, count), language in itertools.product(sizes.items(), ("en", "de")):
        lines = (tmp_path / "fr" / f"more.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "de" / f"{split}.{language}").write_text("".join(lines[:count]), encoding="utf-8")
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    data = {
        "name": "text",
        "tag_target": True,
        "temperature": 2,
        "row_length": 32,
        "mixture": [{"target_language": "de"}],
    }
    for split, (side, ending) in itertools.product(sizes, (("source", "en"), ("target", "{target}"))):
        data[f"{split}_{side}"] = f"{tmp_path}/{{target}}/{split}.{ending}"  # a folder and an ending
    path.write_text(tomli_w.dumps(config | {"data": data}), encoding="utf-8")
    done = succeed(run, "train", "--config", path, "--workdir", tmp_path / "w", "--training.num-steps", 60)
    for words in ("data, text en-fr: 60.4% of the", "data.mixture.0, text en-de: 39.6% of the", "these are means"):
        assert words in done.stderr
    last, found = metrics(tmp_path / "w")[-1], {}
    for language in ("fr", "de"):
        options = ("--split", "validation", "--beam-size", 1, "--json", tmp_path / "scores.json")
        succeed(run, "evaluate", "--workdir", tmp_path / "w", "--data.target-language", language, *options)
        found[language] = json.loads((tmp_path / "scores.json").read_text())["chrf"]
        assert last[f"validation_chrf_en-{language}"] == pytest.approx(found[language])
        assert f"of en-{language}" in done.stdout
    assert last["validation_chrf"] == pytest.approx((found["fr"] + found["de"]) / 2)
    assert found["fr"] != found["de"]
    monkeypatch.setattr(preparation, "VALIDATED_PAIRS", 20)
    sets = prepared(path, tmp_path / "again").validation_sets()
    assert [(each.languages[1], len(each)) for each in sets] == [("fr", 10), ("de", 10)]
    assert sets[1].sources == (tmp_path / "de" / "validation.en").read_text().splitlines()[::4]


# Tags.


def test_given_tokenizer_must_have_the_tags(toy, tmp_path):
    model = tmp_path / "m.model"
    model.write_bytes(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["<2fr>"])[0])
    with pytest.raises(UserError, match=r"no tag <2de>; it has <2fr>; train it with --control_symbols=<2fr>,<2de>"):
        prepared(toy, tmp_path / "w", "--tokenizer.model-file", str(model))
    model.write_bytes(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["<2de>", "<2fr>"])[0])
    assert prepared(toy, tmp_path / "w", "--tokenizer.model-file", str(model)).tokenizer.source_tags == (5,)


@pytest.mark.parametrize("target_tags", [False, True])
def test_tagged_sources_begin_with_the_tag_but_translations_do_not(toy, tmp_path, caplog, target_tags):
    options = ["--data.mixture.0.tag-source", "True", "--data.tag-target", str(target_tags)]
    options += ["--tokenizer.sampling-alpha", "0", "--tokenizer.vocab-size", "60"]
    run = prepared(toy, tmp_path / "w", *options)
    piece_ids = {piece: run.tokenizer.source.piece_to_id(piece) for piece in ("<2fr>", "<2de>", "<bt>")}
    for pairs, expected in zip(run.planner.corpora, (["<2fr>"], ["<2de>", "<bt>"]), strict=True):
        tags = [piece_ids[piece] for piece in expected if target_tags or piece == "<bt>"]
        for source, _ in itertools.islice(pairs, 20):
            assert source[: len(tags)].tolist() == tags
            assert not np.isin(source[len(tags) :], [4, 5, 6][: 3 if target_tags else 1]).any()
    assert run.tokenizer.source_tags == ((piece_ids["<2fr>"],) if target_tags else ())
    warning = "nothing tells the model which of fr and de to translate into"
    assert (warning in caplog.text) == (not target_tags)
