"""README.md and the documentation: the commands, configs, code and links of every page, and the reference."""

import ast
import importlib
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest

from docs import generate_reference, renew_outputs
from lingua_flax.__main__ import COMMANDS, function_name
from lingua_flax.options.config_files import read_config, read_section, to_toml
from lingua_flax.options.schema import CleaningOptions, Config, Section
from tests.command_server import run_here
from tests.conftest import ROOT
from tests.helpers.dry_run import JSON_KEYS

DOCS = ROOT / "docs"
GENERATED = {DOCS / "reference" / f"{name}.md" for name in ("options", "commands", "files")}
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in {ROOT / "README.md", *DOCS.rglob("*.md")} - GENERATED
    if "_build" not in path.parts
)
PROGRAMS = {name: importlib.import_module(f"lingua_flax.commands.{function_name(name)}") for name in COMMANDS}
SHELL = ("console", "bash", "")


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns the language and the text of each code block."""
    return re.findall(r"^```([\w{}-]*)[^\n]*\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Returns the name and arguments of each command in shell blocks; pipes are split and continued lines joined."""
    result = []
    for kind, text in blocks(page):
        text = re.sub(r"\bpython (train|evaluate|translate)\.py\b", r"lingua-flax \1", text)
        for line in text.replace("\\\n", " ").splitlines() if kind in SHELL else []:
            for part in line.removeprefix("$ ").removesuffix(" &").split(" | "):
                command = re.match(r"(?:srun .*?)?(?:\w+=\S+ )*(?:\.venv/bin/)?lingua-flax (.*)", part)
                words = shlex.split(re.sub(r" (2?>|<) ?\S+", "", command[1]), comments=True) if command else []
                if words and words[0] in PROGRAMS and not {"--help", "--version", "[OPTION"} & set(words):
                    result.append(words)
    return result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with the configs of the repository and a workdir."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "workdir").mkdir()
    (tmp_path / "theirs.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_workdir(command: list[str]) -> list[str]:
    """Returns the command with "workdir" as the workdir, and for compare, copies of it as all of them."""
    if command[0] == "compare":
        return [re.sub("^checkpoints/", "copies/", word) for word in command]
    has_one = "--workdir" in command and command[0] != "import"  # which makes it
    at = command.index("--workdir") + 1 if has_one else len(command)
    return ["workdir" if index == at else word for index, word in enumerate(command)]


def check_options(program: str, argv: list[str]) -> None:
    """Raises UserError unless the options of a command are valid."""
    module, command = PROGRAMS[program], cast(Any, generate_reference.command_class(program))
    own = getattr(module, "resolve_config", None) or getattr(module, "read_options", None)
    (own or command.read)(argv)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_configs_are_valid_and_links_lead_to_files(page, folder):
    """Options that need a model with tags are accepted, since the workdir's config has them."""
    for kind, text in blocks(page):
        if kind == "toml":
            tomllib.loads(text)
            name = re.match(r"# ([\w/]+\.toml)\n", text)
            path = folder / (name[1] if name else "block.toml")
            path.write_text(text, encoding="utf-8")
            read_section(path, CleaningOptions if path.name == "rules.toml" else Config)
    saved = folder / "workdir" / "config.toml"
    config = to_toml(read_config(folder / "configs" / "multi30k_en_de_fr.toml"))
    for program, *argv in map(in_workdir, commands(page)):
        if program == "verify-resume" or (program == "train" and "--config" in argv):
            check_options(program, argv)
        else:
            saved.write_text(config, encoding="utf-8")
            for copy in [word for word in argv if word.startswith("copies/")]:
                shutil.copytree(folder / "workdir", folder / copy, dirs_exist_ok=True)
            check_options(program, argv)
            saved.unlink()
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text("utf-8")):
        places = [(ROOT / page).parent / (link + suffix) for suffix in ("", ".md", ".ipynb")]
        assert link.startswith("https://") or any(place.exists() for place in places), link


def with_python() -> list[Any]:
    """Returns the pages with Python code; that of one is much the same as in docs/reference/python.md."""
    pages: list[Any] = [page for page in PAGES if any(kind == "python" for kind, _ in blocks(page))]
    return [pytest.param(page, marks=pytest.mark.slow) if page == "docs/guides/training.md" else page for page in pages]


@pytest.mark.parametrize("page", with_python())
def test_python_code_runs(page, trained, toy, folder):
    """A toy network stands in for the phrasebook's, and a toy corpus for that of configs/tiny.toml."""
    (folder / "checkpoints").mkdir()
    for name in ("tiny", "phrasebook"):
        (folder / "checkpoints" / name).symlink_to(trained[0])
    config = toy.read_text(encoding="utf-8").replace("warmup_steps = 30", "warmup_steps = 5")
    (folder / "configs" / "tiny.toml").write_text(config, encoding="utf-8")
    for kind, text in blocks(page):
        if kind == "python":
            exec(compile(text, page, "exec"), {})


def test_every_program_is_shown():
    assert {words[0] for page in PAGES for words in commands(page)} == set(PROGRAMS)


@pytest.mark.parametrize("builder", ["dummy", pytest.param("html", marks=pytest.mark.slow)])
def test_site_builds_without_warnings(tmp_path, builder):
    """The builder dummy reads all pages and resolves their links, but writes nothing."""
    options = ["--builder", builder, "--fail-on-warning", "--keep-going", "-q", "-d", tmp_path / "cache"]
    command = [sys.executable, "-m", "sphinx", *options, DOCS, tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists() == (builder == "html")


# The reference of options.


def test_reference_has_every_option():
    page = "\n".join(generate_reference.options_page())
    names = re.findall(r"^### (\S+)$", page, re.MULTILINE)
    for section, options in Config():
        for name, value in options:
            prefix = f"{section}.{name}"
            assert prefix in names or isinstance(value, tuple | Section), prefix
    assert {"data.mixture.weight", "devices.mesh.data"} <= set(names)
    assert len(names) == len(set(names)) > 70
    changeable = re.findall(r"^##+ (\S+)\n(?:\n[^#\n]+\n)?\n.* may change when a run is resumed\.$", page, re.MULTILINE)
    assert {"training.num_steps", "`[devices]`"} <= set(changeable)
    assert "training.seed" not in changeable


def test_reference_has_every_option_of_every_command():
    """Compares with what --help lists; the options of a config are in the other reference."""
    page = "\n".join(generate_reference.commands_page())
    for program in PROGRAMS:
        section = page.split(f"\n## lingua-flax {program}\n")[1].split("\n## ")[0]
        listed = set(re.findall(r"^  (?:-h, )?(--[\w-]+)", run_here(program, "--help").stdout, re.MULTILINE))
        assert len(listed) > 5
        for option in listed - {"--help", "--version"}:
            assert re.search(rf"- `{option}`[ :]|`{option}\.\*`", section), (program, option)


def test_every_promise_names_existing_tests():
    page = (DOCS / "understanding" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| (`test_\w+::.+`) \|$", page, re.MULTILINE)
    assert len(rows) > 10
    for promise, tests in rows:
        for name in re.findall(r"`(.+?)`", tests):
            file, _, test = name.partition("::")
            (path,) = (ROOT / "tests").rglob(f"{file}.py")
            assert f"\ndef {test}(" in path.read_text("utf-8"), (promise, name)


# Formats.


def keys_of(heading: str) -> list[set[str]]:
    """Returns the keys in each table of a section of reference/formats.md."""
    text = (DOCS / "reference" / "formats.md").read_text("utf-8")
    section = re.split(r"^#", re.split(rf"^#+ {re.escape(heading)}$", text, flags=re.M)[1], flags=re.M)[0]
    tables = re.findall(r"^\| key \|.*\n\|.*\n((?:\|.*\n)+)", section, re.M)
    return [set(re.findall(r"^\| `([\w.]+)`", table, re.M)) for table in tables]


def keys_in(file: Path) -> list[set[str]]:
    """Returns the keys of each JSON object in a file, one on a line or a single one."""
    text = file.read_text("utf-8")
    return [set(json.loads(each)) for each in (text.splitlines() if file.suffix == ".jsonl" else [text])]


def test_formats_have_all_keys(trained, run, tmp_path):
    steps, validations = keys_of("metrics.jsonl")
    lines = keys_in(trained[0] / "metrics.jsonl")
    assert set().union(*(keys for keys in lines if "loss" in keys)) == steps
    assert set().union(*(keys for keys in lines if "validation_loss" in keys)) == validations

    # tests/training/test_device_memory.py compares these with what is written.
    assert keys_of("`lingua-flax train --dry-run --json FILE`") == [JSON_KEYS]

    file = tmp_path / "scores.json"
    scores, log_probabilities = keys_of("`lingua-flax evaluate --json FILE`")
    found = set()
    sampled = ["--output", tmp_path / "o.txt", "--ter", "--temperature", 1, "--top-k", 2]
    for options in (sampled, ["--beam-size", 1]):
        command = ("evaluate", "--workdir", trained[0], "--devices.padding", "longest", "--json", file)
        assert run(*command, *options).returncode == 0
        found |= keys_in(file)[0]
    assert found <= scores
    # Keys that this network or split does not have are at least written somewhere in the code.
    folders = (ROOT / "lingua_flax" / name for name in ("evaluation", "commands"))
    code = "".join(path.read_text("utf-8") for folder in folders for path in folder.glob("*.py"))
    assert not [key for key in scores - found if key not in code]
    assert run("evaluate", "--workdir", trained[0], "--score", "--json", file).returncode == 0
    assert keys_in(file) == [log_probabilities]


# Error messages.


def _pattern(node: Any) -> str:
    """Returns a regular expression for a string, an f-string or a format of the log; any value may be filled in."""
    if isinstance(node, ast.Constant):
        return re.sub(r"%[\d,.]*[sdgf]", ".+?", re.escape(str(node.value)))
    return "".join(_pattern(part) if isinstance(part, ast.Constant) else ".+?" for part in node.values)


def test_troubleshooting_quotes_messages_of_the_code():
    patterns = set()
    for path in itertools.chain(*(ROOT.glob(f"{name}/**/*.py") for name in ("data", "lingua_flax", "model"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and type(node.value) is str):
                patterns.add(_pattern(node))
    messages = [re.compile(pattern, re.DOTALL) for pattern in patterns if len(re.findall(r"\w", pattern)) >= 12]
    quoted = "".join(text for kind, text in blocks("docs/guides/troubleshooting.md") if kind == "text").splitlines()
    assert len(quoted) > 12
    for line in quoted:
        assert any(message.search(line) for message in messages), line


# Outputs.


def test_outputs_are_renewed_in_place(tmp_path):
    command = "$ printf 'one\\ntwo\\nthree\\nfour\\n'\n"
    page = f"Text\n```console\n{command}old\n...\nolder\n$ echo \\\n  again\nold\n```\n$ text\n"
    expected = f"Text\n```console\n{command}one\n...\nfour\n$ echo \\\n  again\nagain\n```\n$ text\n"
    assert renew_outputs.renew(page, tmp_path) == expected


def test_outputs_are_renewed_on_every_page_that_has_some():
    shown = {Path(page).stem for page in PAGES if any(kind == "console" for kind, _ in blocks(page))}
    assert shown - {"README"} == set(renew_outputs.PAGES)
    results = renew_outputs.RESULTS.read_text("utf-8")
    assert re.search(r"`make docs-outputs` \| x \| y \| +\|$", renew_outputs.ORIGIN.sub("x | y", results), re.MULTILINE)
