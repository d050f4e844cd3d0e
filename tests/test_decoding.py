"""Every way to decode and to compare, by the commands as users run them."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from commands.prompt import prompt_lines
from runs.checkpoint import saved_steps
from tests.conftest import HUNG_AFTER, PROMPTLY, ROOT
from translation.line_splitting import split_line
from translation.translator import Translator

ROUNDED = 2e-4  # four digits are shown, and what tests compile themselves is less optimized
LINES = "one two three.\nseven.\n\nnine eight.\n"


@pytest.fixture(scope="module")
def second(trained, toy, run, tmp_path_factory):
    """A run of another seed with the same tokenizer, for an ensemble."""
    workdir = tmp_path_factory.mktemp("second") / "w"
    options = ["--training.seed", 1, "--training.num-steps", 80, "--tokenizer.model-file"]
    done = run("train.py", "--config", toy, "--workdir", workdir, *options, trained[0] / "tokenizer.model")
    assert done.returncode == 0, done.stderr
    return workdir


def test_sampling(trained, run):
    """The command draws what the Python door draws; another seed draws something else."""
    options = ["--temperature", 2.0, "--top-k", 8, "--top-p", 0.95, "--num-hypotheses", 7]
    done = run("translate.py", "--workdir", trained[0], *options, "--seed", 3, input=LINES)
    assert done.returncode == 0, done.stderr
    translator = Translator.load(trained[0])
    sampling = {"temperature": 2.0, "top_k": 8, "top_p": 0.95, "num_hypotheses": 7}
    expected = [
        (f"{number}", hypothesis.text, hypothesis.score)
        for number, found in enumerate(translator.translate(LINES.splitlines(), seed=3, **sampling), 1)
        for hypothesis in found.hypotheses
    ]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(number, text) for number, _, text in rows] == [(number, text) for number, text, _ in expected]
    assert [float(score) for _, score, _ in rows] == pytest.approx([score for *_, score in expected], abs=ROUNDED)
    assert len(expected) == 3 * 7 + 1
    assert len(set(expected)) > 10
    other = translator.translate(LINES.splitlines(), seed=4, **sampling)
    assert [found.text for found in other] != [
        found.text for found in translator.translate(LINES.splitlines(), seed=3, **sampling)
    ]


def test_prefixes_and_lengths(trained, run, tmp_path):
    done = run("translate.py", "--workdir", trained[0], "--prefix", "zéro", "--min-decoding-length", 12, input=LINES)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.startswith("zéro") for line in lines] == [True, True, False, True]
    pieces = Translator.load(trained[0]).tokenizer.target
    assert all(len(pieces.encode(line)) + 1 >= 11 for line in lines if line)
    (tmp_path / "in").write_text(LINES)
    (tmp_path / "prefixes").write_text("\nsix\nneuf\nhuit\n", encoding="utf-8")
    options = ["--input", tmp_path / "in", "--prefix-file", tmp_path / "prefixes", "--max-decoding-length", 7]
    done = run("translate.py", "--workdir", trained[0], *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("six")
    assert lines[2] == ""
    assert lines[3].startswith("huit")
    assert "may be cut short: line 1" in done.stderr


def test_averaged_checkpoints_and_ensembles(trained, second, run, tmp_path):
    """What is scored is what the Python door translates so."""
    hypotheses, scores = tmp_path / "hyps.txt", tmp_path / "scores.json"
    options = ["--checkpoint", "average:2", "--ensemble", second, "--beam-size", 3]
    done = run("evaluate.py", "--workdir", trained[0], *options, "--output", hypotheses, "--json", scores)
    assert done.returncode == 0, done.stderr
    for workdir in (trained[0], second):
        newest = saved_steps(workdir / "checkpoints")[-2:]
        assert f"parameters averaged over the checkpoints {newest[0]}, {newest[1]}" in done.stderr
    translator = Translator.load(trained[0], "average:2", ensemble=[second])
    sources = (tmp_path / "hyps.source.txt").read_text(encoding="utf-8").splitlines()
    expected = [found.text for found in translator.translate(sources, beam_size=3)]
    assert hypotheses.read_text(encoding="utf-8").splitlines() == expected
    found = json.loads(scores.read_text())
    assert (found["checkpoint"], found["checkpoint_step"], found["networks"]) == ("average:2", 240, 2)
    assert f"{trained[0]} + {second}: text, test" in " ".join(done.stdout.split())  # a title is as wide as its table


def test_output_brings_sources_and_references_in_the_same_order(trained, toy, run, tmp_path):
    done = run("evaluate.py", "--workdir", trained[0], "--output", tmp_path / "out.fr", "--beam-size", 1)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.fr", "out.reference.fr", "out.source.fr"]
    for name, split in (("out.source.fr", "test.en"), ("out.reference.fr", "test.fr")):
        assert (tmp_path / name).read_bytes() == (toy.parent / split).read_bytes()
    assert len((tmp_path / "out.fr").read_text(encoding="utf-8").splitlines()) == 37


def test_log_probabilities_of_given_translations(trained, toy, run, tmp_path):
    done = run("evaluate.py", "--workdir", trained[0], "--score", "--json", tmp_path / "totals.json")
    assert done.returncode == 0, done.stderr
    sources, references = (
        (toy.parent / name).read_text(encoding="utf-8").splitlines() for name in ("test.en", "test.fr")
    )
    expected = Translator.load(trained[0]).score(sources, references)
    scores = done.stdout.splitlines()
    assert all(re.fullmatch(r"-\d+\.\d{4}", score) for score in scores)
    assert list(map(float, scores)) == pytest.approx([each.log_probability for each in expected], abs=ROUNDED)
    totals = json.loads((tmp_path / "totals.json").read_text())
    assert totals["log_probability"] == pytest.approx(sum(each.log_probability for each in expected))
    assert totals["tokens"] == sum(each.tokens for each in expected)
    assert f"perplexity {totals['perplexity']:.2f}" in done.stderr
    # a right translation is likelier than a wrong one
    (tmp_path / "in").write_text("one two.\none two.\n")
    (tmp_path / "given").write_text("deux un !\nun deux !\n")
    files = ["--source", tmp_path / "in", "--reference", tmp_path / "given", "--output", tmp_path / "scores"]
    done = run("evaluate.py", "--workdir", trained[0], "--score", *files)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    right, wrong = map(float, (tmp_path / "scores").read_text().splitlines())
    assert wrong + 2 < right < 0


def test_a_comparison_gives_what_the_sacrebleu_command_gives(trained, run, tmp_path):
    other, ours, scores = tmp_path / "other.txt", tmp_path / "ours.txt", tmp_path / "scores.json"
    sampling = ["--temperature", 0.1, "--seed", 1]
    done = run("evaluate.py", "--workdir", trained[0], *sampling, "--output", other, "--json", scores)
    assert done.returncode == 0, done.stderr
    assert "temperature 0.1, seed 1" in done.stdout
    drawn = json.loads(scores.read_text())
    assert (drawn["temperature"], drawn["seed"]) == (0.1, 1)
    assert "beam_size" not in drawn
    done = run("evaluate.py", "--workdir", trained[0], "--compare", other, "--output", ours, "--json", scores)
    assert done.returncode == 0, done.stderr
    command = [Path(sys.executable).parent / "sacrebleu", tmp_path / "ours.reference.txt", "-i", other, ours]
    command += ["-m", "bleu", "chrf", "--paired-bs", "--format", "text", "-w", "4"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [re.findall(r"(\d+\.\d+) \(\d", line) for line in printed.splitlines() if ".txt │" in line]
    p_values = re.findall(r"\(p = (\d\.\d+)\)", printed)
    found = json.loads(scores.read_text())
    assert [[f"{found[f'{which}{metric}']:.4f}" for metric in ("bleu", "chrf")] for which in ("baseline_", "")] == rows
    assert [f"{found[f'{metric}_p_value']:.4f}" for metric in ("bleu", "chrf")] == p_values
    assert 0.001 < found["bleu_p_value"] < 0.999
    assert f" - BLEU       {found['compare_signature']}\n" in printed
    assert f"{found['baseline_bleu']:.2f}  (difference by chance: p = {found['bleu_p_value']:.4f})" in done.stdout


def test_json_lines_have_scores_and_tokens(trained, run):
    done = run("translate.py", "--workdir", trained[0], "--json-lines", "--num-hypotheses", 2, input="one two.\n\n")
    assert done.returncode == 0, done.stderr
    found, empty = map(json.loads, done.stdout.splitlines())
    assert found["source_tokens"][-1] == "</s>"
    assert "".join(found["source_tokens"]).replace("▁", " ").strip() == "one two.</s>"
    for hypothesis in found["hypotheses"]:
        assert "".join(hypothesis["tokens"]).replace("▁", " ").strip() == hypothesis["text"] + "</s>"
    assert len(found["hypotheses"]) == 2
    assert empty == {"source": "", "source_tokens": ["</s>"], "hypotheses": [{"text": "", "score": 0.0, "tokens": []}]}


def test_a_line_that_is_too_long_is_translated_in_parts(trained, run):
    """What comes is what the parts give by themselves, and no part is missing."""
    sentences = ["one two three.", "seven eight.", "nine two."]
    long = " ".join(sentences * 3) + " four" * 40
    done = run("translate.py", "--workdir", trained[0], "--beam-size", 1, input=f"one.\n{long}\nthree.\n")
    assert done.returncode == 0, done.stderr
    first, joined, last = done.stdout.splitlines()
    assert (first, last) == ("un !", "trois !")
    translator = Translator.load(trained[0])
    parts = split_line(long, lambda text: len(translator.tokenizer.encode_source([text])[0]) <= 32)
    assert " ".join(parts) == long
    assert joined == " ".join(found.text for found in translator.translate(parts, beam_size=1))
    assert f"translated in {len(parts)} parts" in done.stderr
    far = run("translate.py", "--workdir", trained[0], "--beam-size", 1, input="\n" * 1500 + long)
    assert "line 1501 has" in far.stderr
    assert far.stdout == "\n" * 1500 + joined + "\n"


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("translate.py", ["--top-k", 5], "top_k 5 has no effect without a temperature"),
        ("translate.py", ["--temperature", -1], "temperature: input should be greater than or equal to 0"),
        ("translate.py", ["--top-p", 1.5, "--temperature", 1], "top_p: input should be less than or equal to 1"),
        ("translate.py", ["--min-decoding-length", 9, "--max-decoding-length", 5], "min_decoding_length 9 exceeds"),
        ("translate.py", ["--min-decoding-length", 99], "min_decoding_length 99 exceeds the model's max_length 32"),
        ("translate.py", ["--prefix", "a", "--prefix-file", "b"], "--prefix and --prefix-file are mutually exclusive"),
        ("translate.py", ["--prefix-file", "one-line"], "one-line has 1 lines, but standard input has 2"),
        ("translate.py", ["--prefix", "☃"], 'prefix "☃": the model has no token'),
        ("translate.py", ["--checkpoint", "average:9"], "9 checkpoints to average"),
        ("translate.py", ["--ensemble", "no-run"], "no-run: not a workdir"),
        ("translate.py", ["--input", "one-line", "--output", "one-line"], "one-line: would be used twice"),
        ("evaluate.py", ["--score", "--beam-size", 1], "--beam-size has no effect with --score"),
        ("evaluate.py", ["--score", "--compare", "one-line"], "--compare has no effect with --score"),
        ("evaluate.py", ["--compare", "one-line"], "one-line has 1 lines, but there are 37 to translate"),
        ("evaluate.py", ["--output", "o.txt", "--json", "o.source.txt"], "o.source.txt: would be used twice"),
        ("evaluate.py", ["--compare", "one-line", "--output", "one-line"], "one-line: would be used twice"),
    ],
)
def test_what_cannot_be_is_refused(trained, tmp_path, program, options, words):
    (tmp_path / "one-line").write_text("un !\n")
    command = [sys.executable, ROOT / program, "--workdir", trained[0], *map(str, options)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, input="one.\ntwo.\n", timeout=HUNG_AFTER
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["one-line"]
    assert (tmp_path / "one-line").read_text() == "un !\n"


def test_an_ensemble_needs_one_vocabulary(trained, toy, run, tmp_path):
    options = ["--tokenizer.kind", "bpe", "--training.num-steps", 1, "--training.eval-every", 0]
    assert run("train.py", "--config", toy, "--workdir", tmp_path / "bpe", *options).returncode == 0
    done = run("translate.py", "--workdir", trained[0], "--ensemble", tmp_path / "bpe", input="one.\n")
    assert done.returncode == 2
    assert "its tokenizer differs from that of" in done.stderr


# The prompt.


class Terminal:
    """translate.py at a terminal of its own."""

    def __init__(self, workdir: Path, cache: Path, *options: str) -> None:
        self.master, self.slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "translate.py", "--workdir", workdir, *options], cwd=ROOT, start_new_session=True,
            stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env=os.environ | {"XDG_CACHE_HOME": str(cache), "TERM": "dumb"},
        )  # fmt: skip
        self.settings = termios.tcgetattr(self.slave)
        self.seen = ""

    def wait_for(self, text: str) -> str:
        """What came up to and with the text."""
        until = time.monotonic() + HUNG_AFTER
        while text not in self.seen:
            assert time.monotonic() < until, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096).decode()
        found, _, self.seen = self.seen.partition(text)
        return found + text

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self) -> int:
        """Ctrl-C until it ends; its exit status. One that comes between prompt and waiting would not wake Python."""
        for _ in range(PROMPTLY):
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(1)
        raise AssertionError("it goes on")

    def close(self) -> None:
        self.process.kill()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(trained, tmp_path):
    opened = []

    def open_terminal(*options: str) -> Terminal:
        opened.append(Terminal(trained[0], tmp_path, *options))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def test_the_prompt_translates_line_by_line_and_remembers(terminal, tmp_path):
    first = terminal("--beam-size", "1")
    first.wait_for("> ")
    first.type("one two.\r")
    first.wait_for("deux un !")
    first.wait_for("> ")
    first.type("\r")  # an empty line stays one
    first.wait_for("> ")
    first.type("three.\r")
    first.wait_for("trois !")
    first.wait_for("> ")
    first.type("\x04")
    assert first.process.wait(PROMPTLY) == 0
    assert (tmp_path / "lingua-flax" / "translate_history").read_text() == "one two.\nthree.\n"
    second = terminal("--beam-size", "1")
    second.wait_for("> ")
    second.type("\x1b[A\x1b[A\r")  # up, up: the line before the last one
    second.wait_for("deux un !")
    second.wait_for("> ")
    assert second.interrupt() == 130
    assert termios.tcgetattr(second.slave) == second.settings  # the terminal is as it was


def test_between_lines_a_signal_is_the_commands_own(monkeypatch, tmp_path):
    monkeypatch.setattr("builtins.input", lambda prompt: "one.")
    before = signal.getsignal(signal.SIGINT)
    assert next(prompt_lines("> ", tmp_path / "history")) == "one."
    assert signal.getsignal(signal.SIGINT) is before


def test_piped_lines_get_no_prompt(trained, run):
    done = run("translate.py", "--workdir", trained[0], "--beam-size", 1, input="one two.\n")
    assert done.stdout == "deux un !\n"
