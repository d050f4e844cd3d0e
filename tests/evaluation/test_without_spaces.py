"""A run into a language without spaces: validation and evaluation have its BLEU, not that of words."""

import json
import random

import pytest
import sacrebleu

from tests.toy import CONFIG, ENGLISH

CHINESE = "零一二三四五六七八九"


def test_scores_of_a_chinese_run_are_by_the_tokenizer_for_chinese_or_a_chosen_one(run, tmp_path):
    draw = random.Random(0)
    for split, count in (("train", 700), ("validation", 31), ("test", 37)):
        pairs = [[draw.randrange(10) for _ in range(draw.randint(2, 5))] for _ in range(count)]
        sources = "".join(" ".join(ENGLISH[n] for n in pair) + ".\n" for pair in pairs)
        targets = "".join("".join(CHINESE[n] for n in pair) + "。\n" for pair in pairs)
        (tmp_path / f"{split}.en").write_text(sources, encoding="utf-8")
        (tmp_path / f"{split}.fr").write_text(targets, encoding="utf-8")
    config, workdir = tmp_path / "chinese.toml", tmp_path / "w"
    config.write_text(CONFIG.format(folder=tmp_path).replace("[data]", '[data]\ntarget_language = "zh"'))
    options = ("--training.num-steps", 100, "--training.eval-every", 100)
    done = run("train", "--config", config, "--workdir", workdir, *options)
    assert done.returncode == 0, done.stderr
    assert "at step 100 (greedy, tokenizer zh)" in done.stdout
    assert json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])["validation_bleu"] > 5  # else no rank
    output, scores = tmp_path / "translations.txt", tmp_path / "scores.json"
    references = (tmp_path / "test.fr").read_text(encoding="utf-8").splitlines()
    for chosen, tokenizer in (([], "zh"), (["--evaluation.tokenize", "char"], "char")):
        done = run("evaluate", "--workdir", workdir, *chosen, "--output", output, "--json", scores)
        assert done.returncode == 0, done.stderr
        hypotheses = output.read_text(encoding="utf-8").splitlines()
        expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenizer).score
        assert json.loads(scores.read_text())["bleu"] == pytest.approx(expected)
        assert f"tok:{tokenizer}|" in done.stdout
    refused = run("evaluate", "--workdir", workdir, "--evaluation.tokenize", "zh-tw")
    assert refused.returncode == 2
    assert "evaluation.tokenize" in refused.stderr.splitlines()[-1]
