"""What evaluate scores: several references, TSV and JSON lines."""

import json

import pytest
import sacrebleu


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


def test_files_of_any_kind_are_scored_as_sacrebleu_does(files, trained, run, tmp_path):
    """Three references, or one in a file with both sides."""
    folder, lines = files
    references = [folder / "a.fr", folder / "b.fr", folder / "c.fr"]
    options = ("--beam-size", 1, "--json", tmp_path / "scores.json", "--output", tmp_path / "hyps.txt")
    for source, expected in (
        ([folder / "in.en", "--reference", *references], lines),
        ([folder / "pairs.tsv"], lines[:1]),
        ([folder / "pairs.jsonl"], lines[:1]),
    ):
        done = run("evaluate", "--workdir", trained[0], "--source", *source, *options)
        assert done.returncode == 0, done.stderr
        scores = json.loads((tmp_path / "scores.json").read_text())
        hypotheses = (tmp_path / "hyps.txt").read_text(encoding="utf-8").splitlines()
        assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, expected).score)
        assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, expected).score)
        assert scores["bleu_signature"].startswith(f"nrefs:{len(expected)}|")
        assert scores["sentences"] == 37
    written = [f"hyps.{name}.txt" for name in ("reference", "reference2", "reference3")]
    assert [(tmp_path / name).read_bytes() for name in written] == [path.read_bytes() for path in references]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("in.en --reference a.fr b.fr --score", "--score takes one --reference"),
        ("pairs.tsv --reference a.fr", "a .tsv or .jsonl file holds both sides"),
        ("in.en", "--source and --reference go together"),
        ("in.en --reference a.fr short.fr", "short.fr has 1; they must be aligned"),
        ("bad.tsv", "bad.tsv, line 1: 3 columns; there must be two"),
    ],
)
def test_references_that_do_not_fit_are_refused(files, trained, run, source, message):
    folder, _ = files
    (folder / "short.fr").write_text("un !\n", encoding="utf-8")
    (folder / "bad.tsv").write_text("a\tb\tc\n", encoding="utf-8")
    given = [folder / option if "." in option else option for option in source.split()]
    done = run("evaluate", "--workdir", trained[0], "--source", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
