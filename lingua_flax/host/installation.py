"""Which packages are installed, and how an extra is added to this program, by how it was installed itself."""

import json
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

NAME = "lingua-flax"
ROOT = Path(__file__).parent.parent.parent  # of the repository, unless this is installed from a wheel


def has_package(name: str) -> bool:
    """Returns whether a package is installed, without importing it."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def install_command(extra: str) -> str:
    """Returns the command that installs an extra, from where the program itself came (PEP 610, direct_url.json)."""
    if (ROOT / "pyproject.toml").exists():
        return f"pip install -e '{'.' if Path.cwd() == ROOT else ROOT}[{extra}]'"
    text = distribution(NAME).read_text("direct_url.json")
    if not text:  # it came from a package index
        return f"pip install '{NAME}[{extra}]'"
    origin = json.loads(text)
    url = f"{origin['vcs_info']['vcs']}+{origin['url']}" if "vcs_info" in origin else origin["url"]
    url = url.replace("+file:///", "+file://localhost/")  # which pip refuses without a host
    return f"pip install '{NAME}[{extra}] @ {url}'"
