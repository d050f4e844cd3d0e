"""The Dockerfile: what an image installs."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("extra", [[], ["cuda"], ["tpu"]])
def test_dependencies_of_the_image_are_those_of_the_package(extra):
    """The Dockerfile lists them without building the package, in a layer of their own."""
    code = re.search(r'python -c "(.*?)"', (ROOT / "Dockerfile").read_text(), re.DOTALL)[1]
    command = [sys.executable, "-c", code.replace("\\\n", "").replace("/build/", ""), *extra]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for entry in [entry for name in ["serve", "export", *extra] for entry in project["optional-dependencies"][name]]:
        own = re.match(r"lingua-flax\[(\w+)\]", entry)
        wanted += project["optional-dependencies"][own[1]] if own else [entry]
    assert set(wanted) <= set(listed)
    assert any(entry.startswith("jax[") for entry in listed) == bool(extra)
    assert not any(entry.startswith("lingua-flax") for entry in listed)
