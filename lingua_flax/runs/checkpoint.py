"""Checkpoints on disk: Orbax stores the arrays, and a SHA-256 of every leaf verifies them.

A step is a folder `<step>/` with the items params, training (optimizer and counters) and metadata (JSON). Orbax writes
it under a temporary name and renames it. But it loads an array with a flipped byte without an error, and a process
killed while it deletes an old step leaves half of that step under its final name. Hence the digests, and the rule that
a folder without a commit mark is not a step.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, CustomSteps, LatestN, PreservationPolicy

from lingua_flax.devices.processes import (
    check_equal_on_all_processes,
    gather_to_host,
    in_all_processes,
    on_first_process,
)
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import UserError
from lingua_flax.host.files import check_free_space, write_atomically
from lingua_flax.host.malloc import release_freed_memory
from lingua_flax.host.version import VERSION
from lingua_flax.runs.workdir import Workdir

COMMIT_MARK = "commit_success.txt"
LARGE = 2**28  # bytes; while more than that is saved, training on a CPU waits, and needs no copy of it
METADATA_FORMAT = 10  # increase it when this program can no longer use checkpoints that earlier versions have written
Check = Callable[[dict[str, Any]], None]  # raises UserError for an incompatible checkpoint, given its metadata
log = logging.getLogger(__name__)


class _Unchanging(np.ndarray):
    """An array that Orbax need not copy before it writes it in the background."""

    def __deepcopy__(self, _: Any) -> "_Unchanging":
        return self


class DamagedCheckpoint(Exception):
    """A step that cannot be read, or whose contents differ from what was saved."""


def check_format(metadata: dict[str, Any], workdir: Path) -> None:
    """Raises UserError if a checkpoint's metadata was written by a version whose checkpoints this one cannot use."""
    if metadata["format"] != METADATA_FORMAT:
        raise UserError(
            f"{workdir}: its checkpoints were written by version {metadata['version']} of this program, in a format "
            f"that this version, {VERSION}, cannot read; use the program that wrote them, or choose another --workdir"
        )


def digests(item: str, tree: Any) -> dict[str, str]:
    """Returns the SHA-256 of dtype, shape and bytes of each leaf, by item and path; every process must call this."""
    result = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(gather_to_host(leaf) if isinstance(leaf, jax.Array) else leaf)
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
        result[item + jax.tree_util.keystr(path)] = digest.hexdigest()
    return result


def saved_steps(directory: Path) -> list[int]:
    """Returns the steps that are complete on disk, in ascending order."""
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted(int(path.name) for path in paths if path.name.isdecimal() and (path / COMMIT_MARK).exists())


def read_metadata(directory: Path, step: int) -> dict[str, Any]:
    """Returns the metadata of a step; raises DamagedCheckpoint if it cannot be read or differs from what was saved."""
    try:
        metadata = json.loads(_metadata_file(directory, step).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"its metadata cannot be read ({type(error).__name__})") from error
    if not isinstance(metadata, dict) or metadata.pop("metadata_digest", None) != json_digest(metadata):
        raise DamagedCheckpoint("its metadata is not what was saved (SHA-256 differs)")
    return metadata


def _metadata_file(directory: Path, step: int) -> Path:
    return directory / str(step) / "metadata" / "metadata"  # as Orbax names it


def check_corpus(workdir: Path, step: int, digest: str, split: str, held_out: Sequence[str] = ()) -> None:
    """Raises UserError if a split depends on the training pairs, and these are not those of the intact checkpoint.

    A split that was held out of them is chosen anew after a change: it may have pairs that the network was trained on.
    """
    if split != "train" and split not in held_out:
        return
    metadata = read_metadata(Workdir(workdir).checkpoints, step)
    check_format(metadata, workdir)
    if metadata["data_digests"]["corpus"] != digest:
        raise UserError(
            f"{workdir}: its corpus has changed since checkpoint {step}, so the {split} split is no longer the same, "
            "and the network may have been trained on what is now held out; restore the original files (lingua-flax "
            "evaluate also scores other files, with --source and --reference)"
        )


def read_item(directory: Path, step: int, item: str, template: Any = None) -> Any:
    """Returns the complete arrays of an item, "params" or "training", as numpy and unchecked, whatever saved them.

    The template is a tree of objects with shape and dtype, by default those stored on disk. Raises DamagedCheckpoint if
    the arrays cannot be read.
    """
    # Without an ocp.Checkpointer, whose processes wait for each other: one of them may be unable to read.
    handler, path = ocp.StandardCheckpointHandler(), directory / str(step) / item
    try:
        template = handler.metadata(path).tree if template is None else template
        empty = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), template)
        return handler.restore(path, args=ocp.args.StandardRestore(empty))
    except Exception as error:
        raise DamagedCheckpoint(f"its {item} cannot be read ({type(error).__name__})") from error


def restore_item(directory: Path, step: int, item: str, template: Any, metadata: dict[str, Any]) -> Any:
    """Reads an item in the types of the template, whatever those on disk are.

    Raises DamagedCheckpoint also if its shapes differ from the template or its arrays from the metadata's digests.
    """
    saved_type = metadata.get(f"{item}_type")  # only that of an exported network is another one
    saved = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, saved_type or leaf.dtype), template)
    tree = read_item(directory, step, item, saved)
    for leaf, expected in zip(jax.tree.leaves(tree), jax.tree.leaves(template), strict=True):
        if leaf.shape != expected.shape:
            raise DamagedCheckpoint(f"an array in its {item} has the shape {leaf.shape}, expected {expected.shape}")
    for path, digest in digests(item, tree).items():
        if metadata["digests"].get(path) != digest:
            raise DamagedCheckpoint(f"{path} is not what was saved (SHA-256 differs)")
    return jax.tree.map(lambda leaf, expected: leaf.astype(expected.dtype, copy=False), tree, template)


def save_network(directory: Path, step: int, params: Any, metadata: dict[str, Any]) -> None:
    """Saves parameters (numpy, all of one type) in a new folder, as a step from which no training can resume."""
    params_type = str(jax.tree.leaves(params)[0].dtype)
    with ocp.CheckpointManager(directory) as manager:
        manager.save(step, args=_items({"params": params}, metadata | {"step": step, "params_type": params_type}))
    for mark in directory.rglob(COMMIT_MARK):  # Orbax writes the path of the folder into them
        mark.write_text("complete\n", encoding="utf-8")


def holds_only_a_network(directory: Path) -> bool:
    """Returns whether the newest step is one of `save_network`."""
    steps = saved_steps(directory)
    with contextlib.suppress(DamagedCheckpoint):
        return bool(steps) and "params_type" in read_metadata(directory, steps[-1])
    return False


def _items(trees: Mapping[str, Any], metadata: dict[str, Any]) -> ocp.args.Composite:
    """Returns what Orbax is to save: the trees, each as an item, and the metadata with the digests of their arrays."""
    hashed: dict[str, str] = {}
    for item, tree in trees.items():
        hashed |= digests(item, tree)
    unchanging = jax.tree.map(lambda x: x.view(_Unchanging) if isinstance(x, np.ndarray) else x, trees)
    saved = {item: ocp.args.PyTreeSave(tree) for item, tree in unchanging.items()}
    return ocp.args.Composite(**saved, metadata=ocp.args.JsonSave(_with_digest(metadata | {"digests": hashed})))


def _size(*trees: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(trees))


def _with_digest(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata | {"metadata_digest": json_digest(metadata)}


def best_saved_step(directory: Path, steps: Sequence[int]) -> int | None:
    """Returns the best of the saved steps by validation, if the newest intact metadata names one."""
    for step in reversed(steps):
        with contextlib.suppress(DamagedCheckpoint):
            best = read_metadata(directory, step)["best_step"]
            return best if best in steps else None
    return None


def load_params(directory: Path, which: str, template: Any, check: Check) -> tuple[int, Any, dict[str, Any]]:
    """Returns step, parameters (numpy) and metadata of a checkpoint; of several, those of the newest and the mean.

    `which` is "best" by validation (the newest if there was none), "last", a step number, or "average:N" for the mean
    of the newest N. A damaged step is logged and replaced by the newest intact one that is left, unless a step number
    is given. The check is called before the arrays are read, because arrays of another network look like damaged ones.
    Raises UserError if `which` is malformed, the checkpoint does not exist or is damaged, or there are too few.
    """
    candidates, count = _candidates(directory, which)
    loaded = list(itertools.islice(_intact_checkpoints(directory, candidates, {"params": template}, check), count))
    saved = ", ".join(map(str, saved_steps(directory)))
    if not loaded:
        raise UserError(f"{directory}: checkpoint {which} is damaged and cannot be used; saved: {saved}")
    if len(loaded) < count:
        raise UserError(
            f"{directory}: {count} checkpoints to average, but only {len(loaded)} can be used (saved: {saved}); "
            "training.keep_checkpoints sets how many a run keeps"
        )
    step, [params], metadata = loaded[0]
    if which.startswith("average"):
        log.info("parameters averaged over the checkpoints %s", ", ".join(str(step) for step, _, _ in reversed(loaded)))
        params = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]) / count, *(tree for _, [tree], _ in loaded))
    return step, params, metadata


def identify(directory: Path, which: str) -> tuple[int, str]:
    """Returns the step and a digest of the checkpoint that `load_params` loads if it is intact; reads no arrays."""
    candidates, count = _candidates(directory, which)
    try:
        metadata = [read_metadata(directory, step) for step in candidates[:count]]
    except DamagedCheckpoint as error:
        raise UserError(f"{directory}: checkpoint {which} is damaged and cannot be used: {error}") from error
    return candidates[0], json_digest(metadata)


def _candidates(directory: Path, which: str) -> tuple[list[int], int]:
    """Returns the saved steps that `which` may stand for, best first, and the number of them that are averaged."""
    steps = saved_steps(directory)
    saved = ", ".join(map(str, steps)) or "none"
    known = re.fullmatch(r"best|last|(\d+)|average:([1-9]\d*)", which)
    if not known:
        raise UserError(
            f'--checkpoint must be best, last, the number of a step or average:N, got "{which}" (saved: {saved})'
        )
    number, average = known.groups()
    if not steps or (number and int(number) not in steps):
        raise UserError(f"{directory}: no checkpoint{f' {which}' if steps else ''}; saved: {saved}")
    candidates = [int(number)] if number else steps[::-1]
    if which == "best" and (best := best_saved_step(directory, steps)):
        candidates = [best, *candidates]
    return candidates, int(average or 1)


def _intact_checkpoints(
    directory: Path, steps: Sequence[int], templates: Mapping[str, Any], check: Check
) -> Iterator[tuple[int, list[Any], dict[str, Any]]]:
    """Yields each intact step, its items in the order of the templates, and its metadata; logs the damaged steps."""
    for step in steps:
        try:
            metadata = read_metadata(directory, step)
            check(metadata)
            items = [restore_item(directory, step, item, template, metadata) for item, template in templates.items()]
        except DamagedCheckpoint as error:
            log.warning("checkpoint %d is damaged and not used: %s", step, error)
            continue
        yield step, items, metadata


class Checkpoints:
    """The checkpoints of a run during training: saves in the background and keeps the best and the newest few."""

    def __init__(self, directory: Path, keep: int):
        """Prepares the folder, an absolute path, in which the newest `keep` checkpoints and the best one remain."""
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._saving: Future[None] | None = None
        self._kept: list[PreservationPolicy] = [LatestN(keep)]
        policy = AnyPreservationPolicy(self._kept)
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, cleanup_tmp_directories=True)
        # Compressed, all arrays would be in memory once more, and only 8% smaller.
        handlers = {item: ocp.PyTreeCheckpointHandler(use_compression=False) for item in ("params", "training")}
        handlers["metadata"] = ocp.JsonCheckpointHandler()
        self._manager = ocp.CheckpointManager(directory, options=options, item_handlers=handlers)

    def save(self, step: int, params: Any, training: Any, metadata: dict[str, Any], best_step: int | None) -> None:
        """Copies the arrays and returns; they are hashed and written in the background.

        With several processes, only the writing happens there: hashing computes jointly, in the same order in all of
        them. Of a step that is saved already, only the metadata is new. Raises the error of the previous save, if it
        failed.
        """
        self.wait()
        self._kept[1:] = [CustomSteps([best_step])] if best_step else []
        metadata = metadata | {"step": step, "best_step": best_step}
        if step in saved_steps(self._directory):  # when its validation was interrupted: its arrays are the same
            on_first_process(lambda: self._replace_metadata(step, metadata))
        elif jax.process_count() == 1:
            # On a CPU this does not copy: NumPy shares the memory, so the next step, which may not overwrite it, does.
            params, training = jax.device_get((params, training))
            self._saving = self._thread.submit(self._write, step, params, training, metadata)
            if jax.default_backend() == "cpu" and _size(params, training) > LARGE:
                self.wait()
                release_freed_memory()
        else:
            self._write(step, params, training, metadata)

    def check(self) -> None:
        """Raises the error of a save that has failed in the background, if any."""
        if self._saving and self._saving.done():
            self._saving.result()

    def wait(self) -> None:
        """Waits until everything is on disk; raises the error of the save if it failed."""
        if self._saving:
            self._saving.result()
        self._manager.wait_until_finished()

    def _write(self, step: int, params: Any, training: Any, metadata: dict[str, Any]) -> None:
        # If a write fails, those that TensorStore still has pending print dozens of tracebacks.
        check_free_space(self._directory, _size(params, training))
        items = _items({"params": params, "training": training}, metadata)
        self._manager.save(step, args=items, force=True)
        if jax.process_count() == 1:
            self._manager.wait_until_finished()

    def _replace_metadata(self, step: int, metadata: dict[str, Any]) -> None:
        saved = read_metadata(self._directory, step)
        content = json.dumps(_with_digest(metadata | {"digests": saved["digests"]}))
        write_atomically(_metadata_file(self._directory, step), content.encode())

    def restore_newest(self, params: Any, training: Any, check: Check) -> tuple[Any, Any, dict[str, Any]] | None:
        """Restores the newest intact step and sets later ones aside; the arguments are templates and a check.

        Returns the params and training items (numpy) and the metadata, or None if nothing has been saved yet. Raises
        UserError if there are steps, but none is intact.
        """

        def newest() -> tuple[int, list[Any] | None, dict[str, Any]]:
            steps, templates = saved_steps(self._directory), {"params": params, "training": training}
            intact = _intact_checkpoints(self._directory, steps[::-1], templates, check)
            found: tuple[int, list[Any] | None, dict[str, Any]] = next(intact, (-1, None, {}))
            if steps and not found[1]:
                raise UserError(f"{self._directory}: none of its checkpoints is intact; nothing was deleted")
            return found

        step, items, metadata = in_all_processes(newest)
        # A stale listing or a failed read in one process would let it go on from an earlier step than the others.
        check_equal_on_all_processes("newest intact checkpoint", json_digest(metadata))
        on_first_process(lambda: self._set_aside_after(step))
        self._manager.reload()
        return (items[0], items[1], metadata) if items else None

    def close(self) -> None:
        """Waits until everything is on disk; raises the error of the last save if it failed."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._manager.close()

    def _set_aside_after(self, step: int) -> None:
        """Renames later steps, which are damaged or half deleted, to damaged-STEP[-N]: the run will save them again."""
        for path in list(self._directory.iterdir()):
            if path.name.isdecimal() and int(path.name) > step:
                suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
                names = (path.with_name(f"damaged-{path.name}{suffix}") for suffix in suffixes)
                path.rename(next(name for name in names if not name.exists()))
