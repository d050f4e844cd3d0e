"""The README's commands: every one of them has options that exist and go together."""

import re
import shlex
import shutil
import tomllib

import pytest

from commands import evaluate, train, translate, verify_resume
from options.config_files import read_config, to_toml
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROGRAMS = {
    "train.py": train.resolve_config,
    "evaluate.py": evaluate.read_options,
    "translate.py": translate.read_options,
    "verify_resume.py": verify_resume.read_options,
}


def commands() -> list[list[str]]:
    """Program and arguments of each command of the shell blocks, pipes and continued lines taken apart."""
    found = []
    for kind, text in BLOCKS:
        for line in text.replace("\\\n", " ").splitlines() if not kind else []:
            for part in re.sub(r"^srun .*?(?=python )", "", line.removeprefix("$ ")).removesuffix(" &").split(" | "):
                words = shlex.split(part, comments=True) if re.match(r"(\.venv/bin/)?python \w+\.py ", part) else []
                if words and words[1] in PROGRAMS and words[2:] != ["--help"]:
                    found.append(words[1:])
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository's folder with the workdirs that the README speaks of."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (mine,) = [text for kind, text in BLOCKS if kind == "toml" and "# mine.toml" in text]
    (tmp_path / "mine.toml").write_text(mine, encoding="utf-8")
    workdirs = {words[words.index("--workdir") + 1] for words in commands() if "--workdir" in words}
    tagged = to_toml(read_config(tmp_path / "configs" / "multi30k_en_de_fr.toml"))
    for workdir in workdirs:
        (tmp_path / workdir).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path, tagged


def test_every_command_is_one(folder):
    path, tagged = folder
    seen = commands()
    assert len(seen) > 30
    for program, *argv in seen:
        config = path / argv[argv.index("--workdir") + 1] / "config.toml" if "--workdir" in argv else None
        if program in ("train.py", "verify_resume.py") and "--config" in argv:
            PROGRAMS[program](argv)
        elif config:  # what training would have left there
            config.write_text(tagged, encoding="utf-8")
            PROGRAMS[program](argv)
            config.unlink()


def test_every_way_to_use_it_is_shown():
    shown = {word for words in commands() for word in words if word.startswith("--")}
    assert shown >= {
        "--inspect-data", "--training.ema-decay", "--optimizer.name", "--tokenizer.sampling-alpha", "--init-from",
        "--target-language", "--temperature", "--top-p", "--min-decoding-length", "--max-decoding-length", "--prefix",
        "--prefix-file",
        "--checkpoint", "--ensemble", "--score", "--compare", "--output", "--json", "--num-hypotheses", "--json-lines",
        "--attention", "--positions", "--split", "--seed", "--data.name", "--dry-run", "--tokens-per-second",
        "--devices.mesh.data", "--devices.topology", "--coordinator", "--num-processes", "--process-id", "--kills",
    }  # fmt: skip


def test_toml_blocks_are_toml_and_files_exist():
    for kind, text in BLOCKS:
        if kind == "toml":
            tomllib.loads(text)
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link
    (listing,) = [text for _, text in BLOCKS if text.startswith("pyproject.toml")]
    named = set(re.findall(r"[\w.]+\.py\b", listing))
    packages = (
        "commands",
        "data",
        "data/corpora",
        "devices",
        "docs",
        "evaluation",
        "host",
        "model",
        "notebooks",
        "options",
        "reports",
        "runs",
        "training",
        "translation",
        "verification",
    )
    there = {path.name for package in packages for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    assert there <= named
    assert named <= there
    assert {path.name for path in ROOT.glob("*.py")} == set(PROGRAMS)


def test_every_promise_names_a_test_that_there_is():
    """What is promised: a table with a row for each promise, and the tests that keep it."""
    (section,) = re.findall(r"^### What is promised$(.*?)^##", README, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", section, re.MULTILINE)
    assert len(rows) > 10
    for promise, tests in rows:
        for name in re.findall(r"`(.+?)`", tests):
            file, _, test = name.partition("::")
            source = (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
            assert f"\ndef {test}(" in source, (promise, name)
