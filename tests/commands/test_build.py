"""lingua-flax build: its stages and their records, its plan, and a whole build through kills."""

import gzip
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from lingua_flax.commands import build, clean, compare, distill, evaluate, export, serve, train, translate
from lingua_flax.data.corpora import Pair, open_corpus
from lingua_flax.data.corpora.pair_files import read_pairs
from lingua_flax.data.text_files import read_lines
from lingua_flax.data.tokenizer import MIXTURE_TAG, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.command_line import build as build_options
from lingua_flax.options.command_line import parse
from lingua_flax.options.config_files import read_config, read_workdir_config
from lingua_flax.options.export_formats import obstacles
from lingua_flax.options.schema import DataConfig, Section, TokenizerConfig
from lingua_flax.translation.translator import Translator
from tests.command_server import ROOT
from tests.conftest import HUNG_AFTER
from tests.helpers.folders import contents
from tests.processes import digests, finish, start_command, wait_for

STAGES = ["clean", "baseline", "baseline_scores", "reverse", "baseline_2", "reverse_2", "forward_translations"]
STAGES += ["reverse_translations", "student", "student_scores", "comparison", "ctranslate2", "html", "safetensors"]


def write_pairs(folder: Path, pairs: Sequence[tuple[str, str]] = (("one two", "un deux"),)) -> list[str]:
    """Writes a corpus, and returns the options that build a translator from it."""
    for name, lines in zip(("train.en", "train.fr"), zip(*pairs, strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [str(folder / "train.en"), str(folder / "train.fr")]
    return ["--source-language", "en", "--target-language", "fr", "--train", *files, "--workdir", str(folder / "built")]


class Recorder:
    """Stands for the processes of the stages: writes what the next stages read, and notes which files it found."""

    def __init__(self):
        self.ran = {}
        self.fail_at = ""

    def __call__(self, stage: build.Stage) -> None:
        folder = stage.workdir / stage.name
        self.ran[stage.name] = sorted(path.name for path in folder.iterdir())
        pair = '{"en": "one two three four", "fr": "un deux trois quatre"}\n'
        for word in stage.command:
            if word.startswith(f"{stage.name}/") and not word.endswith("/"):
                (stage.workdir / word).write_text(pair if word.endswith(".jsonl") else "{}")
        if stage.command[0] == "train":
            (folder / "checkpoints/1/metadata").mkdir(parents=True, exist_ok=True)
            (folder / "checkpoints/1/metadata/metadata").write_text("{}")
            (folder / "held_out.json").write_text("{}")
        if stage.command[0] == "evaluate":
            (folder / "translations.reference.txt").write_text("le test\n")
        if stage.name == self.fail_at:
            raise SystemExit(1)


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(build, "_call", recorder)
    monkeypatch.setattr(build, "lock_until_exit", lambda *_: None)  # which another process would hold
    monkeypatch.setattr(build, "write_report", lambda given: None)
    return recorder


@pytest.mark.parametrize("stage", ["clean", "baseline", "forward_translations", "student", "safetensors"])
def test_a_stage_that_failed_goes_on_or_begins_again_and_one_that_is_done_is_skipped(recorder, tmp_path, stage):
    arguments, number = write_pairs(tmp_path), STAGES.index(stage)
    recorder.fail_at = stage
    with pytest.raises(SystemExit):
        build.build(arguments)
    assert list(recorder.ran) == STAGES[: number + 1]
    assert not any(recorder.ran.values())
    recorder.ran, recorder.fail_at = {}, ""
    build.build(arguments)
    is_finished = stage == "forward_translations"  # complete once it has its name
    assert list(recorder.ran) == STAGES[number + is_finished :]
    assert bool(recorder.ran.get(stage)) == (stage in ("baseline", "student"))
    recorder.ran = {}
    build.build(arguments)
    assert recorder.ran == {}


def test_what_has_changed_is_refused_with_a_list(recorder, tmp_path):
    arguments = write_pairs(tmp_path)
    build.build(arguments)
    recorder.ran = {}
    with pytest.raises(UserError, match="since stage baseline was done: command; restore"):
        build.build([*arguments, "--num-steps", "7"])
    (tmp_path / "built/reverse/checkpoints/1/metadata/metadata").write_text("[]")
    with pytest.raises(UserError, match="since stage reverse_translations was done: reverse/; restore"):
        build.build(arguments)
    write_pairs(tmp_path, [("Other", "Autre")])
    files = f"{tmp_path}/train.en, {tmp_path}/train.fr"
    with pytest.raises(UserError, match=rf"since stage clean was done: {files}; restore what"):
        build.build(arguments)
    assert recorder.ran == {}


@pytest.mark.parametrize("name", ["more text.fr", "it's.fr.gz"])
def test_monolingual_text_without_test_references_is_translated_for_the_student(recorder, tmp_path, name):
    """The copy without them is what the error says, whatever the line ends of the file."""
    draw, text = random.Random(name), tmp_path / name
    arguments = write_pairs(tmp_path)
    for end in ("\n", "\r\n"):
        lines = draw.choices(["le test", "la porte", "", " le test", "le test.", "[le] te*t", "un jour\u2028"], k=20)
        content = "\ufeff" + end.join([*lines, "le test"]) + draw.choice(["", end])
        text.write_bytes((gzip.compress if name.endswith(".gz") else bytes)(content.encode()))
        with pytest.raises(UserError, match=r"^--monolingual contains 1 reference of the test set; give") as told:
            build.build([*arguments, "--monolingual", str(text)])
        option, path = shlex.split(re.search(r"; give (.*), which has the other lines$", str(told.value))[1])
        assert list(read_lines(path)) == [line for line in lines if line != "le test"]
    build.build([*arguments, option, path])
    assert list(recorder.ran) == [*STAGES[:8], "back_translations", *STAGES[8:]]
    student = json.loads((tmp_path / "built/student/stage.json").read_text())
    assert {"back_translations/sources.txt", path} <= student.keys()


def test_a_missing_package_and_a_folder_with_other_files_are_refused(recorder, tmp_path, monkeypatch):
    arguments = write_pairs(tmp_path)
    (tmp_path / "built" / "html").mkdir(parents=True)
    (tmp_path / "built" / "html" / "index.html").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"built: has files, but none of a build; choose a new folder$"):
        build.build(arguments)
    monkeypatch.setattr(build, "has_package", lambda name: name not in ("ftfy", "ctranslate2"))
    with pytest.raises(UserError, match=r"^build needs ftfy, ctranslate2: pip install -e '.*\[clean,export\]'$"):
        build.build(arguments)
    assert contents(tmp_path) == before
    assert not recorder.ran


def test_columns_are_those_that_are_cleaned(recorder, tmp_path):
    """Their names are no files, whatever is in them."""
    arguments = write_pairs(tmp_path)
    (tmp_path / "sheet.csv").write_text("en/us,id,it's\none,1,un\n")
    sheet = [*arguments[:5], str(tmp_path / "sheet.csv"), "--columns", "en/us", "it's", *arguments[7:]]
    build.build(sheet)
    command = typed(json.loads((tmp_path / "built/clean/stage.json").read_text())["command"])
    assert (command.files, command.columns) == ((tmp_path / "sheet.csv",), ("en/us", "it's"))


def own_sets(folder: Path, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Writes a validation and a test set, each with half of the pairs, and returns their options."""
    options = []
    for number, name in enumerate(("validation", "test")):
        options += [f"--{name}", *(str(folder / f"{name}.{language}") for language in ("en", "fr"))]
        for path, lines in zip(options[-2:], zip(*pairs[number::2], strict=True), strict=True):
            Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return options


def test_own_sets_are_those_of_all_networks(recorder, tmp_path):
    """With both, nothing is held out of the training pairs; with one, the same pairs for all."""
    arguments, sets = write_pairs(tmp_path), own_sets(tmp_path, [("one", "un"), ("two", "deux")])
    with pytest.raises(UserError, match=r"^--test takes two files, source and target, got 1$"):
        build.build([*arguments, *sets[:-1]])
    with pytest.raises(UserError, match=r"^--test .*test.frx: no such file; check the path$"):
        build.build([*arguments, *sets[:-1], f"{sets[-1]}x"])
    assert not recorder.ran
    for given, held_out in ((sets, False), (sets[:3], True)):
        folder = tmp_path / str(held_out)
        build.build([*arguments[:-1], str(folder), *given])
        for name in ("baseline", "reverse", "baseline_2", "reverse_2", "student"):
            data = typed(json.loads((folder / name / "stage.json").read_text())["command"]).data
            paths = (data.validation_source, data.validation_target, data.test_source, data.test_target)
            languages = ["fr", "en"] if "reverse" in name else ["en", "fr"]
            expected = [tmp_path / f"{split}.{language}" for split in ("validation", "test") for language in languages]
            assert list(paths) == (expected if not held_out else [*expected[:2], None, None])
            assert bool(data.held_out) == (held_out and name not in ("baseline", "student"))


COMMANDS: dict[str, type[Section]] = {
    "clean": clean.CleanCommand,
    "train": train.TrainCommand,
    "evaluate": evaluate.EvaluateCommand,
    "compare": compare.CompareCommand,
    "distill": distill.DistillCommand,
    "export": export.ExportCommand,
    "translate": translate.TranslateCommand,
}


def cleaned(folder: Path, target_language: str, pairs: Iterable[tuple[str, str]]) -> build.BuildCommand:
    """Writes the output of the first stage; returns the options of the build."""
    (folder / "clean").mkdir(parents=True)
    lines = (json.dumps({"en": source, target_language: target}) + "\n" for source, target in pairs)
    (folder / "clean" / "pairs.jsonl").write_text("".join(lines))
    return build.BuildCommand(source_language="en", target_language=target_language, train=(), workdir=folder)


def test_sizes_follow_the_number_of_pairs(tmp_path):
    """A thousand words are repeated in small corpora: 2,000 on both sides, and ten letters."""
    few, many = build.FOR_FEW_PAIRS, build.FOR_MANY_PAIRS
    for count, pieces, options in ((1999, 684, few), (2000, 684, ""), (50_000, 6000, ""), (50_001, 8000, many)):
        words = 1000 if count <= 2000 else 20_000
        pairs = [(str(number % words), str(number % words + 100_000)) for number in range(count)]
        given = cleaned(tmp_path / str(count), "fr", pairs)
        assert build.sizes(given, ["1", "2"]) == (pieces, pieces * 2 // 3, options)


def test_the_pieces_suffice_for_thousands_of_characters(tmp_path):
    """Most of them are only in the target language, and some only in --monolingual, some of these as two characters."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklm", k=draw.randint(2, 7))) for _ in range(2000)]
    kanji = [chr(0x4E00 + number) for number in range(2500)]
    pairs = [Pair(" ".join(draw.choices(words, k=6)), "".join(draw.choices(kanji, k=15))) for _ in range(1500)]
    syllables = [chr(0xAC00 + number) for number in range(28 * 60)]
    monolingual = [unicodedata.normalize("NFD", "".join(syllables[i : i + 28])) for i in range(0, 28 * 60, 28)]
    given = cleaned(tmp_path, "zh", pairs)
    for more in ([], monolingual):
        pieces, student_pieces, _ = build.sizes(given, more)
        train_tokenizer(pairs, TokenizerConfig(vocab_size=pieces, placeholders=8))
        student_pairs = [*pairs, *(Pair("back ?", line) for line in more)]
        train_tokenizer(student_pairs, TokenizerConfig(vocab_size=student_pieces, placeholders=8), [MIXTURE_TAG])


def typed(line: str):
    """Returns the options of a command line, as the command reads them."""
    program, command, *words = shlex.split(line)
    assert program == "lingua-flax"
    config = dict(read_config(Path(words[words.index("--config") + 1]))) if command == "train" else {}
    return build_options(COMMANDS[command], parse(COMMANDS[command], words, ""), **config)


@pytest.mark.parametrize("given", [["--num-steps", "9"], ["--monolingual", "TEXT"]])
def test_the_plan_has_commands_that_can_be_typed(recorder, tmp_path, capsys, monkeypatch, given):
    """The first one is done, so it is a comment."""
    monkeypatch.setattr(build, "_measure", lambda options: (1000.0, 2.0, 10.0))
    text = tmp_path / "more.fr"
    text.write_text("la porte\nle mur\nun jour\n")
    build.build([*write_pairs(tmp_path), "--plan", *(word.replace("TEXT", str(text)) for word in given)])
    assert list(recorder.ran) == ["clean"]
    shell, _, _, cd, mkdir, *lines, last = capsys.readouterr().out.splitlines()
    is_monolingual = "--monolingual" in given
    names = [*STAGES[:8], "back_translations", *STAGES[8:]] if is_monolingual else STAGES
    assert (shell, cd, mkdir) == ("#!/bin/sh", f"cd {tmp_path}/built", f"mkdir -p {' '.join(names)}")
    assert [line.split(", ")[0] for line in lines[::2]] == [f"# {n}. {name}" for n, name in enumerate(names, 1)]
    assert (lines[0], lines[1][:20]) == ("# 1. clean, done", "# lingua-flax clean ")
    steps, start = 160 * 10 if is_monolingual else 9, 20
    assert lines[2] == f"# 2. baseline, about {(start + 2.0 * steps) / 60:,.1f} minutes"
    if is_monolingual:  # three lines, and one pair
        assert lines[18] == f"# 10. student, about {(start + 6 * steps * 2.0) / 60:,.1f} minutes"
    networks = [options for options in map(typed, lines[3::2]) if isinstance(options, train.TrainCommand)]
    assert not any(obstacles("ctranslate2", options.model) for options in networks)
    assert {options.tokenizer.placeholders for options in networks} == {8}
    mixed = {str(options.workdir): len(options.data.mixture) for options in networks if options.data.mixture}
    assert mixed == {"student": 2 + is_monolingual}
    scores = {str(options.scores) for options in map(typed, lines[3::2]) if getattr(options, "scores", None)}
    assert scores == {"student_scores/scores.json"}
    assert re.fullmatch(r"# about [\d.]+ hours, at 1,000 target tokens a second in training, measured now", last)


@pytest.mark.parametrize("name", ["a b", "new\nline\nclean x", 'it\'s "$(exit)" #; `x`', "-x%{0}é"])
def test_the_plan_is_a_script_whatever_the_names_of_files(recorder, tmp_path, capsys, monkeypatch, name):
    """It runs what a build runs, from the stage after the first, which is done."""
    monkeypatch.setattr(build, "_measure", lambda options: (1000.0, 2.0, 10.0))
    (tmp_path / name).mkdir()
    text = tmp_path / name / "more\ntext.fr"
    text.write_text("la porte\n")
    arguments = [*write_pairs(tmp_path / name), "--monolingual", str(text)]
    build.build([*arguments, "--plan"])
    program, log = tmp_path / "bin" / "lingua-flax", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\npwd >> {log}\nprintf "%s\\0" "$@" >> {log}\nprintf "\\n\\0" >> {log}\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    script = capsys.readouterr().out
    done = subprocess.run(["sh"], input=script, text=True, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), script
    ran = log.read_text().split("\n\0")[:-1]
    given = build.BuildCommand.read(arguments)
    stages = build.stages(given, *build.sizes(given, {"la porte"}))
    assert ran == [
        f"{tmp_path / name}/built\n" + "".join(f"{word}\0" for word in stage.command) for stage in stages[1:]
    ]


def test_what_stages_print_is_no_part_of_a_plan(run):
    code = "import os, sys; from lingua_flax.host.workers import start_program; "
    code += "start_program([sys.executable, '-c', 'print(1)'], '.', os.environ).wait()"
    done = run("-c", code)
    assert (done.stdout, done.stderr) == ("", "1\n")


@pytest.mark.slow
def test_the_plan_of_a_corpus_runs(succeed, tmp_path):
    pairs = open_corpus(DataConfig())
    sets = own_sets(tmp_path, list(pairs.split("validation"))[:40])
    arguments = [*write_pairs(tmp_path, list(pairs.split("train"))[:300]), "--num-steps", 20, *sets]
    script = tmp_path / "plan.sh"
    script.write_text(succeed("build", *arguments, "--plan", process=True).stdout)
    subprocess.run(["bash", "-n", script], check=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", script], cwd="/", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(list((tmp_path / "built" / name).iterdir()) for name in STAGES)


def test_a_build_is_the_workdir_of_its_student(run, succeed, tmp_path):
    line = "I swam across the river to get to the other bank."
    (tmp_path / "build").touch()
    refusal = run("translate", "--workdir", tmp_path, input=line).stderr
    assert refusal.endswith("student: not a workdir (there is no such folder); let lingua-flax build go on\n")
    (tmp_path / "student").symlink_to(ROOT / "checkpoints/phrasebook")
    (translation,) = Translator.load(ROOT / "checkpoints/phrasebook").translate([line])
    assert Translator.load(tmp_path).translate([line])[0].text == translation.text
    own = ("--ensemble", tmp_path, "--beam-size", 5)
    assert succeed("translate", "--workdir", tmp_path, *own, input=line).stdout == f"{translation.text}\n"
    output = ["--output", str(tmp_path / "new"), "--format", "html"]
    for command, more in ((serve.ServeCommand, []), (evaluate.EvaluateCommand, []), (export.ExportCommand, output)):
        assert command.read(["--workdir", str(tmp_path), *more]).workdir == tmp_path / "student"
    assert compare.read_options([str(tmp_path)])[0].runs == (tmp_path / "student",)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGTERM, os.kill), pytest.param(signal.SIGINT, os.killpg, marks=pytest.mark.slow)]
)
def test_a_signal_reaches_the_stage_and_a_kill_leaves_none_behind(tmp_path, number, send):
    """SIGTERM comes to one process, Ctrl-C to all of a terminal's."""
    command = ["build", *write_pairs(tmp_path, [(f"one {i}", f"un {i}") for i in range(100_000)])]
    folder = tmp_path / "built" / "clean"
    process = start_command(*command, start_new_session=True)
    wait_for(process, lambda: list(folder.glob(".pairs.jsonl.*")))
    send(process.pid, number)
    ((status, _, errors),) = finish([process])
    assert status == 128 + number, errors
    assert "Traceback" not in errors
    assert not list(folder.iterdir())  # the stage has removed what it was writing
    process = start_command(*command)
    wait_for(process, lambda: list(folder.glob(".pairs.jsonl.*")))
    stages = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    assert stages
    assert psutil.wait_procs(stages, HUNG_AFTER)[1] == []


def results(workdir: Path) -> dict[str, Any]:
    """Returns what two builds of the same corpus have in common."""
    files = ["clean/pairs.jsonl", "forward_translations/pairs.jsonl", "reverse_translations/pairs.jsonl"]
    files += ["student_scores/translations.txt", "ctranslate2/model/model.bin", "safetensors/model/model.safetensors"]
    found: dict[str, Any] = {name: (workdir / name).read_bytes() for name in files}
    found |= {name: digests(workdir / name) for name in ("baseline", "reverse", "student")}
    report = (workdir / "report.md").read_text(encoding="utf-8")
    speed = re.compile(r"^(\| (?:baseline|student) .*) [\d.]+ \|$", re.MULTILINE)
    return found | {"report": speed.sub(r"\1 |", report)}


@pytest.mark.slow
def test_killed_build_ends_with_the_same_networks_and_the_same_report(tmp_path):
    """Every stage but one is killed with SIGKILL, at another share of the time that it takes without a kill."""
    workdirs = [tmp_path / name for name in ("uninterrupted", "killed")]
    arguments = write_pairs(tmp_path, list(open_corpus(DataConfig()).split("train"))[:600])[:-1]
    log = tmp_path / "log.txt"

    def start(workdir: Path):
        with log.open("a") as file:
            pipes = {"stdout": file, "stderr": file, "start_new_session": True}
            return start_command("build", *arguments, workdir, "--num-steps", 300, **pipes)

    assert start(workdirs[0]).wait(4 * HUNG_AFTER) == 0, log.read_text()
    ends = [(workdirs[0] / name / "stage.json").stat().st_mtime for name in STAGES]
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    chosen = sorted(random.Random(0).sample(range(1, len(STAGES)), 10))
    for number, stage in enumerate(chosen, start=1):
        process = start(workdirs[1])
        wait_for(process, (workdirs[1] / STAGES[stage]).is_dir)
        time.sleep(seconds[stage - 1] * number / 11)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(workdirs[1]).wait(4 * HUNG_AFTER) == 0, log.read_text()
    first, second = map(results, workdirs)
    assert second == first
    # No network has learned from a test sentence, nor the student from the translation of one.
    test = {pair.source for pair in open_corpus(read_workdir_config(workdirs[0] / "student").data).split("test")}
    assert len(test) > 10
    shown = re.findall(r"^source     (.*)\nreference  .+\nstudent    .+\n$", first["report"], re.MULTILINE)
    assert (len(shown), len(test.intersection(shown))) == (10, 10)
    forward = read_pairs([workdirs[0] / "forward_translations" / "pairs.jsonl"], ("en", "fr"))
    assert test.isdisjoint(pair.source for pair in forward)
    reverse = open_corpus(read_workdir_config(workdirs[0] / "reverse").data)
    assert {pair.target for pair in reverse.split("test")} == test
