"""The package, as pip installs it: from a wheel, from Git, and from copies of the repository without links."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import HUNG_AFTER, ROOT
from tests.helpers.repository import copy_repository

LINKS = {"model", "data", "configs"}


def check(command, **options) -> str:
    """Runs a command that must succeed, and returns what it prints."""
    command = [str(part) for part in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_AFTER, env=environment, **options)
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
        """Runs a script as a program of the user's in this folder."""
        return check([self.bin / "python", shutil.copy(ROOT / "tests" / "scripts" / script, folder)], cwd=folder)


def build_wheel(source: Path, folder: Path) -> Path:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    check([sys.executable, "-m", "pip", "wheel", *options, source])
    (wheel,) = folder.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def test_links_lead_to_the_folders_and_packages_are_listed():
    """Every folder with modules is a package that is built, and nothing else is."""
    links = {path.name: os.readlink(path) for path in (ROOT / "lingua_flax").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in LINKS}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    top = [ROOT / "lingua_flax", *(ROOT / "lingua_flax" / name for name in LINKS)]
    folders = {path.parent.relative_to(ROOT) for folder in top for path in folder.rglob("*.py")}
    assert listed == sorted(".".join(folder.parts) for folder in folders)


def test_copy_without_links_says_so_and_its_wheel_is_complete_and_works(tmp_path):
    """Beside packages data and model of the user's own, too."""
    copy = copy_repository(tmp_path / "copy", links=False)
    environment = Environment(tmp_path / "environment")
    for start in (["train.py"], ["-m", "lingua_flax"]):
        done = subprocess.run([environment.bin / "python", "-E", *start], cwd=copy, capture_output=True, text=True)
        message = f"error: lingua_flax.model is missing, since this is not installed: pip install -e {copy}\n"
        assert (done.returncode, done.stderr) == (2, message)

    wheel = build_wheel(copy, tmp_path)
    tracked = check(["git", "ls-files", "lingua_flax", *LINKS], cwd=ROOT).splitlines()
    wanted = {f"lingua_flax/{file.removeprefix('lingua_flax/')}" for file in tracked if not (ROOT / file).is_symlink()}
    not_packed = {file for file in wanted - set(contents(wheel)) if not file.endswith((".md", "deno.json"))}
    assert not not_packed, "new kinds of files need a pattern in package-data of pyproject.toml"

    environment.install(wheel)
    assert check([environment.bin / "lingua-flax", "--version"]).startswith("lingua-flax ")
    source = f"lingua-flax[serve] @ {wheel.as_uri()}"
    assert environment.run("check_layout.py", tmp_path) == f"pip install '{source}'\n"
    mine = tmp_path / "mine"
    for name in ("data", "model"):
        (mine / name).mkdir(parents=True)
        (mine / name / "__init__.py").write_text("mine = True\n")
    (mine / "w").symlink_to(ROOT / "checkpoints" / "phrasebook")
    place, translation = environment.run("use_as_library.py", mine).splitlines()
    assert Path(place).is_relative_to(tmp_path / "environment")
    assert translation == "J'ai traversé la rivière."


@pytest.mark.slow
def test_git_editable_and_source_installations_are_the_same(tmp_path):
    linked, plain = (copy_repository(tmp_path / name, links=name == "linked") for name in ("linked", "plain"))
    commit = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org", "commit", "--quiet", "-m", "Copy"]
    for git in (["git", "init", "--quiet"], ["git", "add", "."], commit):
        check(git, cwd=linked)
    build = f"import setuptools.build_meta; setuptools.build_meta.build_sdist({str(tmp_path)!r})"
    check([sys.executable, "-c", build], cwd=linked)
    sources = [linked, plain, *tmp_path.glob("*.tar.gz")]
    wheels = [contents(build_wheel(source, tmp_path / f"wheel-{n}")) for n, source in enumerate(sources)]
    assert wheels[0] == wheels[1] == wheels[2]

    environment = Environment(tmp_path / "environment")
    for source, command in (
        ([f"git+{linked.as_uri()}"], f"pip install 'lingua-flax[serve] @ git+file://localhost{linked}'\n"),
        (["--editable", linked], f"pip install -e '{linked}[serve]'\n"),
        (["--editable", plain], f"pip install -e '{plain}[serve]'\n"),
    ):
        environment.install(*source)
        assert environment.run("check_layout.py", tmp_path) == command
        environment.install("--dry-run", *shlex.split(command)[2:])
