"""lingua-flax evaluate: scores of splits, files, perturbed sources and Chinese, as by sacreBLEU, and its report."""

import gzip
import json

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER

from lingua_flax.options.schema import DecodingOptions
from lingua_flax.runs.checkpoint import read_metadata
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed
from tests.processes import metrics
from tests.toy import CONFIG, FRENCH


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def evaluate(run, tmp_path):
    """Evaluates a workdir. Returns the scores, the translations, and what was printed."""

    def evaluated(workdir, *options):
        scores, output = tmp_path / "scores.json", tmp_path / "hyps.txt"
        command = ("evaluate", "--workdir", workdir, "--json", scores, "--output", output, "--beam-size", 1)
        done = succeed(run, *command, *options)
        return json.loads(scores.read_text()), lines_of(output), done.stdout

    return evaluated


def test_files_of_any_kind_are_scored_as_sacrebleu_does(trained, toy, evaluate, tmp_path):
    """Three references, the second and third with changes, or one in a file with both sides."""
    sources, right = (lines_of(toy.parent / f"test.{end}") for end in ("en", "fr"))
    references = [right, [" ".join(line.split()[::-1]) for line in right], [line.upper() for line in right]]
    pairs = list(zip(sources, right, strict=True))
    source = write_lines(tmp_path / "in.en", sources)
    files = [write_lines(tmp_path / f"{number}.fr", lines) for number, lines in enumerate(references)]
    tsv = write_lines(tmp_path / "pairs.tsv", map("\t".join, pairs))
    jsonl = write_lines(
        tmp_path / "pairs.jsonl", [json.dumps({"en": source, "fr": target}) for source, target in pairs]
    )
    measures = {"bleu": BLEU(), "bleu_lowercase": BLEU(lowercase=True), "chrf": CHRF()}
    measures["ter"] = TER(normalized=True, case_sensitive=True)
    for options, count in (([source, "--reference", *files], 3), ([tsv], 1), ([jsonl], 1)):
        scores, hypotheses, _ = evaluate(trained[0], "--ter", "--source", *options)
        assert (scores["sentences"], scores["beam_size"]) == (37, 1)
        for name, metric in measures.items():
            assert scores[name] == pytest.approx(metric.corpus_score(hypotheses, references[:count]).score)
            assert scores[f"{name}_signature"] == str(metric.get_signature())
    written = [f"hyps.{name}.txt" for name in ("reference", "reference2", "reference3")]
    assert [lines_of(tmp_path / name) for name in written] == references


def test_perturbed_sources_are_scored_without_regard_to_case_and_final_punctuation(trained, toy, evaluate):
    record, _, shown = evaluate(trained[0], "--perturb")
    scores = record["perturbed"]
    sources, references = (lines_of(toy.parent / f"test.{end}") for end in ("en", "fr"))
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
        assert name.replace("_", " ") in shown
    assert scores["upper_case"]["chrf"] < scores["untouched"]["chrf"] - 20


def test_a_language_without_spaces_has_its_own_bleu(toy, run, evaluate, tmp_path):
    """In validations, too; with the tokenizer for words it would be 0."""
    for split in ("train", "validation", "test"):
        write_lines(tmp_path / f"{split}.en", lines_of(toy.parent / f"{split}.en"))
        text = (toy.parent / f"{split}.fr").read_text(encoding="utf-8").replace(" !", "。").replace(" ", "")
        for french, chinese in zip(FRENCH, "零一二三四五六七八九", strict=True):
            text = text.replace(french, chinese)
        (tmp_path / f"{split}.fr").write_text(text, encoding="utf-8")
    config, workdir = tmp_path / "chinese.toml", tmp_path / "w"
    config.write_text(CONFIG.format(folder=tmp_path).replace("[data]", '[data]\ntarget_language = "zh"'))
    options = ("--training.num-steps", 100, "--training.eval-every", 100)
    done = succeed(run, "train", "--config", config, "--workdir", workdir, *options)
    assert "(greedy, tokenizer zh)" in done.stderr
    assert json.loads(lines_of(workdir / "metrics.jsonl")[-1])["validation_bleu"] > 5
    for options, tokenizer in (([], "zh"), (["--evaluation.tokenize", "char"], "char")):
        scores, hypotheses, shown = evaluate(workdir, *options)
        expected = sacrebleu.corpus_bleu(hypotheses, [lines_of(tmp_path / "test.fr")], tokenize=tokenizer).score
        assert scores["bleu"] == pytest.approx(expected)
        assert f"tok:{tokenizer}|" in shown


def test_split_is_scored_and_written_to_reproducible_files(trained, toy, run, tmp_path):
    hypotheses, scores = tmp_path / "hyps.txt.gz", tmp_path / "scores.json"
    done = succeed(run, "evaluate", "--workdir", trained[0], "--output", hypotheses, "--json", scores)
    first = json.loads(scores.read_text())
    assert first["bleu_low"] < first["bleu"] < first["bleu_high"]
    assert first["bleu"] > 50
    assert first["checkpoint_step"] == read_metadata(trained[0] / "checkpoints", 240)["best_step"]
    assert f"{first['bleu']:.2f}" in done.stdout
    assert first["bleu_signature"] in done.stdout
    for name, side in (("source", "en"), ("reference", "fr")):
        written = gzip.decompress((tmp_path / f"hyps.{name}.txt.gz").read_bytes())
        assert written == (toy.parent / f"test.{side}").read_bytes()


def test_validation_split_has_the_score_of_the_validation(trained, evaluate):
    scores, *_ = evaluate(trained[0], "--checkpoint", 240, "--split", "validation")
    assert scores["bleu"] == pytest.approx(metrics(trained[0])[-1]["validation_bleu"])
