"""The README: the options of its commands, its TOML, the files it mentions, and the tests of its guarantees."""

import re
import shlex
import shutil
import tomllib

import pytest

from commands import distill, evaluate, export, serve, train, translate, verify_resume
from options.config_files import read_config, to_toml
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROGRAMS = {
    "train.py": train.resolve_config,
    "distill.py": distill.read_options,
    "evaluate.py": evaluate.read_options,
    "export.py": export.read_options,
    "serve.py": serve.read_options,
    "translate.py": translate.read_options,
    "verify_resume.py": verify_resume.read_options,
}


def commands() -> list[list[str]]:
    """Returns the program and arguments of each command in shell blocks; pipes are split and continued lines joined."""
    result = []
    for kind, text in BLOCKS:
        for line in text.replace("\\\n", " ").splitlines() if not kind else []:
            for part in re.sub(r"^srun .*?(?=python )", "", line.removeprefix("$ ")).removesuffix(" &").split(" | "):
                words = shlex.split(part, comments=True) if re.match(r"(\.venv/bin/)?python \w+\.py ", part) else []
                if words and words[1] in PROGRAMS and words[2:] != ["--help"]:
                    result.append(words[1:])
    return result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory: the configs that the README shows or mentions, and a workdir."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for kind, text in BLOCKS:
        if kind == "toml" and (name := re.match(r"# (\w+\.toml)\n", text)):
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
    (tmp_path / "workdir").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_workdir(command: list[str]) -> tuple[str, ...]:
    """Returns the command with "workdir" as the workdir; many commands differ in nothing else."""
    at = command.index("--workdir") + 1 if "--workdir" in command else len(command)
    return tuple("workdir" if index == at else word for index, word in enumerate(command))


def test_every_command_is_valid(folder):
    saved = folder / "workdir" / "config.toml"
    config = to_toml(read_config(folder / "configs" / "multi30k_en_de_fr.toml"))  # has tags, as some options require
    distinct = list(dict.fromkeys(map(in_workdir, commands())))
    assert {program for program, *_ in distinct} == set(PROGRAMS)
    for program, *argv in distinct:
        if program in ("train.py", "verify_resume.py") and "--config" in argv:
            PROGRAMS[program](argv)
        elif "--workdir" in argv:
            saved.write_text(config, encoding="utf-8")
            PROGRAMS[program](argv)
            saved.unlink()


def test_every_use_is_shown():
    shown = {word for words in commands() for word in words if word.startswith("--")}
    assert shown >= {
        "--inspect-data", "--training.ema-decay", "--optimizer.name", "--tokenizer.sampling-alpha", "--init-from",
        "--target-language", "--temperature", "--top-p", "--min-decoding-length", "--max-decoding-length", "--prefix",
        "--prefix-file",
        "--checkpoint", "--ensemble", "--score", "--compare", "--output", "--json", "--num-hypotheses", "--json-lines",
        "--attention", "--positions", "--split", "--seed", "--data.name", "--dry-run", "--tokens-per-second",
        "--devices.mesh.data", "--devices.topology", "--coordinator", "--num-processes", "--process-id", "--kills",
    }  # fmt: skip


def test_toml_blocks_are_valid_and_mentioned_files_exist():
    for kind, text in BLOCKS:
        if kind == "toml":
            tomllib.loads(text)
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link
    (listing,) = [text for _, text in BLOCKS if text.startswith("pyproject.toml")]
    named = set(re.findall(r"[\w.]+\.py\b", listing))
    packages = ("commands", "data", "data/corpora", "devices", "docs", "evaluation", "exporting", "host", "model",
                "notebooks", "options", "reports", "runs", "serving", "training", "translation",
                "verification")  # fmt: skip
    actual = {path.name for package in packages for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    assert named == actual
    assert {path.name for path in ROOT.glob("*.py")} == set(PROGRAMS)


def test_every_guarantee_names_existing_tests():
    """Each row of the table states a guarantee and names the tests that check it."""
    rows = re.findall(r"^\| (.+?) \| (`test_\w+::.+`) \|$", README, re.MULTILINE)
    assert rows
    for guarantee, tests in rows:
        for name in re.findall(r"`(.+?)`", tests):
            file, _, test = name.partition("::")
            source = (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
            assert f"\ndef {test}(" in source, (guarantee, name)
