"""Several processes that make one run, on one host or many: JAX's distributed runtime connects them.

Every process executes the same program on the same data; what they compute together is laid out over the devices of
all. Files are written, and anything is shown, by the first process only.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from host.errors import Interrupted, RunError, UserError
from options.schema import ProcessOptions

# Seconds for which a process at its end waits for the others; without an error they come at once.
SHUTDOWN = 30
# Seconds after which one that does not answer counts as lost. What computes notices at once that a connection is gone;
# what waits for the others at a checkpoint does not, and is then ended by JAX itself, with a message of its own.
HEARTBEAT = 30


def join_processes(options: ProcessOptions, platform: str) -> None:
    """Connects this process with the others of its run, where there are any; called before the first array is made.

    Args:
      platform: what they compute on, as in devices.platform; a TPU pod is not asked for its hosts for "cpu" or "gpu".

    Raises:
      UserError: they could not be found.
    """
    # SIGTERM is host/interruption.py's.
    jax.config.update("jax_enable_preemption_service", False)
    if options.coordinator:
        _connect(
            f"--coordinator {options.coordinator}",
            coordinator_address=options.coordinator,
            num_processes=options.num_processes,
            process_id=options.process_id,
        )
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        _connect("SLURM")
    elif platform in ("auto", "tpu") and _may_be_a_pod():
        with contextlib.suppress(ValueError, OSError):  # a TPU by itself, or none
            _connect("the TPU pod")
    if jax.distributed.is_initialized():
        # What the communication library for CPUs prints on standard output goes elsewhere.
        sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding)
        os.dup2(2, 1)


def _connect(how: str, **arguments: Any) -> None:
    try:
        jax.distributed.initialize(**arguments, heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=SHUTDOWN)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the processes of this run could not be connected by {how}: {reason}") from error


def _may_be_a_pod() -> bool:
    """Whether there may be a TPU here with others beside it; a Colab TPU says in its environment that it has none."""
    if not importlib.util.find_spec("libtpu"):
        return False
    hosts = os.environ.get("TPU_PROCESS_ADDRESSES", os.environ.get("TPU_WORKER_HOSTNAMES"))
    slices = int(os.environ.get("MEGASCALE_NUM_SLICES", "1"))
    return hosts is None or "," in hosts or slices > 1


def is_first_process() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def check_single_process(reason: str) -> None:
    """Raises UserError where there are several processes."""
    if jax.process_count() > 1:
        raise UserError(f"there are {jax.process_count()} processes, and {reason}")


def on_first_process(action: Callable[[], object]) -> None:
    """The first process does it, while all others wait at this place; for what is on disk.

    Raises:
      UserError, RunError: in the others, where it failed; both end as the first one does, together or at once.
    """
    if jax.process_count() == 1:
        action()
        return
    multihost_utils.sync_global_devices("before")
    failure: Exception | None = None
    if is_first_process():
        try:
            action()
        except Exception as error:  # the others are told first: they would wait for half a minute
            failure = error
    kind = int(process_max(0 if failure is None else 1 if isinstance(failure, UserError) else 2))
    if kind:
        raise failure or (UserError, RunError)[kind - 1]("the first process could not go on; its own message says why")


def process_max(number: int) -> jax.Array | int:
    """The highest of the numbers that the processes give, without waiting for it: int() does.

    Each process has to ask as often as the others, and in the same order with all else that they compute.
    """
    if jax.process_count() == 1:
        return number
    own = np.full(len(jax.devices()), number, np.int32)
    numbers = jax.make_array_from_callback(own.shape, _each_device(), lambda index: own[index])
    return _max_over_devices(numbers)


@functools.cache
def _each_device() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()), "device"), PartitionSpec("device"))


@jax.jit
def _max_over_devices(numbers: jax.Array) -> jax.Array:
    return numbers.max()


def gather_to_host(tree: Any) -> Any:
    """Arrays on devices -> numpy, whole in every process, wherever their parts lie."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def check_equal_on_all_processes(what: str, value: str) -> None:
    """Raises UserError, in every process, where one of them has another value, a hexadecimal digest."""
    if jax.process_count() == 1:
        return
    digest = np.frombuffer(bytes.fromhex(value), np.uint8)
    for process, other in enumerate(multihost_utils.process_allgather(digest)):
        if not np.array_equal(other, digest):
            raise UserError(f"process {process} has another {what} than process {jax.process_index()}")


@contextlib.contextmanager
def distributed_session() -> Iterator[None]:
    """What a command does after the processes were joined: only the first of them writes on stdout and stderr.

    Where one fails, it says so and ends without waiting for the others, who wait for it in vain.

    Raises:
      RunError: one of the others has ended.
    """
    if jax.process_count() == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        if not is_first_process():
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        try:
            yield
        except Interrupted as interrupted:
            raise interrupted if is_first_process() else Interrupted(interrupted.signal_number) from None
        except UserError:
            raise
        except Exception as error:
            atexit.register(_leave)
            if isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) and _lost_another(str(error)):
                raise RunError(
                    f"process {jax.process_index()} lost another process of this run, whose own message says why; "
                    "start all of them again and the run goes on from its newest checkpoint"
                ) from error
            raise


def _lost_another(message: str) -> bool:
    return any(
        sign in message for sign in ("Gloo", "Connection closed", "UNAVAILABLE", "DEADLINE_EXCEEDED", "heartbeat")
    )


def _leave() -> None:
    """Ends the process before JAX would wait for the others."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)
