"""Words and sentences of the training text: what a run keeps of them, and what is said of words that it never had."""

import json
import re
from collections import Counter

import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.training.preparation import prepare
from lingua_flax.translation.line_warnings import GUESSED, UNKNOWN_WORDS
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.load(trained[0])


def words_of(*files):
    """Returns the file with the words of texts, and how often they occur, counted in another way."""
    counts = Counter(word for file in files for word in re.findall(r"[^\W\d_]+", file.read_text("utf-8").lower()))
    return "".join(f"{word}\t{count}\n" for word, count in sorted(counts.items())).encode()


def test_a_run_looks_at_the_sentences_of_its_training_text_and_keeps_its_words(trained, toy, run, tmp_path):
    """And those of a mixture and of the run from which it starts; a tokenizer of another text is noted."""
    own = toy.parent / "train.en"
    assert (trained[0] / "words.tsv").read_bytes() == words_of(own)
    (tmp_path / "train.ru").write_text("Мама мыла раму. Папа читал.\n" * 20, "utf-8")
    (tmp_path / "train.fr").write_text("un deux trois. un.\n" * 20)
    (tmp_path / "more.en").write_text("Ananas, three pizza.\n" * 5)
    (tmp_path / "more.fr").write_text("un deux\n" * 5)
    options = ["--data.train-source", tmp_path / "train.ru", "--data.train-target", tmp_path / "train.fr"]
    options += ["--data.mixture.0.train-source", tmp_path / "more.en", "--data.mixture.0.name", "text"]
    options += ["--data.mixture.0.train-target", tmp_path / "more.fr", "--training.init-from", trained[0]]
    options += ["--training.num-steps", 1, "--training.eval-every", 0]
    done = succeed(run, "train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert (tmp_path / "w" / "words.tsv").read_bytes() == words_of(own, tmp_path / "train.ru", tmp_path / "more.en")
    assert prepare(read_workdir_config(tmp_path / "w"), tmp_path / "w").words is None  # not counted again
    several, other = "of the training lines hold several sentences: ", "the tokenizer has no pieces for "
    assert f"100% {several}translation will take lines as they are, rather than sentence by sentence" in done.stderr
    assert f"data, text en-fr: {other}characters in 20 of 20 sampled sentences in en, such as а, " in done.stderr
    assert several not in trained[1].stderr
    assert other not in trained[1].stderr
    (translation,) = Translator.load(tmp_path / "w").translate(["two nine. three zero."], beam_size=1)
    assert not translation.hypotheses[0].parts
    (tmp_path / "w" / "words.tsv").unlink()
    with pytest.raises(UserError, match=r"words\.tsv: no such file"):
        Translator.load(tmp_path / "w")


def test_command_warns_of_unknown_words_and_guesses(trained, translator, run, caplog):
    lines = ["one two.", "one pizza.", "Ananas seven. Kiwi pizza, Kiwi one.", "one", *["zero zwei"] * 9]
    lines.append("one aa ab ac ad ae af ag")
    done = run("translate", "--workdir", trained[0], "--beam-size", 1, "--json-lines", input="\n".join(lines))
    assert [json.loads(line)["unknown_words"] for line in done.stdout.splitlines()[:2]] == [[], ["pizza"]]
    named = "line 2 (pizza), 3 (Ananas, Kiwi, pizza), 5 (zwei), 6 (zwei), 7 (zwei) and 7 more"
    warnings = done.stderr.splitlines()
    assert f"{UNKNOWN_WORDS}: {named}" in warnings
    assert f"{GUESSED}: line 3, 14" in warnings
    caplog.clear()
    assert not any(
        each.unknown_words for each in translator.translate_sentences(lines, beam_size=1)
    )  # as in evaluations
    translator.translate(["ONE Two, 3 https://example.org/pizza.", "", "Привет мир"], beam_size=1)
    assert UNKNOWN_WORDS not in caplog.text
    assert GUESSED not in caplog.text
    translator.translate(lines[-1:], beam_size=1)
    assert "line 1 (aa, ab, ac, ad, ae and 2 more)" in caplog.text
