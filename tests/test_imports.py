"""Imports go in one direction: each package imports only the packages of the project that are listed for it here."""

import ast
import functools
import itertools
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lingua_flax"
ALLOWED = {
    "host": set(),
    "options": {"host"},
    "page": set(),
    "devices": {"host", "options"},
    "runs": {"data", "devices", "host", "options"},
    "data": {"host", "options"},
    "model": {"options"},
    "translation": {"data", "devices", "host", "model", "options", "runs"},
    "inspection": {"data", "devices", "host", "model", "options", "page", "runs", "translation"},
    "evaluation": {"data", "host", "options", "translation"},
    "export": {"data", "host", "inspection", "model", "options", "page", "runs", "translation"},
    "serving": {"data", "export", "host", "inspection", "model", "options", "page", "runs", "translation"},
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


FILES = {
    place: [PACKAGE / place] if place.endswith(".py") else list((PACKAGE / place).rglob("*.py")) for place in ALLOWED
}


@functools.cache
def nodes_of(file):
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imported_modules(file):
    """Yields the line and the full name of each module that is imported; names taken from the package are modules."""
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} line {node.lineno} imports by a relative name"
            whole = node.module == "lingua_flax"
            yield from ((node.lineno, f"lingua_flax.{alias.name}" if whole else node.module) for alias in node.names)


def test_imports_go_in_one_direction():
    for place, files in FILES.items():
        assert files, place
        for file in files:
            allowed = (ALLOWED[place] | {place}) - NOT_IMPORTED.get(str(file.relative_to(PACKAGE)), set())
            for line, module in imported_modules(file):
                package, *rest = module.split(".")
                if package == "lingua_flax" and rest[0] in ALLOWED:
                    assert rest[0] in allowed, f"{file} line {line} imports {module}"


def test_imports_name_the_package():
    """Otherwise `import data` finds our folder or the user's, depending on the current directory."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"benchmarks", "docs", "notebooks", "tests"}
    bare = (folders | set(ALLOWED)) - {"lingua_flax"}
    for file in [path for path in ROOT.rglob("*.py") if not path.relative_to(ROOT).parts[0].startswith(".")]:
        for line, module in imported_modules(file):
            assert module.split(".")[0] not in bare, f"{file} line {line} imports {module}"


def test_no_module_unpickles_or_evaluates_anything():
    """So nothing that the project reads can run code."""
    for file in itertools.chain(*FILES.values()):
        names = {getattr(node, field, "") for node in nodes_of(file) for field in ("id", "attr", "arg")}
        names |= {module for _, module in imported_modules(file)}
        assert not names & {"eval", "exec", "pickle", "marshal", "dill", "shelve", "allow_pickle"}, file
