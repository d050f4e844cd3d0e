"""The files of a folder as transformers stores a model: JSON, weights, and the metadata of its README.md."""

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that is there is read
LICENSE = re.compile(r"\A---\n(?:.*\n)*?license: *[\"']?([\w.+-]+)[\"']? *\n(?:.*\n)*?---\n")


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Returns the object in a file, {} if it is missing and not required; raises UserError if there is none."""
    if not path.exists() and not required:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object")
    return content


def weights_file(folder: Path) -> Path:
    """Returns the file with the weights; raises UserError if there is none, or its package is not installed."""
    path = next((folder / name for name in WEIGHTS if (folder / name).exists()), None)
    if not path:
        raise UserError(f"{folder}: it has neither {' nor '.join(WEIGHTS)}")
    if path.suffix == ".safetensors" and not find_spec("safetensors"):
        raise UserError(f"{path}: reading it needs the extra hub: {install_command('hub')}")
    if path.suffix == ".bin" and not find_spec("torch"):
        raise UserError(f"{path}: only PyTorch reads it safely: pip install torch, or convert it to safetensors")
    return path


def read_tensors(path: Path) -> Mapping[str, np.ndarray]:
    """Returns the tensors of a file by name, float32; runs no code in it. Raises UserError if it cannot be read."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            tensors = load_file(path)
        else:
            import torch

            state = torch.load(path, map_location="cpu", weights_only=True)
            tensors = {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # of a dozen types
        raise UserError(f"{path}: not a file of weights that can be read ({type(error).__name__})") from error
    return {name: array.astype(np.float32, copy=False) for name, array in tensors.items()}


def read_license(folder: Path) -> str | None:
    """Returns the licence that the head of README.md names, if any."""
    readme = folder / "README.md"
    found = LICENSE.match(readme.read_text(encoding="utf-8", errors="replace")) if readme.is_file() else None
    return found[1] if found else None
