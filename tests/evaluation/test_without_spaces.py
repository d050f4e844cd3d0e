"""A run into a language without spaces: its BLEU, its best checkpoint and its early end follow what it has learned."""

import json
import random

import pytest
import sacrebleu

from tests.toy import CONFIG, ENGLISH

CHINESE = "零一二三四五六七八九"


@pytest.fixture(scope="module")
def chinese_run(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chinese")
    draw = random.Random(0)
    for split, count in (("train", 700), ("validation", 31), ("test", 37)):
        pairs = [[draw.randrange(10) for _ in range(draw.randint(2, 5))] for _ in range(count)]
        sources = "".join(" ".join(ENGLISH[n] for n in pair) + ".\n" for pair in pairs)
        targets = "".join("".join(CHINESE[n] for n in pair) + "。\n" for pair in pairs)
        (folder / f"{split}.en").write_text(sources, encoding="utf-8")
        (folder / f"{split}.fr").write_text(targets, encoding="utf-8")
    config = folder / "chinese.toml"
    config.write_text(CONFIG.format(folder=folder).replace("[data]", '[data]\ntarget_language = "zh"'))
    options = ("--training.num-steps", 200, "--training.eval-every", 40, "--training.patience", 2)
    done = run("train", "--config", config, "--workdir", folder / "w", *options)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_best_checkpoint_is_the_best_by_chinese_bleu(chinese_run, run):
    folder, done = chinese_run
    lines = [json.loads(line) for line in (folder / "w/metrics.jsonl").read_text().splitlines()]
    bleus = {line["step"]: line["validation_bleu"] for line in lines if "validation_bleu" in line}
    assert len(bleus) == 5  # patience did not end the run
    assert max(bleus.values()) > 50
    best = next(step for step in bleus if bleus[step] == max(bleus.values()))
    assert f"at step {best} (greedy, tokenizer zh)" in done.stdout
    output, scores = folder / "translations.txt", folder / "scores.json"
    done = run("evaluate", "--workdir", folder / "w", "--output", output, "--json", scores)
    assert done.returncode == 0, done.stderr
    scores = json.loads(scores.read_text())
    references = (folder / "test.fr").read_text(encoding="utf-8").splitlines()
    expected = sacrebleu.corpus_bleu(output.read_text(encoding="utf-8").splitlines(), [references], tokenize="zh")
    assert scores["checkpoint_step"] == best
    assert scores["bleu"] == pytest.approx(expected.score)
    assert "tok:zh" in scores["bleu_signature"]


def test_another_tokenizer_can_be_chosen(chinese_run, run):
    folder, _ = chinese_run
    done = run("evaluate", "--workdir", folder / "w", "--evaluation.tokenize", "char")
    assert done.returncode == 0, done.stderr
    assert "tok:char" in done.stdout
    done = run("evaluate", "--workdir", folder / "w", "--evaluation.tokenize", "zh-tw")
    assert done.returncode == 2
    assert "evaluation.tokenize" in done.stderr.splitlines()[-1]
