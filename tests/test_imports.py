"""Imports go in one direction: each package imports only the packages of the project that are listed for it here."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lingua_flax"
ALLOWED = {
    "host": set(),
    "options": {"host"},
    "devices": {"host", "options"},
    "runs": {"devices", "host", "options"},
    "data": {"host", "options"},
    "model": {"options"},
    "translation": {"data", "devices", "host", "model", "options", "runs"},
    "inspection": {"data", "devices", "host", "model", "options", "runs", "translation"},
    "evaluation": {"data", "host", "options", "translation"},
    "export": {"data", "host", "inspection", "model", "options", "runs", "translation"},
    "serving": {"data", "export", "host", "inspection", "model", "options", "runs", "translation"},
    "training": {"data", "devices", "evaluation", "host", "model", "options", "runs", "translation"},
    "commands": {"data", "devices", "evaluation", "export", "host", "inspection", "options", "runs", "serving"}
    | {"training", "translation"},
    "__init__.py": {"commands", "host", "options", "translation"},
    "__main__.py": {"commands", "host"},
}
NOT_IMPORTED = {  # by a single file, although its package may
    "commands/compare.py": {"training", "inspection", "export", "serving"},
    "commands/distill.py": {"training", "inspection", "evaluation", "export", "serving"},
    "commands/evaluate.py": {"training", "inspection", "export", "serving"},
    "commands/export.py": {"training", "evaluation", "serving"},
    "commands/serve.py": {"training", "evaluation"},
    "commands/translate.py": {"training", "evaluation", "export", "serving"},
    # Copied into exported folders, where nothing of this repository is.
    "export/numpy_translator.py": set(ALLOWED),
}


def modules_of(place):
    """Returns the syntax tree of each module of a part of the package, by path."""
    files = [PACKAGE / place] if place.endswith(".py") else sorted((PACKAGE / place).rglob("*.py"))
    assert files
    return {file: parsed(file) for file in files}


@functools.cache
def parsed(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def imported_modules(tree):
    """Yields the line and the full name of each module that is imported; names taken from the package are modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno} imports by a relative name"
            whole = node.module == "lingua_flax"
            yield from ((node.lineno, f"lingua_flax.{alias.name}" if whole else node.module) for alias in node.names)


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_go_in_one_direction(place):
    for file, tree in modules_of(place).items():
        allowed = (ALLOWED[place] | {place}) - NOT_IMPORTED.get(str(file.relative_to(PACKAGE)), set())
        for line, module in imported_modules(tree):
            package, *rest = module.split(".")
            if package == "lingua_flax" and rest[0] in ALLOWED:
                assert rest[0] in allowed, f"{file} line {line} imports {module}"


def test_imports_name_the_package():
    """Otherwise `import data` finds our folder or the user's, depending on the current directory."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"benchmarks", "docs", "notebooks", "tests"}
    bare = (folders | set(ALLOWED)) - {"lingua_flax"}
    for file in [path for path in ROOT.rglob("*.py") if not path.relative_to(ROOT).parts[0].startswith(".")]:
        for line, module in imported_modules(parsed(file)):
            assert module.split(".")[0] not in bare, f"{file} line {line} imports {module}"


def test_no_module_unpickles_or_evaluates_anything():
    """So nothing that the project reads can run code."""
    for place in ALLOWED:
        for file, tree in modules_of(place).items():
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not names & {"eval", "exec", "pickle", "marshal", "dill", "shelve", "allow_pickle"}, file
