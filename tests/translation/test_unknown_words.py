"""Words that the training text never had: what a run keeps of them, and what is said of them, by real runs."""

import json
import re
import shutil
from collections import Counter

import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.translation.translator import GUESSED, UNKNOWN_WORDS, Translator


def words_of(*files):
    """Returns the file with the words of texts, which are ASCII, and how often they occur, counted in another way."""
    counts = Counter(word for file in files for word in re.findall("[a-z]+", file.read_text().lower()))
    return "".join(f"{word}\t{count}\n" for word, count in sorted(counts.items())).encode()


def test_words_of_the_training_text_a_mixture_and_the_origin_are_kept(trained, toy, run, tmp_path):
    own, more, kept = toy.parent / "train.en", tmp_path / "more.en", tmp_path / "w" / "words.tsv"
    assert (trained[0] / "words.tsv").read_bytes() == words_of(own)
    more.write_text("Ananas, three pizza.\n" * 5)
    (tmp_path / "more.fr").write_text("un deux\n" * 5)
    files = {"train-source": more, "train-target": tmp_path / "more.fr", "name": "text"}
    mixture = [item for name, value in files.items() for item in (f"--data.mixture.0.{name}", value)]
    quick = ["--training.eval-every", 0, "--training.checkpoint-every", 1]
    command = ("train", "--config", toy, "--workdir", kept.parent, "--init-from", trained[0], *mixture, *quick)
    done = run(*command, "--training.num-steps", 2)
    assert done.returncode == 0, done.stderr
    assert kept.read_bytes() == words_of(own, more, own)
    kept.write_bytes(b"other\t1\n")
    assert run(*command, "--training.num-steps", 3).returncode == 0
    assert kept.read_bytes() == b"other\t1\n"  # a resumed run does not count again


def test_translations_and_evaluations_name_unknown_words(trained):
    translator = Translator.load(trained[0])
    lines = ["one pizza two.", "Pizza, Pizza ananas ONE! nine kiwi kiwi.", "one 12 two.", "日本語です。 two pizza.", ""]
    expected = [("pizza",), ("Pizza", "ananas", "kiwi"), (), ("pizza",), ()]
    assert [each.unknown_words for each in translator.translate(lines)] == expected
    assert [each.unknown_words for each in translator.translate_sentences(lines)] == [()] * 5  # as in evaluations


def test_command_warns_of_unknown_words_and_guesses(trained, run):
    lines = [
        "one two.",
        "one pizza.",
        "Ananas seven. Kiwi pizza one.",
        "one",
        *["zero zwei"] * 9,
        "one aa ab ac ad ae af ag",
    ]
    command = ("translate", "--workdir", trained[0], "--beam-size", 1)
    done = run(*command, "--json-lines", input="\n".join(lines))
    assert [json.loads(line)["unknown_words"] for line in done.stdout.splitlines()[:2]] == [[], ["pizza"]]
    named = "line 2 (pizza), 3 (Ananas, Kiwi, pizza), 5 (zwei), 6 (zwei), 7 (zwei) and 7 more"
    warnings = done.stderr.splitlines()
    assert f"{UNKNOWN_WORDS}: {named}" in warnings
    assert f"{GUESSED}: line 3, 14" in warnings
    known = run(*command, input="ONE Two, 3 https://example.org/pizza.\n\nПривет мир")
    assert UNKNOWN_WORDS not in known.stderr
    assert GUESSED not in known.stderr
    assert "line 1 (aa, ab, ac, ad, ae and 2 more)" in run(*command, input=lines[-1]).stderr


def test_workdir_without_words_is_refused(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "w")
    (tmp_path / "w" / "words.tsv").unlink()
    with pytest.raises(UserError, match=r"words\.tsv: no such file"):
        Translator.load(tmp_path / "w")
