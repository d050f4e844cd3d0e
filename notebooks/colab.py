"""What the cells of colab_tpu.ipynb do: they install, run commands, copy the run to Google Drive and show pictures."""

import ctypes
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from glob import glob
from importlib import metadata
from pathlib import Path

from IPython.display import FileLink, Image, display
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
# Packages whose versions have to fit each other: Flax 0.11 cannot be imported with JAX 0.10.
OF_JAX = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint")
SHORT_FORM = "--training.num-steps 550"  # of 1,300, for "automatic" on a CPU
PHRASEBOOK, CAPTIONS = "I swam across the river to get to the other bank.", "Two dogs are playing in the snow."
# Jupyter asks every program for colors and progress bars, and a program without a terminal delays its output.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
ENVIRONMENT |= {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def accelerator() -> str | None:
    """Returns the extra of pyproject.toml for this machine's accelerator, or None for a CPU; does not import JAX."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return None
    if glob("/dev/nvidia[0-9]*"):
        return "cuda12"  # which the newer drivers, of CUDA 13, have as well
    has_tpu = os.environ.get("COLAB_TPU_1VM") == "1" or glob("/dev/accel*") or glob("/dev/vfio/[0-9]*")
    return "tpu" if has_tpu else None


def install() -> None:
    """Installs Lingua Flax from this clone, and what the machine lacks, in the versions last tested together.

    Packages of the machine stay as they are if they are new enough. If its JAX is not, the one for its accelerator is
    installed.
    """
    if _is_installed():
        print("already installed")
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (supported,) = (found for found in map(Requirement, project["dependencies"]) if found.name == "jax")
    jax, pinned = _version("jax"), (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    keeps_jax = jax is not None and supported.specifier.contains(jax, prereleases=True)
    replaced = () if keeps_jax else OF_JAX
    pinned = [line for line in pinned if (name := line.partition("==")[0]) in replaced or not _version(name)]
    extra = None if keeps_jax else accelerator()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pinned))
        constraints.flush()
        options = f"--quiet --disable-pip-version-check --root-user-action ignore --constraint {constraints.name}"
        # safetensors packs the network for the page that is downloaded.
        run(f"python -m pip install {options} {shlex.quote(f'{ROOT}[{extra}]' if extra else str(ROOT))} safetensors")
    print(f"kept JAX {jax}" if keeps_jax else f"replaced JAX {jax}, which is not supported: {supported}")


def _is_installed() -> bool:
    # Building the package leaves metadata in the clone, too, which do not say where it was installed from.
    origins = (found.read_text("direct_url.json") for found in metadata.distributions(name="lingua-flax"))
    return any(origin and json.loads(origin)["url"] == ROOT.resolve().as_uri() for origin in origins)


def _version(package: str) -> str | None:
    found = next(iter(metadata.distributions(name=package)), None)
    return found.version if found else None


def run(command: str, text: str | None = None, *, after_line: Callable[[], None] = lambda: None) -> None:
    """Runs a command and prints its output line by line; interrupting the cell interrupts it once.

    In the command, "python" and "lingua-flax" are those of the notebook's own interpreter. Its standard input is the
    line of text, if there is one. Raises RuntimeError if it fails.
    """
    print("$", command)
    program, *arguments = shlex.split(command)
    own = {"python": [sys.executable], "lingua-flax": [sys.executable, "-m", "lingua_flax"]}
    process = subprocess.Popen(
        [*own.get(program, [program]), *arguments],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # only one signal must reach it, the one below: at a second one, it would not save
        # Otherwise it would outlive the notebook and keep the TPU. When this process dies, it gets SIGTERM, at which
        # training saves; 1 is PR_SET_PDEATHSIG.
        preexec_fn=functools.partial(_prctl, 1, signal.SIGTERM) if _prctl else None,
    )
    if process.stdin:
        process.stdin.write(f"{text}\n")
        process.stdin.close()
    line, interrupted = "", False
    assert process.stdout is not None
    while True:
        try:
            for line in process.stdout:
                print(line, end="")
                after_line()
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
    status = process.wait()
    if interrupted:
        raise KeyboardInterrupt
    if status:
        raise RuntimeError(f"the command ended with status {status}: {line.strip()}")


class Run:
    """A run on this machine that is copied to Google Drive after every checkpoint, as long as Drive is there."""

    def __init__(self, folder: str, config: str = "automatic", options: str = "", *, on_drive: bool = True):
        """Plans a run in the folder, in which Drive is mounted; "automatic" is the config that suits the machine."""
        device, here = accelerator(), Path(folder).resolve()
        is_short = config == "automatic" and not device
        if config == "automatic":
            config = "multi30k_en_de" if device else "tiny"
        if is_short and "--training.num-steps" not in options:
            options = f"{SHORT_FORM} {options}"
        name = Path(config).stem + ("-short" if is_short else "")
        self._example = CAPTIONS if config == "multi30k_en_de" else PHRASEBOOK
        self._training = f"train --config {shlex.quote(config)} {options}"
        self.workdir, self._page = here / "lingua-flax-runs" / name, here / "translator.html"
        self._drive: Path | None = here / "drive" / "MyDrive" / "lingua-flax-runs" / name
        self._saved_step = 0
        if not (on_drive and self._connect(here / "drive", self._drive)):
            print("Google Drive is not connected, so the run is deleted with this machine. What remains is")
            print("translator.html, which the last cell downloads.")
            self._drive = None
        print(f"{name} is trained on the {device or 'cpu'} and kept in {self._drive or self.workdir}")

    def _connect(self, mountpoint: Path, copy: Path) -> bool:
        """Mounts Drive, takes the run from there if it has got further, and returns whether that went well."""
        try:
            from google.colab import drive

            drive.mount(str(mountpoint))
            copy.mkdir(parents=True, exist_ok=True)
            if _newest_step(copy) > _newest_step(self.workdir):
                with tempfile.TemporaryDirectory(dir=mountpoint.parent) as restored:  # it may get lost on the way
                    _copy(copy, Path(restored))
                    shutil.rmtree(self.workdir, ignore_errors=True)
                    shutil.copytree(restored, self.workdir)
        except Exception:  # google.colab does not document of which types
            return False
        return True

    def __call__(self, command: str, text: str | None = None) -> None:
        """Runs a command of Lingua Flax for this run, and copies what it writes; RuntimeError if the command fails."""
        try:
            run(f"lingua-flax {command} --workdir {shlex.quote(str(self.workdir))}", text, after_line=self._save_step)
        finally:
            if self._drive and not self._save(self._drive):
                print("Google Drive is lost: the run goes on without it.")
                print("To copy the run to Drive again, choose Runtime, Run all; nothing is trained twice.")
                self._drive = None

    def _save_step(self) -> None:
        if self._drive and _newest_step(self.workdir) > self._saved_step:
            self._save(self._drive)

    def _save(self, drive: Path) -> bool:
        step = _newest_step(self.workdir)
        try:
            if os.path.isdir(drive):  # otherwise a folder would be created in place of Drive
                _copy(self.workdir, drive)
                self._saved_step = step
                return True
        except OSError:
            pass
        return False

    def train(self) -> None:
        """Trains, or continues, and shows the learning curves."""
        self(self._training)
        display(Image(self.workdir / "curves.png"))

    def translate(self, sentence: str) -> None:
        """Translates the sentence, or if it is empty an example, and shows what each of its words looked at."""
        picture = self.workdir / "attention.png"
        self(f"translate --attention {shlex.quote(str(picture))}", sentence or self._example)
        display(Image(picture))

    def download(self) -> None:
        """Writes the network into a page that translates in any browser, and downloads it."""
        self._page.unlink(missing_ok=True)
        self(f"export --format html --output {shlex.quote(str(self._page))}")
        try:
            from google.colab import files

            files.download(str(self._page))
        except ImportError:
            display(FileLink(os.path.relpath(self._page)))


def _newest_step(workdir: Path) -> int:
    complete = (mark.parent.name for mark in (workdir / "checkpoints").glob("*/commit_success.txt"))
    return max((int(name) for name in complete if name.isdecimal()), default=0)


def _copy(workdir: Path, copy: Path) -> None:
    """Copies what is new in a workdir, in which a command may be writing, and deletes the checkpoints that it has."""

    def copy_new(file: str, target: str) -> None:
        is_same = os.path.exists(target) and os.path.getsize(target) == os.path.getsize(file)
        if not is_same or os.path.getmtime(target) < os.path.getmtime(file):
            shutil.copyfile(file, target)

    unfinished = shutil.ignore_patterns("*tmp*", "*.lock")
    shutil.copytree(workdir, copy, ignore=unfinished, copy_function=copy_new, dirs_exist_ok=True)
    for checkpoint in (copy / "checkpoints").glob("*"):
        if not (workdir / "checkpoints" / checkpoint.name).exists():
            shutil.rmtree(checkpoint)
