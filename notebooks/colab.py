"""What colab_tpu.ipynb does beyond running commands: it installs, shows pictures and the page, and writes a report."""

import ctypes
import functools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from glob import glob
from importlib import metadata
from pathlib import Path

from IPython.display import Image, display
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LINGUA_FLAX = (sys.executable, "-m", "lingua_flax")
OF_JAX = ("jax", "jaxlib", "libtpu")  # packages whose versions have to fit each other
PROGRESS = re.compile(r"step \d+/\d+ ")
# Lines of the commands' output that the report repeats.
REPORTED = re.compile(r"computing on|step \d+ started|step \d+/\d+ |compiled|.*validation|│ BLEU|.*error:")
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
    """Installs Lingua Flax from this clone, in the versions that were tested together, and without TensorFlow.

    JAX remains as it is if Lingua Flax supports its version: Colab's fits its TPU. Otherwise JAX is installed for this
    machine's accelerator.
    """
    if _is_installed():
        print("already installed")
        return
    jax, pinned = _version("jax"), (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (supported,) = (found for found in map(Requirement, project["dependencies"]) if found.name == "jax")
    fits = jax is not None and supported.specifier.contains(jax, prereleases=True)
    if fits:
        pinned = [line for line in pinned if line.partition("==")[0] not in OF_JAX]
        pinned += [f"{name}=={_version(name)}" for name in OF_JAX if _version(name)]
        print(f"keeping JAX {jax} of this machine")
    else:
        found = f"JAX {jax} of this machine is not supported" if jax else "this machine has no JAX"
        print(f"{found}: installing another version ({supported}) for {accelerator() or 'the CPU'}. If a later cell")
        print("does not find the device, choose Runtime, Restart session, and run all cells again")
    extras = ",".join(filter(None, ["serve", None if fits else accelerator()]))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pinned))
        constraints.flush()
        options = ("--quiet", "--disable-pip-version-check", "--constraint", constraints.name)
        run(shlex.join(["python", "-m", "pip", "install", *options, f"{ROOT}[{extras}]"]))
    print("installed for", accelerator() or "the CPU")


def _is_installed() -> bool:
    # Building the package leaves metadata in the clone, too, which do not say where it was installed from.
    origins = (found.read_text("direct_url.json") for found in metadata.distributions(name="lingua-flax"))
    return any(origin and json.loads(origin)["url"] == ROOT.resolve().as_uri() for origin in origins)


def _version(package: str) -> str | None:
    found = next(iter(metadata.distributions(name=package)), None)
    return found.version if found else None


def run(command: str, text: str | None = None) -> None:
    """Runs a command and prints its output line by line; interrupting the cell interrupts it once.

    In the command, "python" and "lingua-flax" are those of the notebook's own interpreter. Its standard input is the
    line of text, if there is one. Raises RuntimeError if it fails.
    """
    print("$", command)
    program, *arguments = shlex.split(command)
    own = {"python": [sys.executable], "lingua-flax": LINGUA_FLAX}
    _report.append(f"$ {command}")
    stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
    process = _start([*own.get(program, [program]), *arguments], stdin=stdin)
    if process.stdin:
        process.stdin.write(f"{text}\n")
        process.stdin.close()
    line, interrupted = "", False
    assert process.stdout is not None
    while True:
        try:
            for line in process.stdout:
                print(line, end="")
                if REPORTED.match(line):
                    _report.append(line.rstrip())
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
        env=ENVIRONMENT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # only one signal must reach it, from `run`: at a second one, it would not save
        # When this process dies, the child gets SIGTERM, at which training saves; 1 is PR_SET_PDEATHSIG.
        preexec_fn=functools.partial(_prctl, 1, signal.SIGTERM) if _prctl else None,
    )


def show(picture: str | Path) -> None:
    """Shows a PNG file."""
    display(Image(Path(picture).read_bytes()))


def report() -> None:
    """Prints what the commands of this session have reported, and where, to be pasted into an issue."""
    names = (*OF_JAX, "flax", "optax", "lingua-flax")
    versions = [f"{name} {version}" for name in names if (version := _version(name))]
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    machine = f"{platform.platform()}, {os.cpu_count()} cores, {accelerator() or 'CPU'}"
    print(f"Python {platform.python_version()}, {machine}")
    print(f"{', '.join(versions)}, commit {commit or 'unknown'}")
    # Of the progress lines of a command, the last one is enough.
    for line, following in zip(_report, [*_report[1:], ""], strict=True):
        if not (PROGRESS.match(line) and PROGRESS.match(following)):
            print(line)


_report: list[str] = []
_server: subprocess.Popen[str] | None = None


def serve(workdir: str | Path, port: int = 8000) -> None:
    """Starts the server for a run, in place of one that runs, and shows its page on Colab; RuntimeError if it fails."""
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
    command = [*LINGUA_FLAX, "serve", "--workdir", str(workdir), "--port", str(port), "--batch-size", "1", *options]
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
