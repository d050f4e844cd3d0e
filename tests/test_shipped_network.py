"""checkpoints/phrasebook, which is shipped: it is small and keeps its scores, and commands leave it as it is."""

import json
import subprocess

import pytest
import sacrebleu

from lingua_flax.data.corpora import open_corpus
from lingua_flax.evaluation.contrast import right_pairs
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.translation.translator import Translator
from tests.conftest import ROOT

SHIPPED = ROOT / "checkpoints" / "phrasebook"
SENTENCE = "I swam across the river to get to the other bank.\n"


def git(*arguments):
    done = subprocess.run(["git", *arguments, SHIPPED], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone")
    return done.stdout


def test_is_small():
    assert sum((ROOT / name).stat().st_size for name in git("ls-files", "-z").split("\0") if name) <= 3_000_000


def test_keeps_its_scores():
    """Both sets are translated together, as by lingua-flax evaluate."""
    corpus = open_corpus(read_workdir_config(SHIPPED).data)
    pairs = [*corpus.split("test"), *corpus.split("contrast")]
    translated = Translator.load(SHIPPED).translate_sentences([pair.source for pair in pairs])
    translations, references = [line.text for line in translated], [pair.target for pair in pairs]
    count = len(corpus.split("test"))
    stored = {split: json.loads((SHIPPED / f"{split}.json").read_text()) for split in ("test", "contrast")}
    bleu = sacrebleu.corpus_bleu(translations[:count], [references[:count]]).score
    assert count == stored["test"]["sentences"]
    assert bleu >= stored["test"]["bleu"] - 0.2
    right = right_pairs(translations[count:], references[count:])
    assert len(right) == stored["contrast"]["contrast_pairs"]
    assert sum(right) >= stored["contrast"]["contrast_right"] - 3


def test_commands_translate_with_it_and_leave_the_clone_as_it_is(run, tmp_path):
    before = git("status", "--porcelain")
    lines = 17  # as many as it takes for the program that has translated the test set
    translated = run("translate", "--workdir", SHIPPED, input=SENTENCE * lines)
    assert translated.stdout == "J'ai traversé la rivière à la nage pour atteindre l'autre rive.\n" * lines
    for name in ("in.en", "in.fr"):
        (tmp_path / name).write_text(SENTENCE * lines)
    files = ("--source", tmp_path / "in.en", "--reference", tmp_path / "in.fr")
    assert run("evaluate", "--workdir", SHIPPED, *files).returncode == 0
    assert run("compare", SHIPPED, *files).returncode == 0
    trained = run("train", "--workdir", SHIPPED)
    assert (trained.returncode, trained.stderr) == (0, "")
    assert "--init-from" in trained.stdout
    assert git("status", "--porcelain") == before
