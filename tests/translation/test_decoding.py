"""Every option for decoding, scoring and comparing, with the commands as users run them."""

import dataclasses
import json
import re
import shutil

import pytest
import sacrebleu

from lingua_flax.commands.evaluate import EvaluateCommand
from lingua_flax.commands.translate import CHUNK, TranslateCommand
from lingua_flax.data.placeholders import Protected
from lingua_flax.data.text_files import read_lines
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import ComputeConfig
from lingua_flax.translation import loading
from lingua_flax.translation.line_splitting import split_text
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed
from tests.helpers.networks import small_tokenizer

ROUNDED = 2e-4  # the commands print four digits, and tests compile with fewer optimizations
LINES = "one two three.\nseven.\n\nnine eight.\n"
ONE_PROGRAM = ["--devices.padding", "longest"]  # instead of one for each length of the sentences


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.load(trained[0])


def test_sampling_matches_the_translator(trained, translator, run):
    """The command and the Python interface draw the same samples; another seed draws others."""
    options = ["--temperature", 2.0, "--top-k", 8, "--top-p", 0.95, "--num-hypotheses", 7, "--json-lines"]
    done = succeed(run, "translate", "--workdir", trained[0], *options, "--seed", 3, input=LINES)
    sampling = {"temperature": 2.0, "top_k": 8, "top_p": 0.95, "num_hypotheses": 7}
    same, other = (translator.translate(LINES.splitlines(), seed=seed, **sampling) for seed in (3, 4))
    samples = [[own["text"] for own in json.loads(line)["hypotheses"]] for line in done.stdout.splitlines()]
    assert samples == [[hypothesis.text for hypothesis in line.hypotheses] for line in same]
    assert [len(own) for own in samples] == [7, 7, 1, 7]
    assert len(set(samples[0])) > 4
    assert other != same


def test_prefixes_and_length_bounds(trained, run, tmp_path):
    (tmp_path / "in").write_text(LINES)
    (tmp_path / "prefixes").write_text("\nsix\nneuf\nzéro\n", encoding="utf-8")
    options = ["--input", tmp_path / "in", "--prefix-file", tmp_path / "prefixes", "--beam-size", 2]
    options += ["--min-decoding-length", 7, "--max-decoding-length", 7, "--json-lines"]
    done = succeed(run, "translate", "--workdir", trained[0], *options)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    for record, line, begin in zip(records, LINES.splitlines(), ("", "six", "", "zéro"), strict=True):
        (hypothesis,) = record["hypotheses"]
        assert hypothesis["text"].startswith(begin)
        assert len(hypothesis["tokens"]) == (7 if line else 0)
        for tokens, text in ((record["source_tokens"], line), (hypothesis["tokens"], hypothesis["text"])):
            assert not tokens or "".join(tokens).replace("▁", " ").strip() == f"{text}</s>"
    assert "may be cut short: line 1" in done.stderr
    done = run("translate", "--workdir", trained[0], "--prefix", "zéro", "--beam-size", 1, input=LINES)
    assert [line[:4] for line in done.stdout.splitlines()] == ["zéro", "zéro", "", "zéro"]


def test_averaged_checkpoints_and_ensembles_match_the_translator(trained, run, tmp_path):
    """The second network is the run as it was a few steps before its end."""
    second, hypotheses, scores = tmp_path / "second", tmp_path / "hyps.txt", tmp_path / "scores.json"
    shutil.copytree(trained[0], second)
    shutil.rmtree(second / "checkpoints" / "240")
    options = ["--checkpoint", "average:2", "--ensemble", second, "--beam-size", 2, *ONE_PROGRAM]
    done = succeed(run, "evaluate", "--workdir", trained[0], *options, "--output", hypotheses, "--json", scores)
    for steps in ("200, 240", "160, 200"):
        assert f"parameters averaged over the checkpoints {steps}" in done.stderr
    ensemble = Translator.load(trained[0], "average:2", ComputeConfig(padding="longest"), ensemble=[second])
    translations = ensemble.translate(list(read_lines(tmp_path / "hyps.source.txt")), beam_size=2)
    assert list(read_lines(hypotheses)) == [translation.text for translation in translations]
    record = json.loads(scores.read_text())
    assert (record["checkpoint"], record["checkpoint_step"], record["networks"]) == ("average:2", 240, 2)


def test_log_probabilities_of_given_translations(trained, translator, run, tmp_path):
    sources, given = ["one two.", "one two.", "three."], ["deux un !", "un deux !", "trois !"]
    for name, lines in (("in", sources), ("given", given)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = ["--source", tmp_path / "in", "--reference", tmp_path / "given", "--json", tmp_path / "totals.json"]
    done = succeed(run, "evaluate", "--workdir", trained[0], "--score", *files, "--output", tmp_path / "scores")
    expected = translator.score(sources, given)
    scores = (tmp_path / "scores").read_text().splitlines()
    assert all(re.fullmatch(r"-\d+\.\d{4}", score) for score in scores)
    correct, wrong, _ = scores = list(map(float, scores))
    assert scores == pytest.approx([each.log_probability for each in expected], abs=ROUNDED)
    assert wrong + 2 < correct
    totals = json.loads((tmp_path / "totals.json").read_text())
    assert totals["log_probability"] == pytest.approx(sum(scores), abs=3 * ROUNDED)
    assert totals["tokens"] == sum(each.tokens for each in expected)
    assert f"perplexity {totals['perplexity']:.2f}" in done.stderr


def test_samples_in_a_file_are_compared_with_beam_search(trained, translator, run, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    sampled, scores = tmp_path / "sampled.txt", tmp_path / "scores.json"
    options = ["--temperature", 0.1, "--seed", 1, "--output", sampled, "--json", scores]
    done = succeed(run, "evaluate", "--workdir", workdir, *ONE_PROGRAM, *options)
    assert "temperature 0.1, seed 1" in done.stdout
    record = json.loads(scores.read_text())
    assert (record["temperature"], record["seed"], "beam_size" in record) == (0.1, 1, False)
    succeed(run, "compare", workdir, "--baseline", sampled, "--beam-size", 2, *ONE_PROGRAM, "--json", scores)
    found = json.loads(scores.read_text())
    searched = translator.translate(list(read_lines(tmp_path / "sampled.source.txt")), beam_size=2)
    references = [list(read_lines(tmp_path / "sampled.reference.txt"))]
    expected = sacrebleu.corpus_bleu([translation.text for translation in searched], references).score
    bleu = found["metrics"]["text, test"]["bleu"]
    assert bleu["scores"] == {"system": [pytest.approx(expected)], "baseline": [pytest.approx(record["bleu"])]}
    assert 0.001 < bleu["p_value"] < 0.999
    assert found["runs"]["baseline"] == [
        {"workdir": str(sampled)} | dict.fromkeys(("seed", "checkpoint_step", "beam_size"))
    ]


def test_lines_that_are_too_long_are_translated_in_parts(trained, translator, run):
    """Each part is translated as if alone and none is lost, also in a later chunk of the input."""
    long = "one two three. seven eight. nine two. " * 3 + "four" + " four" * 39
    lines = ["one.", long, "three.", *[""] * CHUNK, long]
    done = succeed(run, "translate", "--workdir", trained[0], "--beam-size", 1, input="\n".join(lines))
    fits = lambda part: len(translator.tokenizer.encode_protected([part])[0]) <= 32  # noqa: E731
    parts = [part.source for part, _, _ in split_text(Protected(long), "en", fits)]
    assert " ".join(parts) == long
    joined = " ".join(filter(None, (translation.text for translation in translator.translate(parts, beam_size=1))))
    expected = ["un !", joined, "trois !", *[""] * CHUNK, joined]
    assert done.stdout == "".join(f"{line}\n" for line in expected)  # nothing else: no prompts, as input is not typed
    cut = "has a sentence of more than 31 tokens, which the model takes at a time: cut into 2 parts"
    assert [line for line in done.stderr.splitlines() if "at a time" in line] == [
        f"line 2 {cut}",
        f"line {CHUNK + 4} {cut}",
    ]


@pytest.mark.parametrize(
    ("read", "options", "message"),
    [
        (TranslateCommand.read, "--top-k 5", "top_k 5 has no effect without a temperature"),
        (TranslateCommand.read, "--alignment-layer 1", "--alignment-layer has no effect without --alignments FILE"),
        (TranslateCommand.read, "--attention maps.gif", "maps.gif: the name must end in .json or .png"),
        (TranslateCommand.read, "--positions table.png --output a", "--output has no effect with --positions"),
        (TranslateCommand.read, "--input page.htm --json-lines", "--json-lines has no effect with HTML"),
        (EvaluateCommand.read, "--data.target-language de", "translates from en to fr"),
        (EvaluateCommand.read, "--score --beam-size 1", "--beam-size has no effect with --score"),
        (EvaluateCommand.read, "--source a --reference a --split test", "--split has no effect"),
        (EvaluateCommand.read, "--output o.txt --json o.source.txt", "o.source.txt: would be used twice"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_loaded(trained, read, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read(["--workdir", str(trained[0]), *options.split()])


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("translate", ["--prefix-file", "one-line"], "one-line has 1 line, but standard input has 2"),
        ("translate", ["--input", "many", "--prefix-file", "prefixes", "--output", "one-line"], 'prefix "☃"'),
        ("translate", ["--checkpoint", "average:9"], "9 checkpoints to average"),
        ("translate", ["--input", "one-line", "--output", "link"], "would be used twice"),
        ("translate", ["--alignments", "none/links"], "cannot be written"),
        ("translate", ["--alignments", "new", "--alignment-layer", 2], "the network has 1 decoder layers"),
    ],
)
def test_invalid_requests_are_refused_and_write_nothing(trained, run, tmp_path, program, options, message):
    (tmp_path / "one-line").write_text("un !\n")
    (tmp_path / "link").symlink_to("one-line")
    (tmp_path / "many").write_text("one.\n" * (CHUNK + 1))
    (tmp_path / "prefixes").write_text("\n" * CHUNK + "☃\n", encoding="utf-8")
    before = set(tmp_path.iterdir())
    done = run(program, "--workdir", trained[0], *options, cwd=tmp_path, input="one.\ntwo.\n")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert set(tmp_path.iterdir()) == before
    assert (tmp_path / "one-line").read_text() == "un !\n"


def test_ensembles_that_do_not_fit_are_refused(trained, tmp_path, monkeypatch):
    """Both directions of a corpus have the same joint tokenizer."""
    other, load_one = shutil.copytree(trained[0], tmp_path / "other"), loading._load_one
    config = (other / "config.toml").read_text(encoding="utf-8")
    swapped = config.replace('_language = "en"', '_language = "?"').replace('_language = "fr"', '_language = "en"')
    (other / "config.toml").write_text(swapped.replace('"?"', '"fr"'), encoding="utf-8")
    with pytest.raises(UserError, match=f"{other}: it translates from fr to en, but {trained[0]} from en to fr"):
        Translator.load(trained[0], ensemble=[other])

    def load_with_another_tokenizer(path, *arguments):
        network = load_one(path, *arguments)
        return dataclasses.replace(network, tokenizer=small_tokenizer()) if path == other else network

    monkeypatch.setattr(loading, "_load_one", load_with_another_tokenizer)
    with pytest.raises(UserError, match=f"{other}: its tokenizer differs from that of {trained[0]}"):
        Translator.load(trained[0], ensemble=[other])
