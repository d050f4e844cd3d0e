"""Checkpoints on disk: Orbax stores the arrays, and a SHA-256 of every leaf decides whether a step counts.

A step is a folder `<step>/` with the items params, training (optimizer and counters) and record (JSON: position in the
data, clock, digests). Orbax writes it under another name and renames it, so a killed save leaves nothing that looks
like a step; but it loads a flipped byte without a word, and a kill while it deletes an old step leaves half of it under
its own name. Hence the digests, and the rule that a folder without its commit mark is no step.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from devices.processes import gather_to_host, is_first_process, on_first_process
from host.digests import json_digest
from host.errors import UserError

COMMIT_MARK = "commit_success.txt"
Check = Callable[[dict[str, Any]], None]
log = logging.getLogger(__name__)


def _any(record: dict[str, Any]) -> None:
    """The check that every record passes."""


class UnsoundCheckpoint(Exception):
    """A step that cannot be read, or whose arrays are not those that were saved."""


def digests(item: str, tree: Any) -> dict[str, str]:
    """SHA-256 of each leaf's type, shape and bytes, by path; every process has to ask."""
    result = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(gather_to_host(leaf) if isinstance(leaf, jax.Array) else leaf)
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
        result[item + jax.tree_util.keystr(path)] = digest.hexdigest()
    return result


def saved_steps(directory: Path) -> list[int]:
    """Steps that are complete on disk, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(
        int(path.name) for path in directory.iterdir() if path.name.isdecimal() and (path / COMMIT_MARK).exists()
    )


def read_record(directory: Path, step: int) -> dict[str, Any]:
    """The JSON that was saved with a step.

    Raises:
      UnsoundCheckpoint: it cannot be read.
    """
    try:
        record = ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(directory / str(step) / "record")
    except Exception as error:  # Orbax raises a dozen types, from KeyError to UnicodeDecodeError, for a damaged file
        raise UnsoundCheckpoint(f"its record cannot be read ({type(error).__name__})") from error
    if not isinstance(record, dict) or record.pop("record_digest", None) != json_digest(record):
        raise UnsoundCheckpoint("its record is not what was saved (SHA-256 differs)")
    return {"config": {}} | record  # which earlier versions did not keep


def read_item(directory: Path, step: int, item: str, template: Any = None) -> Any:
    """The arrays of an item as numpy, whole, whatever devices and processes saved them; unchecked.

    Args:
      template: a tree of anything with shape and dtype; by default they are read as they lie on disk.

    Raises:
      UnsoundCheckpoint: they cannot be read.
    """
    handler, path = ocp.Checkpointer(ocp.StandardCheckpointHandler()), directory / str(step) / item
    try:
        wanted = handler.metadata(path).item_metadata.tree if template is None else template
        empty = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), wanted)
        return handler.restore(path, args=ocp.args.StandardRestore(empty))
    except Exception as error:
        raise UnsoundCheckpoint(f"its {item} cannot be read ({type(error).__name__})") from error


def restore_item(directory: Path, step: int, item: str, template: Any, record: dict[str, Any]) -> Any:
    """What read_item reads, checked.

    Raises:
      UnsoundCheckpoint: the arrays cannot be read, or are not those that were saved, or not like the template's.
    """
    tree = read_item(directory, step, item, template)
    for found, wanted in zip(jax.tree.leaves(tree), jax.tree.leaves(template), strict=True):
        if found.shape != wanted.shape:
            raise UnsoundCheckpoint(f"its {item} have another shape: {found.shape}, where {wanted.shape} is wanted")
    for leaf, digest in digests(item, tree).items():
        if record["digests"].get(leaf) != digest:
            raise UnsoundCheckpoint(f"{leaf} is not what was saved (SHA-256 differs)")
    return tree


def load_params(directory: Path, which: str, template: Any, check: Check = _any) -> tuple[int, Any, dict[str, Any]]:
    """A checkpoint's step, parameters (numpy) and record.

    Args:
      which: "best" by validation BLEU (the newest, where no validation was made), "last", a step's number, or
        "average:N" for the mean of the newest N, whose newest step and record are returned. Instead of a damaged step
        the next older sound one is taken, and named in the log; where a number was asked for, no other will do.
      check: raises a UserError where a record is not of what is to be loaded: before its arrays are read, since those
        of another network cannot be told from damaged ones.

    Raises:
      UserError: there is no such checkpoint, too few to average, or it is damaged.
    """
    steps = saved_steps(directory)
    there = ", ".join(map(str, steps)) or "none"
    averaged = re.fullmatch(r"average:([1-9]\d*)", which)
    if not averaged and which not in ("best", "last") and not which.isdecimal():
        raise UserError(
            f'--checkpoint must be best, last, the number of a step or average:N, got "{which}" (there: {there})'
        )
    if not steps or (which.isdecimal() and int(which) not in steps):
        raise UserError(f"{directory}: no checkpoint{f' {which}' if steps else ''}; there: {there}")
    wanted = int(averaged[1]) if averaged else 1
    candidates = [int(which)] if which.isdecimal() else _candidates(directory, steps, which)
    found = list(itertools.islice(_sound(directory, candidates, {"params": template}, check), wanted))
    if not found:
        raise UserError(f"{directory}: checkpoint {which} is damaged and cannot be used; there: {there}")
    if len(found) < wanted:
        raise UserError(
            f"{directory}: {wanted} checkpoints to average, but {len(found)} that can be used (there: {there}); "
            "training.keep_checkpoints says how many a run keeps"
        )
    step, [params], record = found[0]
    if averaged:
        log.info("parameters averaged over the checkpoints %s", ", ".join(str(step) for step, _, _ in reversed(found)))
        params = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]) / wanted, *(tree for _, [tree], _ in found))
    return step, params, record


def _sound(
    directory: Path, steps: Sequence[int], templates: Mapping[str, Any], check: Check
) -> Iterator[tuple[int, list[Any], dict[str, Any]]]:
    """Those of the steps that are sound, each with its items like the templates and its record; the log tells of the
    others."""
    for step in steps:
        try:
            record = read_record(directory, step)
            check(record)
            items = [restore_item(directory, step, item, template, record) for item, template in templates.items()]
        except UnsoundCheckpoint as error:
            log.warning("checkpoint %d is damaged and not used: %s", step, error)
            continue
        yield step, items, record


def _candidates(directory: Path, steps: Sequence[int], which: str) -> list[int]:
    newest_first = list(reversed(steps))
    for step in newest_first if which == "best" else []:
        try:
            best = read_record(directory, step)["best_step"]
        except UnsoundCheckpoint:
            continue
        return ([best] if best in steps else []) + newest_first
    return newest_first


class Checkpoints:
    """The checkpoints of a run being trained: saved in the background, the newest few and the best kept."""

    def __init__(self, directory: Path, keep: int):
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._saving: Future[None] | None = None
        on_first_process(self._take_back_replaced)
        self._retention = _NewestAndBest(keep)
        self._manager = ocp.CheckpointManager(
            directory,
            options=ocp.CheckpointManagerOptions(preservation_policy=self._retention, cleanup_tmp_directories=True),
        )

    def save(self, step: int, params: Any, training: Any, record: dict[str, Any], best_step: int | None) -> None:
        """Copies the arrays and returns; they are hashed and written while the run goes on.

        Several processes hash before they return, and write while the run goes on: what they compute together, as Orbax
        does too, has to come in the same order in all of them.

        Raises:
          Exception: what the save before this one has failed with.
        """
        self.wait()
        self._retention.best_step = best_step
        replaced = None
        if step in saved_steps(self._directory):  # by an interrupted validation; now with its result
            replaced = self._directory / f"replaced-{step}"
            on_first_process(lambda: (self._directory / str(step)).rename(replaced))
            self._manager.reload()
        record = record | {"step": step, "best_step": best_step}
        if jax.process_count() == 1:
            # On a CPU no copy: NumPy shares the memory, so the next step copies what it may not overwrite (tested).
            params, training = jax.device_get((params, training))
            self._saving = self._thread.submit(self._write, step, params, training, record, replaced)
        else:
            self._write(step, params, training, record, replaced)

    def check(self) -> None:
        """Raises what a save in the background has failed with, if it has."""
        if self._saving and self._saving.done():
            self._saving.result()

    def wait(self) -> None:
        """Waits until everything is on disk; raises what the save has failed with."""
        if self._saving:
            self._saving.result()
        self._manager.wait_until_finished()

    def _write(self, step: int, params: Any, training: Any, record: dict[str, Any], replaced: Path | None) -> None:
        record = record | {"digests": digests("params", params) | digests("training", training)}
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            training=ocp.args.StandardSave(training),
            record=ocp.args.JsonSave(record | {"record_digest": json_digest(record)}),
        )
        self._manager.save(step, args=items, force=True)
        if replaced or jax.process_count() == 1:
            self._manager.wait_until_finished()
        if replaced and is_first_process():
            shutil.rmtree(replaced)

    def restore_newest(self, params: Any, training: Any, check: Check = _any) -> tuple[Any, Any, dict[str, Any]] | None:
        """The newest sound step's params and training, numpy, and record, or None where nothing was saved yet.

        Args:
          params, training: templates, trees of jax.ShapeDtypeStruct.
          check: as of load_params.

        Raises:
          UserError: there are steps, but none is sound. Nothing is deleted.
        """
        steps, templates = saved_steps(self._directory), {"params": params, "training": training}
        step, found, record = next(_sound(self._directory, steps[::-1], templates, check), (-1, None, {}))
        if steps and not found:
            raise UserError(f"{self._directory}: none of its checkpoints is sound; nothing was deleted")
        self._set_aside_after(step)
        return (found[0], found[1], record) if found else None

    def close(self) -> None:
        """Waits until everything is on disk; raises what the last save has failed with."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._manager.close()

    def _take_back_replaced(self) -> None:
        """Finishes what a process killed while it saved a step again has left."""
        for path in self._directory.glob("replaced-*"):
            step = self._directory / path.name.removeprefix("replaced-")
            if step.exists():
                shutil.rmtree(path)
            else:
                path.rename(step)

    def _set_aside_after(self, step: int) -> None:
        """Renames later steps, damaged or half deleted, since the run will come to them again."""

        def rename() -> None:
            for path in list(self._directory.iterdir()):
                if path.name.isdecimal() and int(path.name) > step:
                    path.rename(_unused(self._directory / f"damaged-{path.name}"))

        on_first_process(rename)
        self._manager.reload()


def _unused(path: Path) -> Path:
    """The path, or where something has that name the first of path-2, path-3, ... that nothing has."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([path], others) if not candidate.exists())


class _NewestAndBest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest few steps and the best one."""

    def __init__(self, keep: int):
        self.keep = keep
        self.best_step: int | None = None

    def should_preserve(
        self,
        checkpoints: Sequence[ocp.checkpoint_managers.PolicyCheckpointInfo],
        *,
        context: ocp.checkpoint_managers.PreservationContext,
    ) -> list[bool]:
        del context
        newest = {info.step for info in sorted(checkpoints, key=lambda info: info.step)[-self.keep :]}
        return [info.step in newest or info.step == self.best_step for info in checkpoints]
