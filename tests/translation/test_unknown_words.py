"""Words that the training text never had: what a run keeps of them, and what is said of them, by real runs."""

import json
import re
import shutil
from collections import Counter

import pytest

from lingua_flax.data.known_words import KnownWords
from lingua_flax.runs.checkpoint import METADATA_FORMAT
from lingua_flax.translation.translator import GUESSED, UNKNOWN_WORDS, Translator
from tests.toy import ENGLISH

QUICK = ["--training.eval-every", 0, "--training.checkpoint-every", 1]


def words_of(*texts):
    """Counts the words of the toy corpus, which are ASCII, in another way."""
    return Counter(word for text in texts for word in re.findall("[a-z]+", text.lower()))


def tsv(counts):
    return "".join(f"{word}\t{count}\n" for word, count in sorted(counts.items())).encode()


def test_run_keeps_the_words_of_its_training_text(trained, toy):
    counts = words_of((toy.parent / "train.en").read_text())
    assert set(counts) == set(ENGLISH)
    assert (trained[0] / "words.tsv").read_bytes() == tsv(counts)


def test_words_of_a_mixture_and_of_the_origin_are_known_and_stay_when_the_run_resumes(trained, toy, run, tmp_path):
    (tmp_path / "more.en").write_text("Ananas, three pizza.\n" * 5)
    (tmp_path / "more.fr").write_text("un deux\n" * 5)
    more = {"train-source": tmp_path / "more.en", "train-target": tmp_path / "more.fr", "name": "text"}
    options = [item for name, value in more.items() for item in (f"--data.mixture.0.{name}", value)]
    command = ("train", "--config", toy, "--workdir", tmp_path / "w", "--init-from", trained[0], *options, *QUICK)
    done = run(*command, "--training.num-steps", 2)
    assert done.returncode == 0, done.stderr
    own = words_of((toy.parent / "train.en").read_text(), (tmp_path / "more.en").read_text())
    file = tmp_path / "w" / "words.tsv"
    assert file.read_bytes() == tsv(own + words_of((toy.parent / "train.en").read_text()))
    file.write_bytes(b"other\t1\n")
    done = run(*command, "--training.num-steps", 3)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == b"other\t1\n"


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.load(trained[0])


def test_translation_has_its_unknown_words(translator):
    lines = ["one pizza two.", "Pizza, Pizza ananas ONE! nine kiwi kiwi.", "one 12 two.", "日本語です。 two pizza.", ""]
    expected = [("pizza",), ("Pizza", "ananas", "kiwi"), (), ("pizza",), ()]
    assert [each.unknown_words for each in translator.translate(lines)] == expected
    assert [each.unknown_words for each in translator.translate_sentences(lines)] == [()] * 5


def test_translate_names_unknown_words_and_guesses(trained, run):
    lines = ["one two.", "one pizza.", "Ananas seven. Kiwi pizza one.", "one", *["zero zwei"] * 9]
    command = ("translate", "--workdir", trained[0], "--beam-size", 1)
    done = run(*command, input="\n".join(lines) + "\n")
    assert done.returncode == 0
    named = "line 2 (pizza), 3 (Ananas, Kiwi, pizza), 5 (zwei), 6 (zwei), 7 (zwei) and 6 more"
    warnings = done.stderr.splitlines()
    assert f"{UNKNOWN_WORDS}: {named}" in warnings
    assert f"{GUESSED}: line 3" in warnings
    done = run(*command, input="one aa ab ac ad ae af ag\n", env={})
    assert f"{UNKNOWN_WORDS}: line 1 (aa, ab, ac, ad, ae and 2 more)" in done.stderr.splitlines()
    for known in ("ONE Two, 3 https://example.org/pizza.", "", "Привет мир"):
        done = run(*command, input=known)
        assert UNKNOWN_WORDS not in done.stderr
        assert GUESSED not in done.stderr


def test_json_lines_have_unknown_words(trained, run):
    done = run("translate", "--workdir", trained[0], "--beam-size", 1, "--json-lines", input="one pizza.\ntwo\n")
    assert [json.loads(line)["unknown_words"] for line in done.stdout.splitlines()] == [["pizza"], []]


def test_lines_of_a_corpus_are_translated_silently(trained, run, tmp_path):
    (tmp_path / "a.en").write_text("pizza ananas\nПривет мир\n")
    (tmp_path / "a.fr").write_text("un\ndeux\n")
    files = ("--source", tmp_path / "a.en", "--reference", tmp_path / "a.fr", "--output", tmp_path / "out")
    done = run("evaluate", "--workdir", trained[0], "--beam-size", 1, *files)
    assert done.returncode == 0, done.stderr
    assert UNKNOWN_WORDS not in done.stderr
    assert GUESSED not in done.stderr
    assert "Привет" not in (tmp_path / "out").read_text()


def test_workdir_without_words_or_of_an_older_format_is_refused_in_a_sentence(trained, run, tmp_path):
    workdir = tmp_path / "w"
    shutil.copytree(trained[0], workdir)
    (workdir / "words.tsv").unlink()
    done = run("translate", "--workdir", workdir, input="one")
    assert (done.returncode, done.stderr) == (2, f"error: {workdir / 'words.tsv'}: no such file; check the path\n")
    assert KnownWords.load(trained[0]).counts.total() > 0
    assert METADATA_FORMAT == 8
