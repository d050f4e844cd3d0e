"""evaluate --perturb: scores on sources in upper case, in title case and without final punctuation."""

import json

import pytest
import sacrebleu

from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator


def test_scores_agree_with_sacrebleu_on_text_without_case_and_final_punctuation(trained, toy, run, tmp_path):
    file = tmp_path / "scores.json"
    result = run("evaluate", "--workdir", trained[0], "--beam-size", 1, "--perturb", "--json", file)
    assert result.returncode == 0, result.stderr
    scores = json.loads(file.read_text())["perturbed"]
    sources, references = ((toy.parent / f"test.{end}").read_text().splitlines() for end in ("en", "fr"))
    translator = Translator.load(trained[0])
    rows = {"untouched": sources, "upper_case": [line.upper() for line in sources]}
    rows |= {"title_case": [line.title() for line in sources], "no_final_punctuation": [line[:-1] for line in sources]}
    assert list(scores) == list(rows)
    for name, lines in rows.items():
        translations = [line.text for line in translator.translate_sentences(lines, DecodingOptions(beam_size=1))]
        compared = [[line.rstrip(" !.").lower() for line in side] for side in (translations, references)]
        assert scores[name]["bleu"] == pytest.approx(sacrebleu.corpus_bleu(compared[0], compared[1:]).score)
        assert scores[name]["chrf"] == pytest.approx(sacrebleu.corpus_chrf(compared[0], compared[1:]).score)
        assert "case:lc" in scores[name]["bleu_signature"]
        assert name.replace("_", " ") in result.stdout
    assert scores["upper_case"]["chrf"] < scores["untouched"]["chrf"] - 20
    refused = run("evaluate", "--workdir", trained[0], "--score", "--perturb")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--perturb has no effect with --score" in refused.stderr
