"""The Dockerfile and .dockerignore: what is in an image, and what it installs."""

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase

from tests.conftest import ROOT


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
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    unwanted = [line.replace("*", "x") + "/file" for line in (ROOT / ".gitignore").read_text().split()]
    unwanted += [".git/HEAD", "builds/a/config.toml", "checkpoints/tiny/config.toml", "model/__pycache__/a.pyc"]
    assert [path for path in unwanted if not is_left_out(path)] == []
    tops = (".ci/", ".github/", "checkpoints/")
    assert [path for path in tracked if is_left_out(path) and not path.startswith(tops)] == []
    assert not is_left_out("checkpoints/phrasebook/checkpoints/1300/params/d/0123")
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert not any(map(is_left_out, " ".join(copied).split()))


def test_dependencies_of_the_image_are_those_of_the_package():
    """The Dockerfile lists them without building the package, in a layer of their own."""
    code = re.search(r'python -c "(.*?)"', (ROOT / "Dockerfile").read_text(), re.DOTALL)[1]
    command = [sys.executable, "-c", code.replace("\\\n", "").replace("/build/", "")]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for entry in project["optional-dependencies"]["serve"] + project["optional-dependencies"]["export"]:
        own = re.match(r"lingua-flax\[(\w+)\]", entry)
        wanted += project["optional-dependencies"][own[1]] if own else [entry]
    assert set(wanted) <= set(listed)
    assert not any(entry.startswith("lingua-flax") for entry in listed)
