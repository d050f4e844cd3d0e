"""Every option for decoding, scoring and comparing, with the commands as users run them."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from lingua_flax.commands.prompt import prompt_lines
from lingua_flax.commands.translate import CHUNK
from lingua_flax.data.text_files import read_lines
from lingua_flax.data.tokenizer import model_paths, parse_tokenizers, train_tokenizer
from lingua_flax.options.schema import ComputeConfig, TokenizerConfig
from lingua_flax.runs.checkpoint import Checkpoints, read_item, read_metadata, saved_steps
from lingua_flax.translation.line_splitting import split_text
from lingua_flax.translation.translator import Translator
from tests.command_server import PROJECT_ON_PATH, python
from tests.conftest import HUNG_AFTER, PROMPTLY, ROOT

ROUNDED = 2e-4  # the commands print four digits, and tests compile with fewer optimizations
LINES = "one two three.\nseven.\n\nnine eight.\n"
ONE_PROGRAM = ["--devices.padding", "longest"]  # instead of one for each length of the sentences


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.load(trained[0])


def test_sampling_matches_the_translator(trained, translator, run):
    """The command and the Python interface draw the same samples; another seed draws others."""
    options = ["--temperature", 2.0, "--top-k", 8, "--top-p", 0.95, "--num-hypotheses", 7]
    done = run("translate", "--workdir", trained[0], *options, "--seed", 3, input=LINES)
    assert done.returncode == 0, done.stderr
    sampling = {"temperature": 2.0, "top_k": 8, "top_p": 0.95, "num_hypotheses": 7}
    same_seed, other_seed = (
        [
            (f"{number}", hypothesis.text, hypothesis.score)
            for number, translation in enumerate(translator.translate(LINES.splitlines(), seed=seed, **sampling), 1)
            for hypothesis in translation.hypotheses
        ]
        for seed in (3, 4)
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(number, text) for number, _, text in rows] == [(number, text) for number, text, _ in same_seed]
    assert [float(score) for _, score, _ in rows] == pytest.approx([score for *_, score in same_seed], abs=ROUNDED)
    assert len(same_seed) == 3 * 7 + 1
    assert len(set(same_seed)) > 10
    assert [text for _, text, _ in other_seed] != [text for _, text, _ in same_seed]


def test_prefixes_and_length_bounds(trained, translator, run, tmp_path):
    options = ["--prefix", "zéro", "--min-decoding-length", 12, "--beam-size", 2]
    done = run("translate", "--workdir", trained[0], *options, input=LINES)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.startswith("zéro") for line in lines] == [True, True, False, True]
    assert all(len(translator.tokenizer.target.encode(line)) + 1 >= 11 for line in lines if line)
    (tmp_path / "in").write_text(LINES)
    (tmp_path / "prefixes").write_text("\nsix\nneuf\nhuit\n", encoding="utf-8")
    options = ["--input", tmp_path / "in", "--prefix-file", tmp_path / "prefixes", "--max-decoding-length", 7]
    done = run("translate", "--workdir", trained[0], *options, "--beam-size", 1)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("six")
    assert lines[2] == ""
    assert lines[3].startswith("huit")
    assert "may be cut short: line 1" in done.stderr


def test_averaged_checkpoints_and_ensembles_match_the_translator(trained, run, tmp_path):
    """The second network is the run as it was a few steps before its end."""
    second, hypotheses, scores = tmp_path / "second", tmp_path / "hyps.txt", tmp_path / "scores.json"
    shutil.copytree(trained[0], second)
    shutil.rmtree(second / "checkpoints" / "240")
    options = ["--checkpoint", "average:2", "--ensemble", second, "--beam-size", 2, *ONE_PROGRAM]
    done = run("evaluate", "--workdir", trained[0], *options, "--output", hypotheses, "--json", scores)
    assert done.returncode == 0, done.stderr
    for workdir in (trained[0], second):
        newest = saved_steps(workdir / "checkpoints")[-2:]
        assert f"parameters averaged over the checkpoints {newest[0]}, {newest[1]}" in done.stderr
    ensemble = Translator.load(trained[0], "average:2", ComputeConfig(padding="longest"), ensemble=[second])
    sources = list(read_lines(tmp_path / "hyps.source.txt"))
    expected = [translation.text for translation in ensemble.translate(sources, beam_size=2)]
    assert list(read_lines(hypotheses)) == expected
    record = json.loads(scores.read_text())
    assert (record["checkpoint"], record["checkpoint_step"], record["networks"]) == ("average:2", 240, 2)
    saved = read_item(trained[0] / "checkpoints", 240, "params")
    assert record["parameters"] == 2 * sum(array.size for array in jax.tree.leaves(saved))
    assert f"{trained[0]} + {second}: text, test" in " ".join(done.stdout.split())  # a title is as wide as its table


def test_log_probabilities_of_given_translations(trained, translator, toy, run, tmp_path):
    done = run("evaluate", "--workdir", trained[0], "--score", "--json", tmp_path / "totals.json")
    assert done.returncode == 0, done.stderr
    sources, references = (list(read_lines(toy.parent / name)) for name in ("test.en", "test.fr"))
    expected = translator.score(sources, references)
    scores = done.stdout.splitlines()
    assert all(re.fullmatch(r"-\d+\.\d{4}", score) for score in scores)
    assert list(map(float, scores)) == pytest.approx([each.log_probability for each in expected], abs=ROUNDED)
    totals = json.loads((tmp_path / "totals.json").read_text())
    assert totals["log_probability"] == pytest.approx(sum(each.log_probability for each in expected))
    assert totals["tokens"] == sum(each.tokens for each in expected)
    assert f"perplexity {totals['perplexity']:.2f}" in done.stderr


def test_correct_translation_is_likelier_than_wrong_one(trained, run, tmp_path):
    (tmp_path / "in").write_text("one two.\none two.\n")
    (tmp_path / "given").write_text("deux un !\nun deux !\n")
    files = ["--source", tmp_path / "in", "--reference", tmp_path / "given", "--output", tmp_path / "scores"]
    done = run("evaluate", "--workdir", trained[0], "--score", *files)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    correct, wrong = map(float, (tmp_path / "scores").read_text().splitlines())
    assert wrong + 2 < correct < 0


@pytest.fixture(scope="module")
def comparison(trained, run, tmp_path_factory):
    """Returns a folder and two evaluations written to it: of samples, and of beam search compared with them."""
    folder = tmp_path_factory.mktemp("comparison")
    command = ("evaluate", "--workdir", trained[0], *ONE_PROGRAM)
    files = ("--output", folder / "sampled.txt", "--json", folder / "sampled.json")
    sampled = run(*command, *files, "--temperature", 0.1, "--seed", 1)
    assert sampled.returncode == 0, sampled.stderr
    files = ("--output", folder / "searched.fr", "--json", folder / "searched.json")
    searched = run(*command, *files, "--beam-size", 2, "--compare", folder / "sampled.txt")
    assert searched.returncode == 0, searched.stderr
    return folder, sampled, searched


def test_evaluation_of_samples_reports_temperature_and_seed(comparison):
    folder, sampled, _ = comparison
    assert "temperature 0.1, seed 1" in sampled.stdout
    record = json.loads((folder / "sampled.json").read_text())
    assert (record["temperature"], record["seed"]) == (0.1, 1)
    assert "beam_size" not in record


def test_comparison_matches_the_sacrebleu_command(comparison):
    folder, _, searched = comparison
    command = [Path(sys.executable).parent / "sacrebleu", folder / "searched.reference.fr"]
    command += ["-i", folder / "sampled.txt", folder / "searched.fr"]
    command += ["-m", "bleu", "chrf", "--paired-bs", "--format", "text", "-w", "4"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [re.findall(r"(\d+\.\d+) \(\d", line) for line in printed.splitlines() if re.search(r"\.(txt|fr) │", line)]
    p_values = re.findall(r"\(p = (\d\.\d+)\)", printed)
    record = json.loads((folder / "searched.json").read_text())
    scores = [[record[f"{system}{metric}"] for metric in ("bleu", "chrf")] for system in ("baseline_", "")]
    assert [[f"{score:.4f}" for score in row] for row in scores] == rows
    assert [f"{record[f'{metric}_p_value']:.4f}" for metric in ("bleu", "chrf")] == p_values
    assert 0.001 < record["bleu_p_value"] < 0.999
    assert f" - BLEU       {record['compare_signature']}\n" in printed
    p_value = f"{record['baseline_bleu']:.2f}  (paired bootstrap: p = {record['bleu_p_value']:.4f})"
    assert p_value in searched.stdout


def test_output_adds_sources_and_references_in_the_same_order(comparison, toy):
    folder, _, _ = comparison
    written = {path.name for path in folder.glob("searched*")}
    assert written == {"searched.fr", "searched.reference.fr", "searched.source.fr", "searched.json"}
    for name, split in (("searched.source.fr", "test.en"), ("searched.reference.fr", "test.fr")):
        assert (folder / name).read_bytes() == (toy.parent / split).read_bytes()
    assert len(list(read_lines(folder / "searched.fr"))) == 37


def test_json_lines_have_scores_and_tokens(trained, run):
    options = ["--json-lines", "--num-hypotheses", 2, "--beam-size", 2]
    done = run("translate", "--workdir", trained[0], *options, input="one two.\n\n")
    assert done.returncode == 0, done.stderr
    record, empty = map(json.loads, done.stdout.splitlines())
    assert record["source_tokens"][-1] == "</s>"
    assert "".join(record["source_tokens"]).replace("▁", " ").strip() == "one two.</s>"
    for hypothesis in record["hypotheses"]:
        assert "".join(hypothesis["tokens"]).replace("▁", " ").strip() == hypothesis["text"] + "</s>"
        assert hypothesis["score"] < 0
    assert len(record["hypotheses"]) == 2
    assert empty == {
        "source": "",
        "source_tokens": ["</s>"],
        "unknown_words": [],
        "hypotheses": [{"text": "", "score": 0.0, "tokens": []}],
    }


def test_lines_that_are_too_long_are_translated_in_parts(trained, translator, run):
    """Each part is translated as if alone and none is lost, also in a later chunk of the input."""
    sentences = ["one two three.", "seven eight.", "nine two."]
    long = " ".join(sentences * 3) + " four" * 40
    lines = ["one.", long, "three.", *[""] * 1500, long]
    done = run("translate", "--workdir", trained[0], "--beam-size", 1, input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    fits = lambda text: len(translator.tokenizer.encode_source([text])[0]) <= 32  # noqa: E731
    parts = [text for text, _, _ in split_text(long, "en", fits)]
    assert " ".join(parts) == long
    joined = " ".join(filter(None, (translation.text for translation in translator.translate(parts, beam_size=1))))
    expected = ["un !", joined, "trois !", *[""] * 1500, joined]
    assert done.stdout == "".join(f"{line}\n" for line in expected)  # nothing else: no prompts, as input is not typed
    cut = "has a sentence of more than 31 tokens, which the model takes at a time: cut into 2 parts"
    assert [line for line in done.stderr.splitlines() if "at a time" in line] == [f"line 2 {cut}", f"line 1504 {cut}"]


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("translate", ["--top-k", 5], "top_k 5 has no effect without a temperature"),
        ("translate", ["--temperature", -1], "temperature: input should be greater than or equal to 0"),
        ("translate", ["--top-p", 1.5, "--temperature", 1], "top_p: input should be less than or equal to 1"),
        ("translate", ["--min-decoding-length", 9, "--max-decoding-length", 5], "min_decoding_length 9 exceeds"),
        ("translate", ["--min-decoding-length", 99], "min_decoding_length 99 exceeds the model's max_length 32"),
        ("translate", ["--prefix", "a", "--prefix-file", "b"], "--prefix and --prefix-file are mutually exclusive"),
        ("translate", ["--prefix-file", "one-line"], "one-line has 1 lines, but standard input has 2"),
        ("translate", ["--prefix", "☃", "--output", "one-line"], 'prefix "☃": the model has no token'),
        ("translate", ["--checkpoint", "average:9"], "9 checkpoints to average"),
        ("translate", ["--ensemble", "no-run"], "no-run: not a workdir"),
        ("translate", ["--input", "one-line", "--output", "one-line"], "one-line: would be used twice"),
        ("evaluate", ["--score", "--beam-size", 1], "--beam-size has no effect with --score"),
        (
            "evaluate",
            ["--source", "one-line", "--reference", "one-line", "--split", "test"],
            "--split has no effect",
        ),
        ("evaluate", ["--data.target-language", "de"], "translates from en to fr"),
        ("evaluate", ["--score", "--compare", "one-line"], "--compare has no effect with --score"),
        ("evaluate", ["--compare", "one-line"], "one-line has 1 lines, but there are 37 to translate"),
        ("evaluate", ["--output", "o.txt", "--json", "o.source.txt"], "o.source.txt: would be used twice"),
        ("evaluate", ["--compare", "one-line", "--output", "one-line"], "one-line: would be used twice"),
    ],
)
def test_invalid_requests_are_refused_and_write_nothing(trained, run, tmp_path, program, options, message):
    (tmp_path / "one-line").write_text("un !\n")
    done = run(program, "--workdir", trained[0], *options, cwd=tmp_path, input="one.\ntwo.\n")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["one-line"]
    assert (tmp_path / "one-line").read_text() == "un !\n"


def test_output_that_is_the_input_under_another_name_is_refused(trained, run, tmp_path):
    (tmp_path / "one-line").write_text("one.\n")
    (tmp_path / "link").symlink_to("one-line")
    files = ["--input", tmp_path / "one-line", "--output", tmp_path / "link"]
    done = run("translate", "--workdir", trained[0], *files)
    assert done.returncode == 2
    assert "would be used twice" in done.stderr
    assert (tmp_path / "one-line").read_text() == "one.\n"


def test_ensemble_with_another_tokenizer_is_refused(trained, translator, toy, run, tmp_path):
    """The other run has equal parameters, and a tokenizer with as many pieces."""
    other = tmp_path / "bpe"
    shutil.copytree(trained[0], other, ignore=shutil.ignore_patterns("checkpoints"))
    pairs = list(zip(*(read_lines(toy.parent / name) for name in ("train.en", "train.fr")), strict=True))
    config = TokenizerConfig(kind="bpe", vocab_size=translator.tokenizer.source_vocab_size)
    models = train_tokenizer(pairs, config)
    model_paths(other, joint=True)[0].write_bytes(models[0])
    record = read_metadata(trained[0] / "checkpoints", 240)
    record["fingerprints"]["tokenizer"] = parse_tokenizers(models).fingerprint
    checkpoints = Checkpoints(other / "checkpoints", keep=1)
    checkpoints.save(240, translator.params, {"step": np.int32(240)}, record, best_step=None)
    checkpoints.close()
    done = run("translate", "--workdir", trained[0], "--ensemble", other, input="one.\n")
    assert done.returncode == 2
    assert f"{other}: its tokenizer differs from that of {trained[0]}" in done.stderr


def test_ensemble_with_a_network_for_the_opposite_direction_is_refused(trained, run, tmp_path):
    """Both directions of a corpus have the same joint tokenizer."""
    other = tmp_path / "reverse"
    shutil.copytree(trained[0], other)
    config = (other / "config.toml").read_text(encoding="utf-8")
    swapped = config.replace('_language = "en"', '_language = "?"').replace('_language = "fr"', '_language = "en"')
    (other / "config.toml").write_text(swapped.replace('"?"', '"fr"'), encoding="utf-8")
    done = run("translate", "--workdir", trained[0], "--ensemble", other, input="one.\n")
    assert done.returncode == 2
    assert f"{other}: it translates from fr to en, but {trained[0]} from en to fr" in done.stderr


def test_prefix_that_is_invalid_on_a_late_line_leaves_the_old_output(trained, run, tmp_path):
    (tmp_path / "in").write_text("one.\n" * (CHUNK + 1))
    (tmp_path / "prefixes").write_text("\n" * CHUNK + "☃\n", encoding="utf-8")
    (tmp_path / "out").write_text("the old output\n")
    files = ["--input", tmp_path / "in", "--prefix-file", tmp_path / "prefixes", "--output", tmp_path / "out"]
    done = run("translate", "--workdir", trained[0], *files)
    assert done.returncode == 2
    assert 'prefix "☃": the model has no token' in done.stderr
    assert (tmp_path / "out").read_text() == "the old output\n"


# --- The prompt -----------------------------------------------------------------------------------------------------


class Terminal:
    """A command of lingua-flax, or a script, in a terminal of its own."""

    def __init__(self, *command: object, cache: Path) -> None:
        self.master, self.slave = pty.openpty()
        arguments = [*python(command[0]), *map(str, command[1:])]
        environment = os.environ | PROJECT_ON_PATH | {"XDG_CACHE_HOME": str(cache), "TERM": "dumb"}
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.slave)
        self.process = subprocess.Popen(arguments, cwd=ROOT, start_new_session=True, env=environment, **streams)
        self.settings = termios.tcgetattr(self.slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Reads the output up to this text."""
        until = time.monotonic() + HUNG_AFTER
        while text not in self.seen:
            assert time.monotonic() < until, self.seen
            assert self.process.poll() is None, self.seen + os.read(self.master, 4096).decode()
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self) -> int:
        """Sends SIGINT until the process ends. Returns the exit status.

        A signal that arrives before Python starts to wait for input would not wake it.
        """
        for _ in range(PROMPTLY):
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(1)
        raise AssertionError("the process does not end")

    def close(self) -> None:
        self.process.kill()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_terminal(*command: object) -> Terminal:
        opened.append(Terminal(*command, cache=tmp_path))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def test_the_prompt_translates_each_line_and_remembers_it(trained, terminal, tmp_path):
    history = tmp_path / "lingua-flax" / "translate_history"
    translating = terminal("translate", "--workdir", trained[0], "--beam-size", "1")
    translating.wait_for("> ")
    translating.type("one two.\r")
    translating.wait_for("deux un !")
    translating.wait_for("> ")
    translating.type("\r")  # an empty line stays empty
    translating.wait_for("> ")
    translating.type("three.\r")
    translating.wait_for("trois !")
    translating.wait_for("> ")
    assert translating.interrupt() == 130
    assert termios.tcgetattr(translating.slave) == translating.settings  # readline has restored the terminal
    assert history.read_text() == "one two.\nthree.\n"
    # Another process, without a network, which would take seconds to load.
    later = terminal(Path(__file__).parent / "scripts" / "echo_prompt.py", history)
    later.wait_for("> ")
    later.type("\x1b[A\x1b[A\r")  # up, up: the line before the last one
    later.wait_for("typed: one two.")
    later.wait_for("> ")
    later.type("\x04")  # Ctrl-D
    assert later.process.wait(PROMPTLY) == 0


def test_the_prompt_handles_signals_only_while_it_waits(monkeypatch, tmp_path):
    monkeypatch.setattr("builtins.input", lambda prompt: "one.")
    handler = signal.getsignal(signal.SIGINT)
    assert next(prompt_lines("> ", tmp_path / "history")) == "one."
    assert signal.getsignal(signal.SIGINT) is handler
