"""Imports go in one direction: each package imports only the packages of the project that are listed for it here."""

import ast
import functools
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
    "exporting": {"data", "host", "model", "options", "translation"},
    "serving": {"data", "exporting", "host", "model", "options", "runs", "translation"},
    "training": {"data", "devices", "evaluation", "host", "model", "options", "runs", "translation"},
    "reports": {"data", "devices", "host", "model", "options", "runs", "training"},
    "verification": {"host", "options", "runs"},
    "commands": {"data", "devices", "evaluation", "exporting", "host", "options", "reports", "runs", "serving",
                 "training", "translation", "verification"},
    "train.py": {"commands", "host"},
    "distill.py": {"commands", "host"},
    "evaluate.py": {"commands", "host"},
    "export.py": {"commands", "host"},
    "serve.py": {"commands", "host"},
    "translate.py": {"commands", "host"},
    "verify_resume.py": {"commands", "host"},
    "docs": {"host", "notebooks", "options"},
    "notebooks": set(),
}  # fmt: skip
PACKAGES = {place.split("/")[0] for place in ALLOWED}
NOT_IMPORTED = {  # by a single file, although its package may
    "commands/distill.py": {"training", "reports", "verification", "evaluation", "exporting", "serving"},
    "commands/evaluate.py": {"training", "reports", "verification", "exporting", "serving"},
    "commands/export.py": {"training", "reports", "verification", "evaluation", "serving"},
    "commands/serve.py": {"training", "reports", "verification", "evaluation"},
    "commands/translate.py": {"training", "reports", "verification", "evaluation", "exporting", "serving"},
    # Copied into exported folders, where nothing of this repository is.
    "exporting/numpy_translator.py": PACKAGES,
    "exporting/stablehlo_loader.py": PACKAGES,
}


@functools.cache
def modules_of(place):
    """Returns the syntax tree of each module of a package, or of a single file, by path."""
    files = [ROOT / place] if place.endswith(".py") else list((ROOT / place).rglob("*.py"))
    assert files
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_go_in_one_direction(place):
    for file, tree in modules_of(place).items():
        allowed = (ALLOWED[place] | {place}) - NOT_IMPORTED.get(str(file.relative_to(ROOT)), set())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported = {name.split(".")[0] for name in names} & PACKAGES
            assert imported <= allowed, f"{file} line {node.lineno} imports {imported}"


def test_no_module_unpickles_or_evaluates_anything():
    """So nothing that the project reads can run code."""
    for place in ALLOWED:
        for file, tree in modules_of(place).items():
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not names & {"eval", "exec", "pickle", "marshal", "dill", "shelve", "allow_pickle"}, file
