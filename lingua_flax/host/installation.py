"""How this program was installed, and so how an extra is added to it."""

import json
from importlib.metadata import distribution
from pathlib import Path

NAME = "lingua-flax"
ROOT = Path(__file__).parent.parent.parent  # of the repository, unless this is installed from a wheel


def install_command(extra: str) -> str:
    """Returns the command that installs an extra, from where the program itself came (PEP 610, direct_url.json)."""
    if (ROOT / "pyproject.toml").exists():
        return f"pip install -e '{'.' if Path.cwd() == ROOT else ROOT}[{extra}]'"
    text = distribution(NAME).read_text("direct_url.json")
    origin = json.loads(text) if text else None  # none if it came from a package index
    version_control = f"{origin['vcs_info']['vcs']}+" if origin and "vcs_info" in origin else ""
    source = f" @ {version_control}{origin['url']}" if origin else ""
    return f"pip install '{NAME}[{extra}]{source}'"
