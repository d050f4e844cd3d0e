"""The package, as pip installs it: from a wheel, from Git, and from copies of the repository without links."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.conftest import HUNG_AFTER, ROOT

LINKS = {"model", "data", "configs"}
SMALL = """
    --training.num-steps 50 --training.tokens-per-batch 256 --training.eval-every 0 --tokenizer.vocab-size 500
    --model.num-encoder-layers 1 --model.num-decoder-layers 1 --model.embed-dim 16 --model.num-heads 2
    --model.mlp-dim 32
"""


def check(command, **options) -> str:
    """Runs a command that must succeed, and returns what it prints."""
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_AFTER, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Environment:
    """A virtual environment that finds the dependencies in the one of the tests, but not the project."""

    def __init__(self, folder: Path):
        check([sys.executable, "-m", "venv", "--without-pip", folder])
        self.bin = folder / "bin"
        (packages,) = folder.glob("lib/*/site-packages")
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # its own .pth files are not read

    def install(self, *what: object) -> None:
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--force-reinstall"]
        check([sys.executable, "-m", "pip", "--python", self.bin / "python", "install", *options, *what])

    def run(self, script: str, folder: Path) -> str:
        """Runs a script as a program of the user's in this folder, and returns what it prints."""
        return check([self.bin / "python", shutil.copy(ROOT / "tests" / "scripts" / script, folder)], cwd=folder)


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> dict[str, Path]:
    """Returns two copies of the repository: a clone, and one without links, as in a ZIP file."""
    folder = tmp_path_factory.mktemp("copies")
    files = check(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT).splitlines()
    for name in ("linked", "plain"):
        for file in files:
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / file).exists() and (name == "linked" or not (ROOT / file).is_symlink()):
                shutil.copy(ROOT / file, path, follow_symlinks=False)
    commit = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org", "commit", "--quiet", "-m", "Copy"]
    for command in (["git", "init", "--quiet"], ["git", "add", "."], commit):
        check(command, cwd=folder / "linked")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def wheels(copies, tmp_path_factory) -> dict[str, Path]:
    """Returns a wheel built from each of the copies, and from a source distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    build = f"import setuptools.build_meta; setuptools.build_meta.build_sdist({str(folder)!r})"
    check([sys.executable, "-c", build], cwd=copies["linked"])
    (archive,) = folder.glob("*.tar.gz")
    result = {}
    for name, source in {**copies, "sdist": archive}.items():
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / name]
        check([sys.executable, "-m", "pip", "wheel", *options, source])
        (result[name],) = (folder / name).glob("*.whl")
    return result


@pytest.fixture
def folder(tmp_path) -> Path:
    """Returns a folder with packages data and model of the user's own."""
    for name in ("data", "model"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "__init__.py").write_text("mine = True\n")
    return tmp_path / "mine"


def test_links_lead_to_the_folders():
    links = {path.name: os.readlink(path) for path in (ROOT / "lingua_flax").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in LINKS}


def test_packages_are_listed():
    """Every folder with modules is a package that is built, and nothing else is."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    top = [ROOT / "lingua_flax", *(ROOT / "lingua_flax" / name for name in LINKS)]
    folders = {path.parent.relative_to(ROOT) for folder in top for path in folder.rglob("*.py")}
    assert listed == sorted(".".join(folder.parts) for folder in folders)


def test_wheels_have_all_files_with_and_without_links(wheels):
    contents = []
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            contents.append({entry.filename: entry.CRC for entry in archive.infolist()})
    assert contents[0] == contents[1] == contents[2]
    tracked = check(["git", "ls-files", "lingua_flax", *LINKS], cwd=ROOT).splitlines()
    wanted = {f"lingua_flax/{file.removeprefix('lingua_flax/')}" for file in tracked if not (ROOT / file).is_symlink()}
    not_packed = {file for file in wanted - set(contents[0]) if not file.endswith((".md", "deno.json"))}
    assert not not_packed, "new kinds of files need a pattern in package-data of pyproject.toml"


def test_wheel_works_beside_folders_of_the_same_names(wheels, folder, tmp_path):
    environment = Environment(tmp_path / "environment")
    environment.install(wheels["plain"])
    program = environment.bin / "lingua-flax"
    check([program, "train", "--config", "tiny", "--workdir", "w", *SMALL.split()], cwd=folder)
    assert check([program, "translate", "--workdir", "w"], cwd=folder, input="I swam.\n").count("\n") == 1
    place, _ = environment.run("use_as_library.py", folder).splitlines()
    assert Path(place).is_relative_to(tmp_path / "environment")
    source = f"lingua-flax[serve] @ {wheels['plain'].as_uri()}"
    assert environment.run("check_layout.py", tmp_path) == f"pip install '{source}'\n"


def test_git_and_editable_installations_have_the_same_layout(copies, tmp_path):
    environment = Environment(tmp_path / "environment")
    environment.install(f"git+{copies['linked'].as_uri()}")
    commands = {environment.run("check_layout.py", tmp_path)}
    for copy in copies.values():
        environment.install("--editable", copy)
        commands.add(environment.run("check_layout.py", tmp_path))
    for command in commands:
        environment.install("--dry-run", *shlex.split(command)[2:])
    assert commands == {
        f"pip install 'lingua-flax[serve] @ git+file://localhost{copies['linked']}'\n",
        *(f"pip install -e '{copy}[serve]'\n" for copy in copies.values()),
    }


def test_checkout_that_is_neither_installed_nor_has_links_says_so(copies, tmp_path):
    python = Environment(tmp_path / "environment").bin / "python"
    for start in (["train.py"], ["-m", "lingua_flax"]):
        done = subprocess.run([python, *start], cwd=copies["plain"], capture_output=True, text=True)
        assert done.returncode == 2
        remedy = f"pip install -e {copies['plain']}"
        assert done.stderr == f"error: lingua_flax.model is missing, since this is not installed: {remedy}\n"


def is_left_out(path: str) -> bool:
    """Returns whether Docker leaves a path out of an image, by the last pattern that matches it or a folder of it."""
    parts, left_out = path.split("/"), False
    for pattern in (ROOT / ".dockerignore").read_text().split():
        wanted = pattern.removeprefix("!").removeprefix("**/").split("/")
        starts = range(len(parts)) if "**/" in pattern else (0,)
        if any(all(map(fnmatchcase, parts[i:], wanted)) and len(parts) >= i + len(wanted) for i in starts):
            left_out = not pattern.startswith("!")
    return left_out


def test_images_have_the_source_and_the_shipped_network_and_nothing_that_a_clone_collects():
    tracked = check(["git", "ls-files"], cwd=ROOT).splitlines()
    unwanted = [
        ".git/HEAD",
        "builds/en-de/student/config.toml",
        "checkpoints/tiny/config.toml",
        "model/__pycache__/a.pyc",
    ]
    unwanted += [line.replace("*", "x") + "/file" for line in (ROOT / ".gitignore").read_text().split()]
    assert [path for path in unwanted if not is_left_out(path)] == []
    tops = (".ci/", ".github/", "checkpoints/")
    assert [path for path in tracked if is_left_out(path) and not path.startswith(tops)] == []
    assert not is_left_out("checkpoints/phrasebook/checkpoints/2200/params/d/0123")
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert not any(map(is_left_out, " ".join(copied).split()))


def test_dependencies_of_the_image_are_those_of_the_package():
    """The Dockerfile lists them without building the package, in a layer of their own."""
    code = re.search(r'python -c "(.*?)"', (ROOT / "Dockerfile").read_text(), re.DOTALL)[1]
    listed = check([sys.executable, "-c", code.replace("\\\n", "").replace("/build/", "")], cwd=ROOT).splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ("serve", "export"):
        for entry in project["optional-dependencies"][extra]:
            own = re.match(r"lingua-flax\[(\w+)\]", entry)
            assert set(project["optional-dependencies"][own[1]] if own else [entry]) <= set(listed)
    assert set(project["dependencies"]) <= set(listed)
    assert not any(entry.startswith("lingua-flax") for entry in listed)


def test_the_address_of_the_repository_is_the_same_everywhere():
    """It is that of pyproject.toml, also in links to Colab; nothing is left for the reader to fill in."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    mentions = {}
    for name in check(["git", "ls-files", "*.md", "*.cff", "*.ipynb", "*.py", "*.toml", "*.yml"], cwd=ROOT).split():
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.findall(r"(?:colab\.research\.google\.com/github|github\.com)/([\w.-]+/lingua-flax)\b", text)
        assert {f"https://github.com/{mention}" for mention in found} <= {address}, name
        assert not re.search(r"\bOWNER\b|git\+REPOSITORY", text) or name == "tests/test_package.py", name
        mentions[name] = len(found)
    assert min(mentions[name] for name in ("README.md", "CITATION.cff", "notebooks/colab_tpu.ipynb")) > 0
