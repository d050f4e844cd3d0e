"""How this program was installed, and so how an extra is added to it."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

NAME = "lingua-flax"
ROOT = Path(__file__).parent.parent.parent  # of the repository, unless this is installed from a wheel


def install_command(extra: str) -> str:
    """Returns the command that installs an extra, from where the program itself came (PEP 610, direct_url.json)."""
    try:
        text = distribution(NAME).read_text("direct_url.json")  # none if it came from a package index
        origin = json.loads(text) if text else {}
    except PackageNotFoundError:
        origin = {"dir_info": {"editable": True}}
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{'.' if Path.cwd() == ROOT else ROOT}[{extra}]'"
    version_control = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    source = f" @ {version_control}{origin['url']}" if origin else ""
    return f"pip install '{NAME}[{extra}]{source}'"
