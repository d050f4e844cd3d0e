"""The command build: parallel text -> a translator, by the other commands, each in a process of its own.

build_templates/commands.txt has the stages in order. Each has a folder for its results, in that of the build, where the
commands run; its stage.json, written when it is done, has the command and the digests of all that it read. A word with
a slash is a file, or the folder of a network if it ends in one.
"""

import json
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentencepiece import SentencePieceNormalizer

from lingua_flax.data import cleaning
from lingua_flax.data.corpora.pair_files import read_pairs, sha256
from lingua_flax.data.text_files import read_lines, write_lines
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.files import write_atomically
from lingua_flax.host.installation import has_package, install_command
from lingua_flax.host.interruption import interruption
from lingua_flax.host.locks import lock_until_exit
from lingua_flax.host.wording import counted
from lingua_flax.host.workers import start_program
from lingua_flax.options import command_line
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import BUILD_MARK, PositiveInt, TokenizerConfig
from lingua_flax.runs.workdir import Workdir

PACKAGES = (*cleaning.PACKAGES, "ctranslate2", "safetensors")  # of the extras clean and export
TEMPLATES = Path(__file__).parent / "build_templates"
MORE_EPOCHS = 160  # docs/guides/own_corpus.md has what they gain
FOR_FEW_PAIRS = f"--training.num-epochs {MORE_EPOCHS}"
FOR_MANY_PAIRS = "--model.embed-dim 256 --model.mlp-dim 1024 --model.dropout-rate 0.1 --optimizer.peak-lr 2e-3 "
FOR_MANY_PAIRS += "--training.tokens-per-batch 8192"
SAMPLE = "source     {}\nreference  {}\nstudent    {}\n"
MEASURED_STEPS = 30
# Of training, which take as long as translating the corpus: 9,115 pairs of Multi30k take 9 s, and two teachers 82 s.
TRANSLATION_EPOCHS = 9
log = logging.getLogger(__name__)


class BuildCommand(command_line.Command):
    """Makes a translator from parallel text: cleans it, trains networks and their student, and exports it."""

    source_language: str
    """Language to translate from, such as en."""
    target_language: str
    """Language to translate into, such as de."""
    train: tuple[Path, ...]
    """Two text files, source and target, or one file with both sides, as lingua-flax clean reads them."""
    columns: tuple[str, ...] = ()
    """Columns of source and target, as for lingua-flax clean."""
    workdir: Path
    """Folder of the build; created if it does not exist. The same command on it continues an interrupted build."""
    validation: tuple[Path, ...] = ()
    """Two text files, source and target, that choose the checkpoints; by default pairs held out of --train."""
    test: tuple[Path, ...] = ()
    """Two text files, source and target, for the scores in the report; likewise."""
    monolingual: Path | None = None
    """Text file in the target language, one sentence per line; the student also learns from its back-translation."""
    num_steps: PositiveInt | None = None
    """Number of steps of each network, instead of as many as its config takes; to try the command out."""
    plan: command_line.Flag = False
    """Clean the corpus, train 30 steps to measure the speed, and print a script of all stages, with estimated times."""

    def check(self, given: command_line.Given) -> None:
        if missing := [package for package in PACKAGES if not has_package(package)]:
            raise UserError(f"build needs {', '.join(missing)}: {install_command('clean,export')}")
        if self.source_language == self.target_language:
            raise UserError(f"--target-language {self.target_language} is the source language; choose another")
        for name, files in (("validation", self.validation), ("test", self.test)):
            if len(files) not in (0, 2):
                raise UserError(f"--{name} takes two files, source and target, got {len(files)}")
            for path in files:
                if not path.expanduser().is_file():  # it would show only after cleaning
                    raise UserError(f"--{name} {path}: no such file; check the path")


@dataclass(frozen=True)
class Stage:
    """A command that runs in the folder of a build; its results go to the folder `name` in there."""

    workdir: Path
    command: Sequence[str]

    @property
    def name(self) -> str:
        output = {"train": "--workdir", "compare": "--json"}.get(self.command[0], "--output")
        return self.command[self.command.index(output) + 1].partition("/")[0]

    @property
    def record(self) -> Path:
        return self.workdir / self.name / "stage.json"

    @property
    def shell(self) -> str:
        return shlex.join(["lingua-flax", *self.command])

    def inputs(self) -> dict[str, str]:
        """Returns the command and the digests of all that it reads; raises UserError if something cannot be read."""
        words = (word for word in self.command if "/" in word and not word.startswith(f"{self.name}/"))
        read = [word for word in words if os.path.exists(self.workdir / word)]  # unlike the name of a column
        return {"command": self.shell} | {word: _digest(self.workdir / word) for word in read}


def _digest(path: Path) -> str:
    """Returns the SHA-256 of a file or, of a network, of its checkpoints' metadata, which has those of its arrays."""
    files = sorted(path.glob("checkpoints/*/metadata/*")) if path.is_dir() else [path]
    return json_digest([sha256(file) for file in files])


def sizes(given: BuildCommand, monolingual: Iterable[str]) -> tuple[int, int, str]:
    """Returns the pieces of teachers and of the student, and the options of training, by docs/guides/cleaning.md."""
    pairs, words, characters = 0, set[str](), set[str]()
    for pair in read_pairs([given.workdir / "clean/pairs.jsonl"], (given.source_language, given.target_language)):
        pairs += 1
        words.update(*(side.split() for side in pair))
        characters.update(*pair)
    # SentencePiece finds at most 0.4 to 0.9 pieces a word (100 to 30,000 pairs of the phrasebook and of Multi30k).
    pieces = min(max(8000 if pairs > 50_000 else 6000, 3 * len(characters)), 8 + len(words) // 3 + len(characters))
    normalize = SentencePieceNormalizer(rule_name=TokenizerConfig().normalization).normalize
    # It needs one for each character, for eight placeholders, <pad>, <s>, </s>, <unk>, <bt>, a space, and the "?" that
    # <unk> becomes.
    fewest = 15 + len(set[str]().union(*map(normalize, [*characters, *monolingual])))
    options = FOR_FEW_PAIRS if pairs < 2000 else FOR_MANY_PAIRS if pairs > 50_000 else ""
    return pieces, max(pieces * 2 // 3, fewest), options


def stages(given: BuildCommand, pieces: int = 0, student_pieces: int = 0, options: str = "") -> list[Stage]:
    """Returns the stages in order; those that train have these numbers of pieces and these options."""
    *files, text = (path.expanduser().absolute().as_posix() for path in (*given.train, given.monolingual or Path()))
    lines = (TEMPLATES / "commands.txt").read_text(encoding="utf-8").strip().splitlines()
    template = "\n".join(line for line in lines if given.monolingual or "{monolingual}" not in line)
    if given.num_steps:
        options = f"{options.replace(FOR_FEW_PAIRS, '')} --training.num-steps {given.num_steps}"
    values = {
        "train": shlex.join([*files, "--columns", *given.columns] if given.columns else files),
        "monolingual": shlex.quote(text),
        "source": shlex.quote(given.source_language),
        "target": shlex.quote(given.target_language),
        "sets": _sets(given, ("source", "target")),
        "reverse_sets": _sets(given, ("target", "source")),
        "held_out": "" if given.validation and given.test else "--data.held-out baseline/held_out.json",
        "pieces": pieces,
        "student_pieces": student_pieces,
        "options": options,
    }
    # The template is divided before paths, which can have line breaks, stand in it.
    commands = (command.format(**values) for command in re.split(r"\n(?=\w)", template))
    return [Stage(given.workdir, shlex.split(command)) for command in commands]


def _sets(given: BuildCommand, sides: tuple[str, str]) -> str:
    """Returns the options for validation and test files, whose sides have these names."""
    sets = {"validation": given.validation, "test": given.test}
    named = [(f"--data.{name}-{side}", path) for name in sets for side, path in zip(sides, sets[name], strict=False)]
    return shlex.join(word for option, path in named for word in (option, path.expanduser().absolute().as_posix()))


def build(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = BuildCommand.read(argv)
    monolingual = set(read_lines(options.monolingual)) if options.monolingual else set()  # an error shows now
    Workdir(options.workdir).check_creatable()
    options.workdir.mkdir(parents=True, exist_ok=True)
    if any(options.workdir.iterdir()) and not (options.workdir / BUILD_MARK).exists():  # which could be replaced
        raise UserError(f"--workdir {options.workdir}: has files, but none of a build; choose a new folder")
    (options.workdir / BUILD_MARK).touch()
    refusal = "is building in it; wait until it ends, stop it, or choose another --workdir"
    lock_until_exit(options.workdir / "build.lock", options.workdir, refusal)
    _run(stages(options)[0], "stage 1")
    size = sizes(options, monolingual)
    planned = stages(options, *size)
    if options.plan:
        few_steps = stages(options.model_copy(update={"num_steps": MEASURED_STEPS}), *size)
        _show_plan(options, planned, *_measure(few_steps[1]))
        return
    for number, stage in enumerate(planned[1:], start=2):
        if stage.command[0] == "translate":
            _check_monolingual(options, monolingual)
        _run(stage, f"stage {number} of {len(planned)}")
    write_report(options)
    log.info("%s has the scores, and the commands that serve the translator", options.workdir / "report.md")


def _run(stage: Stage, title: str) -> None:
    """Runs a stage unless it is done; raises UserError with a list if something is not as it was when it ran."""
    inputs, folder = stage.inputs(), stage.record.parent
    if stage.record.exists():
        before = json.loads(stage.record.read_text(encoding="utf-8"))
        if changed := [name for name, digest in before.items() if inputs.get(name) != digest]:
            remedy = f"restore what {stage.record} lists, or choose another --workdir"
            raise UserError(f"changed since stage {stage.name} was done: {', '.join(changed)}; {remedy}")
        log.info("%s, %s: done", title, stage.name)
        return
    log.info("%s, %s: %s", title, stage.name, stage.shell)
    if stage.command[0] not in ("train", "distill"):  # which continue where they were
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    if stage.command[0] != "distill" or not (folder / "pairs.jsonl").exists():  # it does not replace what is complete
        _call(stage)
    write_atomically(stage.record, json.dumps(inputs, indent=1).encode())


def _call(stage: Stage) -> None:
    """Runs the command of a stage; raises RunError if it was killed, and SystemExit if it failed, which it explains.

    What it prints goes to standard error: of the output of this program, a plan can be made a script.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # relative ones mean this folder
    with interruption.deferred():
        process = start_program([sys.executable, "-m", "lingua_flax", *stage.command], stage.workdir, environment)
        while process.poll() is None and interruption.signal_number != signal.SIGTERM:
            time.sleep(0.1)
        process.terminate()  # unless it has ended, as after Ctrl-C, which reaches it by itself
        status = process.wait()
    if status < 0:
        raise RunError(f"{stage.name} was killed by {signal.Signals(-status).name}; the same command continues")
    if status:
        raise SystemExit(status)


def _check_monolingual(options: BuildCommand, lines: set[str]) -> None:
    """Raises UserError if lines are references of the test set, from which the student must not learn."""
    references = set(read_lines(options.workdir / "baseline_scores" / "translations.reference.txt"))
    if options.monolingual and (count := len(lines & references)):
        others = options.workdir / "monolingual.txt"
        write_lines(others, (line for line in read_lines(options.monolingual) if line not in references))
        remedy = f"give --monolingual {shlex.quote(str(others))}, which has the other lines"
        raise UserError(f"--monolingual contains {counted(count, 'reference')} of the test set; {remedy}")


def _show_plan(given: BuildCommand, planned: Sequence[Stage], rate: float, seconds: float, epoch_steps: float) -> None:
    total, text = 0.0, 0.0  # text is in passes over the corpus
    if given.monolingual:
        text = len([*read_lines(given.monolingual)]) / len([*read_lines(given.workdir / "clean/pairs.jsonl")])
    programs, folder = (shlex.quote(str(path.absolute())) for path in (Path(sys.executable).parent, given.workdir))
    print(f"#!/bin/sh\nset -e\nPATH=$PATH:{programs}\ncd {folder}\nmkdir -p {' '.join(own.name for own in planned)}")
    for number, stage in enumerate(planned, start=1):
        if stage.record.exists():
            done = stage.shell.replace("\n", "\n# ")
            print(f"# {number}. {stage.name}, done\n# {done}")
            continue
        program, _, config, *_ = stage.command
        steps = {"distill": 1.0, "translate": text}.get(program, 0.0) * TRANSLATION_EPOCHS * epoch_steps
        if program == "train":
            epochs = MORE_EPOCHS if FOR_FEW_PAIRS in stage.shell else read_config(Path(config)).training.num_epochs or 0
            steps = given.num_steps or epochs * epoch_steps * (3.0 + text if stage.name == "student" else 1.0)
        minutes = (20 + steps * seconds) / 60  # 20 s until a command has loaded and compiled its programs
        total += minutes
        print(f"# {number}. {stage.name}, about {minutes:,.1f} minutes\n{stage.shell}")
    print(f"# about {total / 60:,.1f} hours, at {rate:,.0f} target tokens a second in training, measured now")


def _measure(baseline: Stage) -> tuple[float, float, float]:
    """Trains for MEASURED_STEPS, and returns target tokens a second, seconds a step, and steps an epoch."""
    more = "--training.log-every 10 --training.patience 0 --training.eval-every 0 --training.tensorboard False"
    with tempfile.TemporaryDirectory() as folder:
        command = [word.replace("baseline/", f"{folder}/") for word in baseline.command]
        _call(Stage(baseline.workdir, [*command, *more.split()]))
        line = json.loads((Path(folder) / "metrics.jsonl").read_bytes().splitlines()[-1])
    return line["tokens_per_second"], line["tokens"] / line["tokens_per_second"], MEASURED_STEPS / line["epoch"]


def write_report(given: BuildCommand) -> None:
    """Writes report.md: what was cleaned, how well and how fast the networks translate, what, and how to use them."""
    names = ("clean/report.json", "baseline_scores/scores.json", "student_scores/scores.json", "comparison/scores.json")
    clean, baseline, student, compared = (json.loads((given.workdir / name).read_text("utf-8")) for name in names)
    (metrics,) = compared["metrics"].values()  # of the test set
    reasons = [f"| left out, {name} | {found['pairs']:,} |" for name, found in clean["left_out"].items()]
    reasons += [f"| mended, {name} | {found['pairs']:,} |" for name, found in clean["mended"].items()]
    files = (given.workdir / f"student_scores/translations{side}.txt" for side in (".source", ".reference", ""))
    shown = list(zip(*map(read_lines, files), strict=True))
    more = {"cleaned": "\n".join(reasons), "baseline": baseline, "student": student, **metrics}
    more["margin"] = (student["bleu_high"] - student["bleu_low"]) / 2
    more["samples"] = "\n".join(map(SAMPLE.format, *zip(*shown[:: max(1, len(shown) // 10)][:10], strict=True)))
    report = (TEMPLATES / "report.md").read_text(encoding="utf-8").format(**clean | given.model_dump() | more)
    write_atomically(given.workdir / "report.md", report.encode())
