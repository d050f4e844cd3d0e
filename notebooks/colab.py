"""What colab_tpu.ipynb does beyond running commands: it installs, shows pictures, and shows the page of the server."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from IPython.display import Image, display

ROOT = Path(__file__).parent.parent
SERVE = (sys.executable, "-m", "lingua_flax", "serve")
# Jupyter asks every program for colors and progress bars, and a program without a terminal delays its output.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
ENVIRONMENT |= {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def accelerator() -> str | None:
    """Returns the extra of pyproject.toml for this machine's accelerator, or None for a CPU; does not import JAX."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return None
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True)
        if driver.returncode == 0:
            return "cuda" if int(driver.stdout.split(".")[0]) >= 580 else "cuda12"  # older drivers lack CUDA 13
    if os.environ.get("COLAB_TPU_1VM") == "1" or glob("/dev/accel*") or glob("/dev/vfio/[0-9]*"):
        return "tpu"
    return None


def install() -> None:
    """Installs the requirements that are missing, with JAX for this machine's accelerator, and without TensorFlow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [extra for extra in ("serve", accelerator()) if extra]
    requirements = [*project["dependencies"], *(name for e in extras for name in project["optional-dependencies"][e])]
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    print("installed for", accelerator() or "the CPU")


def run(command: str, text: str | None = None) -> None:
    """Runs a command in the repository and prints its output line by line; interrupting the cell interrupts it once.

    Args:
      command: program and arguments; "python" is the notebook's own interpreter.
      text: a line for the command's standard input.

    Raises:
      RuntimeError: the command failed.
    """
    print("$", command)
    program, *arguments = shlex.split(command)
    _run([sys.executable if program == "python" else program, *arguments], text)


def _run(command: Sequence[str], text: str | None = None) -> None:
    process = _start(command, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
    if process.stdin:
        process.stdin.write(f"{text}\n")
        process.stdin.close()
    line, interrupted = "", False
    assert process.stdout is not None
    while True:
        try:
            for line in process.stdout:
                print(line, end="")
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
    status = process.wait()
    if interrupted:
        raise KeyboardInterrupt
    if status:
        raise RuntimeError(f"the command ended with status {status}: {line.strip()}")


def _start(command: Sequence[str], *, stdin: int) -> subprocess.Popen[str]:
    """Starts a command that ends with the notebook: otherwise it would keep the TPU."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # only one signal must reach it, from `run`: at a second one, it would not save
        preexec_fn=_end_with_the_notebook,
    )


def _end_with_the_notebook() -> None:
    """In the child: asks the kernel for SIGTERM, at which training saves, when the notebook's process dies."""
    if _prctl:
        _prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG


def show(picture: str | Path) -> None:
    """Shows a PNG file."""
    display(Image(Path(picture).read_bytes()))


_server: subprocess.Popen[str] | None = None


def serve(workdir: str | Path, port: int = 8000) -> None:
    """Starts the server for a run, in place of a server that is still running, and shows its page on Colab.

    Raises:
      RuntimeError: the server did not start.
    """
    global _server
    if _server:
        _server.terminate()
        _server.wait()
    try:
        from google.colab import output
    except ImportError:
        output = None
    # Colab shows ports of its machine under an address of its own.
    proxy = output.eval_js(f"google.colab.kernel.proxyPort({port})").split("/")[2] if output else None
    options = ["--allowed-host", proxy] if proxy else []
    command = [*SERVE, "--workdir", str(workdir), "--port", str(port), "--batch-size", "1", *options]
    _server = _start(command, stdin=subprocess.DEVNULL)
    assert _server.stdout is not None
    for line in _server.stdout:
        print(line, end="")
        if line == "ready\n":
            break
    else:
        raise RuntimeError(f"the server ended with status {_server.wait()}")
    if output:
        output.serve_kernel_port_as_iframe(port, height=900)
