"""What evaluate scores: several references, TSV and JSON lines."""

import json

import pytest
import sacrebleu

from lingua_flax.evaluation.bleu import compare, score


@pytest.fixture(scope="module")
def files(toy, tmp_path_factory):
    """The test sources, and three reference files, the second and third with changes."""
    folder = tmp_path_factory.mktemp("references")
    sides = [(toy.parent / f"test.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "fr")]
    lines = [sides[1], [" ".join(line.split()[::-1]) for line in sides[1]], [line.upper() for line in sides[1]]]
    for name, content in zip(("in.en", "a.fr", "b.fr", "c.fr"), (sides[0], *lines), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    pairs = list(zip(*sides, strict=True))
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    (folder / "pairs.jsonl").write_text("".join(json.dumps({"en": a, "fr": b}) + "\n" for a, b in pairs))
    return folder, lines


def test_several_references_are_scored_as_sacrebleu_does(files, trained, run, tmp_path):
    folder, lines = files
    references = [folder / "a.fr", folder / "b.fr", folder / "c.fr"]
    options = ["--workdir", trained[0], "--beam-size", 1, "--source", folder / "in.en", "--reference", *references]
    done = run("evaluate", *options, "--json", tmp_path / "scores.json", "--output", tmp_path / "hyps.txt")
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    hypotheses = (tmp_path / "hyps.txt").read_text(encoding="utf-8").splitlines()
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, lines).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, lines).score)
    assert scores["bleu"] != pytest.approx(sacrebleu.corpus_bleu(hypotheses, lines[:1]).score)
    assert scores["bleu_signature"].startswith("nrefs:3|")
    written = [f"hyps.{name}.txt" for name in ("reference", "reference2", "reference3")]
    assert [(tmp_path / name).read_bytes() for name in written] == [path.read_bytes() for path in references]
    single = run("evaluate", *options, "--score")
    assert (single.returncode, single.stdout) == (2, "")
    assert "--score takes one --reference" in single.stderr


def test_files_with_both_sides_are_scored_like_two_files(files, trained, run, tmp_path):
    folder, _ = files
    scores = []
    for source in (["in.en", "--reference", folder / "a.fr"], ["pairs.tsv"], ["pairs.jsonl"]):
        options = ["--beam-size", 1, "--source", folder / source[0], *source[1:], "--json", tmp_path / "scores.json"]
        done = run("evaluate", "--workdir", trained[0], *options)
        assert done.returncode == 0, done.stderr
        scores.append(json.loads((tmp_path / "scores.json").read_text()))
    assert all(each["bleu"] == scores[0]["bleu"] and each["sentences"] == 37 for each in scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["pairs.tsv", "--reference", "a.fr"], "a .tsv or .jsonl file holds both sides"),
        (["in.en"], "--source and --reference go together"),
        (["in.en", "--reference", "a.fr", "short.fr"], "short.fr has 1; they must be aligned"),
        (["bad.tsv"], "bad.tsv, line 1: 3 columns; there must be two"),
    ],
)
def test_references_that_do_not_fit_are_refused(files, trained, run, options, message):
    folder, _ = files
    (folder / "short.fr").write_text("un !\n", encoding="utf-8")
    (folder / "bad.tsv").write_text("a\tb\tc\n", encoding="utf-8")
    given = [folder / option if "." in option else option for option in options]
    done = run("evaluate", "--workdir", trained[0], "--source", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]


def test_a_comparison_uses_all_references():
    hypotheses, baseline, references = ["a b c d e"], ["v w x y z"], (["v w x y z"], ["a b c d e"])
    compared = compare(hypotheses, baseline, *references)
    assert compared["baseline_bleu"] == pytest.approx(100) == score(hypotheses, *references)["bleu"]
