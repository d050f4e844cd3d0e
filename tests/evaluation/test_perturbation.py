"""evaluate --perturb: scores on sources in upper case, in title case and without final punctuation."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu

from lingua_flax.data.text_changes import CHANGES
from lingua_flax.evaluation.evaluate import EvaluationSet, perturbed_scores
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator

SOURCES = [f"{word} man sees the dogs of his two friends." for word in ("one", "a", "NATO's", "this")]


def scores_with(translate):
    def translate_sentences(lines, *_, **__):
        return [SimpleNamespace(text=text) for text in translate(lines)]

    network = SimpleNamespace(translate_sentences=translate_sentences)
    return perturbed_scores(network, EvaluationSet("", SOURCES, SOURCES), DecodingOptions(), "13a", translate(SOURCES))


@pytest.mark.parametrize("likewise", [True, False])
def test_case_and_final_punctuation_of_translations_do_not_matter(likewise):
    """A network that copies its source has the same scores as one that always answers in the usual case."""
    usual = {change(line): line for line in SOURCES for change in CHANGES.values()} | {line: line for line in SOURCES}

    def translate(lines):
        return list(lines) if likewise else [usual[line] for line in lines]

    results = scores_with(translate)
    assert list(results) == ["untouched", *CHANGES]
    for scores in results.values():
        assert (scores["bleu"], scores["chrf"]) == pytest.approx((100, 100))
        assert "case:lc" in scores["bleu_signature"]


def test_a_network_that_knows_only_clean_text_loses_elsewhere():
    def translate(lines):
        return [line if line in SOURCES else "?" for line in lines]

    results = scores_with(translate)
    assert results["untouched"]["bleu"] == pytest.approx(100)
    assert all(results[name]["bleu"] == 0 for name in CHANGES)


def test_evaluate_perturb_agrees_with_sacrebleu_on_a_real_run(trained, toy, run, tmp_path):
    file = tmp_path / "scores.json"
    result = run("evaluate", "--workdir", trained[0], "--beam-size", 1, "--perturb", "--json", file)
    assert result.returncode == 0, result.stderr
    scores = json.loads(file.read_text())["perturbed"]
    sources, references = (read(toy.parent / f"test.{end}") for end in ("en", "fr"))
    translator = Translator.load(trained[0])
    rows = {"untouched": sources, "upper_case": [line.upper() for line in sources]}
    rows |= {"title_case": [line.title() for line in sources], "no_final_punctuation": [line[:-1] for line in sources]}
    for name, lines in rows.items():
        translations = [line.text for line in translator.translate_sentences(lines, DecodingOptions(beam_size=1))]
        compared = [[line.rstrip(" !.").lower() for line in side] for side in (translations, references)]
        assert scores[name]["bleu"] == pytest.approx(sacrebleu.corpus_bleu(compared[0], compared[1:]).score)
        assert scores[name]["chrf"] == pytest.approx(sacrebleu.corpus_chrf(compared[0], compared[1:]).score)
        assert name.replace("_", " ") in result.stdout
    assert scores["upper_case"]["chrf"] < scores["untouched"]["chrf"] - 20
    refused = run("evaluate", "--workdir", trained[0], "--score", "--perturb")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--perturb has no effect with --score" in refused.stderr


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
