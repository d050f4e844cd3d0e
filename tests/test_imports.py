"""Imports run one way: each package may use those named here, and nothing else of ours."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "host": set(),
    "options": {"host"},
    "devices": {"host", "options"},
    "runs": {"devices", "host", "options"},
    "data": {"host", "options"},
    "model": {"options"},
    "translation": {"data", "devices", "host", "model", "options", "runs"},
    "evaluation": {"data", "host", "options", "translation"},
    "training": {"data", "devices", "evaluation", "host", "model", "options", "runs", "translation"},
    "reports": {"data", "devices", "host", "model", "options", "runs", "training"},
    "verification": {"host", "options", "runs"},
    "commands": {"data", "devices", "evaluation", "host", "options", "reports", "runs", "training", "translation",
                 "verification"},
    "train.py": {"commands", "host"},
    "evaluate.py": {"commands", "host"},
    "translate.py": {"commands", "host"},
    "verify_resume.py": {"commands", "host"},
    "docs": {"data", "evaluation", "host", "model", "options", "translation"},
    "notebooks": set(),
}  # fmt: skip
COMMANDS = {  # what each command must not import, directly
    "commands/evaluate.py": {"training", "reports", "verification"},
    "commands/translate.py": {"training", "reports", "verification", "evaluation"},
}
OURS = {place.split("/")[0] for place in ALLOWED}


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_run_one_way(place):
    files = [ROOT / place] if place.endswith(".py") else list((ROOT / place).rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            ours = {name.split(".")[0] for name in names} & OURS
            assert ours <= ALLOWED[place] | {place}, f"{file} line {node.lineno} imports {ours}"


def test_nothing_that_is_read_can_run():
    """No module of the project unpickles or evaluates anything."""
    for place in ALLOWED:
        for file in [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not names & {"eval", "exec", "pickle", "marshal", "dill", "shelve", "allow_pickle"}, file
