"""Imports run one way: each package may use those named here, and nothing else of ours."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "configs": set(),
    "data": {"configs"},
    "model": {"configs"},
    "runtime": {"configs"},
    "translation": {"configs", "data", "model", "runtime"},
    "training": {"configs", "data", "model", "runtime", "translation"},
    "verification": {"configs", "runtime"},
    "verify_resume.py": {"configs", "runtime", "verification"},
    "train.py": {"configs", "runtime", "training"},
    "evaluate.py": {"configs", "data", "runtime", "translation"},
    "translate.py": {"configs", "data", "runtime", "translation"},
    "docs": {"configs", "data", "model", "runtime", "translation"},
    "notebooks": set(),
}


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_run_one_way(place):
    files = [ROOT / place] if place.endswith(".py") else list((ROOT / place).rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            ours = {name.split(".")[0] for name in names} & set(ALLOWED)
            assert ours <= ALLOWED[place] | {place}, f"{file} line {node.lineno} imports {ours}"
