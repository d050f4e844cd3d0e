"""Imports go in one direction: each package imports only the packages that are listed for it here, and no module
imports another one that imports it, wherever the imports stand: in functions, and for types only, too."""

import ast
import functools
import graphlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lingua_flax"
ALLOWED = {
    "configs": set(),
    "host": set(),
    "options": {"host"},
    "page": set(),
    "devices": {"host", "options"},
    "runs": {"data", "devices", "host", "options"},
    "data": {"host", "options"},
    "model": {"options"},
    "documents": {"data", "host", "options", "translation"},
    "translation": {"data", "devices", "host", "model", "options", "runs"},
    "inspection": {"data", "devices", "host", "model", "options", "page", "runs", "translation"},
    "evaluation": {"data", "host", "options", "translation"},
    "export": {"data", "host", "inspection", "model", "options", "page", "runs", "translation"},
    "importing": {"data", "export", "host", "model", "options", "runs", "translation"},
    "serving": {"data", "documents", "export", "host", "inspection", "model", "options", "page", "runs", "translation"},
    "training": {"data", "devices", "evaluation", "host", "model", "options", "runs", "translation"},
    "commands": {"data", "devices", "documents", "evaluation", "export", "host", "importing", "inspection", "options"}
    | {"runs", "serving", "training", "translation"},
    "__init__": {"commands", "host", "options", "translation"},
    "__main__": {"commands", "host"},
}
NOT_IMPORTED = {  # by a single file, although its package may
    "commands/compare.py": {"training", "inspection", "export", "serving"},
    "commands/distill.py": {"training", "inspection", "evaluation", "export", "serving"},
    "commands/evaluate.py": {"training", "inspection", "export", "serving"},
    "commands/export.py": {"training", "evaluation", "serving"},
    "commands/import_.py": {"training", "inspection", "evaluation", "serving"},
    "commands/serve.py": {"training", "evaluation"},
    "commands/translate.py": {"training", "evaluation", "export", "serving"},
    # Copied into exported folders, where nothing of this repository is.
    "export/numpy_translator.py": set(ALLOWED),
}


@functools.cache
def sources() -> dict[str, str]:
    """Returns the text of each module of the package by its full name."""
    folders = [path for path in PACKAGE.iterdir() if path.is_dir()]  # some are links
    files = [*PACKAGE.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    names = (".".join(("lingua_flax", *file.relative_to(PACKAGE).with_suffix("").parts)) for file in files)
    return {name.removesuffix(".__init__"): file.read_text("utf-8") for name, file in zip(names, files, strict=True)}


@functools.cache
def nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def imported_names(text: str) -> Iterator[str]:
    """Yields the full name of each module that is imported, or of what is imported from it."""
    for node in nodes_of(text):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative name: {ast.unparse(node)}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Returns for each module those of the package that it imports.

    With a module, Python imports the packages around it, unless the importing module is in them, too.
    """
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, text in modules.items():
        for name in imported_names(text):
            is_around = False
            while name:
                if name in modules and not (is_around and f"{module}.".startswith(f"{name}.")):
                    graph[module].add(name)
                    is_around = True
                name = name.rpartition(".")[0]
    return graph


def place_of(module: str) -> str:
    """Returns the name by which the table above has a module, most often that of its package."""
    return f"{module}.__init__".split(".")[1]


def forbidden(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Returns the modules that import what the tables above do not allow, and what they import."""
    found = []
    for module, imported in graph.items():
        file = f"{module.removeprefix('lingua_flax.').replace('.', '/')}.py"
        allowed = (ALLOWED[place_of(module)] | {place_of(module)}) - NOT_IMPORTED.get(file, set())
        found += [(module, name) for name in imported if place_of(name) not in allowed]
    return found


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns modules or packages each of which is imported by the next one, the first of them again at the end."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_imports_go_in_one_direction():
    graph = imports_of(sources())
    assert {place_of(module) for module in graph} == set(ALLOWED)
    assert not forbidden(graph)
    assert not circle_in(graph)
    assert not circle_in(ALLOWED)


@pytest.mark.parametrize(
    ("module", "line", "imported"),
    [
        ("model.masks", "if TYPE_CHECKING: from lingua_flax.data import batch", "data.batch"),
        ("training.step", "def late(): from lingua_flax.commands.train import train", "commands.train"),
        ("commands.serve", "import lingua_flax.training.step as step", "training.step"),
    ],
)
def test_planted_arrow_up_is_found(module, line, imported):
    graph = imports_of(sources() | {f"lingua_flax.{module}": line})
    assert (f"lingua_flax.{module}", f"lingua_flax.{imported}") in forbidden(graph)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("host.errors", "from lingua_flax.host.files import check_writable"),
        ("runs.metrics", "if TYPE_CHECKING: import lingua_flax.runs.workdir"),
        ("translation.search", "def late(): from lingua_flax.translation.translator import Translator"),
        ("data.corpora.corpus", "from lingua_flax.data import corpora"),
        ("data.text_files", "from lingua_flax.data.corpora.corpus import Pair"),  # through the package around it
        ("options.schema", "from lingua_flax import Config"),
    ],
)
def test_planted_circle_is_found(module, line):
    name = f"lingua_flax.{module}"
    assert name in circle_in(imports_of(sources() | {name: f"{line}\n{sources()[name]}"}))
    assert {"host", "model"} < set(circle_in(ALLOWED | {"host": {"model"}}))


def test_imports_name_the_package():
    """Otherwise `import data` finds our folder or the user's, depending on the current directory."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"benchmarks", "docs", "notebooks", "tests"}
    bare = (folders | set(ALLOWED)) - {"lingua_flax"}
    for file in [path for path in ROOT.rglob("*.py") if not path.relative_to(ROOT).parts[0].startswith(".")]:
        for name in imported_names(file.read_text("utf-8")):
            assert name.split(".")[0] not in bare, f"{file} imports {name}"


def test_no_module_unpickles_or_evaluates_anything():
    """So nothing that the project reads can run code."""
    for module, text in sources().items():
        names = {getattr(node, field, "") for node in nodes_of(text) for field in ("id", "attr", "arg")}
        names.update(part for name in imported_names(text) for part in name.split("."))
        assert not names & {"eval", "exec", "pickle", "marshal", "dill", "shelve", "allow_pickle"}, module
