"""Runs of several processes, on one host or many, connected by JAX's distributed runtime.

Every process executes the same program on the same data; arrays of joint computations are laid out over the devices of
all processes. Only the first process writes files and produces output.
"""

import atexit
import contextlib
import functools
import importlib.util
import inspect
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingua_flax.host.errors import Interrupted, RunError, UserError
from lingua_flax.options.schema import ProcessOptions

# Seconds that a process waits for the others when it exits; without an error all of them exit at the same time.
SHUTDOWN_TIMEOUT = 30
# Seconds without a sign of life from one process after which JAX ends the others: it is stopped, or its host is gone.
# If the first process is killed, they end at once; if another one is, their next joint computation fails.
HEARTBEAT_TIMEOUT = 30
START_TIMEOUT = 300  # seconds in which all processes of a run must have started
_LOST_CONNECTION = re.compile("Gloo|Connection closed|UNAVAILABLE|DEADLINE_EXCEEDED|heartbeat")
MAX_TEXT = 2000  # bytes of a text that other processes are told
Result = TypeVar("Result")

_failed_together = False  # whether all processes know that they end because one has failed


def join_processes(options: ProcessOptions, platform: str) -> None:
    """Connects this process to the others of its run, if any, before the first array is created.

    On the platforms "cpu" and "gpu", a TPU pod is not queried for its hosts. Raises UserError if it could not.
    """
    if jax.distributed.is_initialized():
        return
    if hasattr(jax.config, "jax_enable_preemption_service"):  # not in JAX 0.7
        jax.config.update("jax_enable_preemption_service", False)  # host/interruption.py handles SIGTERM
    if options.coordinator:
        _await_all_processes(options)
        _connect(f"--coordinator {options.coordinator}", options.coordinator, options.num_processes, options.process_id)
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        _connect("SLURM")
    elif platform in ("auto", "tpu") and _may_be_a_pod():
        with contextlib.suppress(ValueError, OSError):  # a single TPU host, or no TPU
            _connect("the TPU pod")
    if jax.distributed.is_initialized():
        # Gloo, which connects CPUs, prints on file descriptor 1: send that to standard error.
        sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding)
        os.dup2(2, 1)


def _await_all_processes(options: ProcessOptions) -> None:
    """Returns when all processes of the run have started, before JAX connects them at the same address.

    Raises UserError if one does not start, the port is in use or the address cannot be resolved: JAX would abort with
    C++ stacks, after five minutes, or crash.
    """
    assert options.coordinator
    assert options.num_processes
    where, (host, _, port) = f"--coordinator {options.coordinator}", options.coordinator.rpartition(":")
    deadline = time.monotonic() + START_TIMEOUT
    try:
        if options.process_id == 0:
            _await_others(int(port), options.num_processes, deadline)
        else:
            _report_to_first((host.strip("[]"), int(port)), options, deadline)
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
        raise UserError(f"{where}: {getattr(error, 'strerror', None) or error}; choose another one") from error


def _await_others(port: int, num_processes: int, deadline: float) -> None:
    missing = set(range(1, num_processes))
    with _listen(port) as server:
        while missing and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            with contextlib.suppress(OSError, ValueError):  # nobody came, or not a process of this run
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(5.0)
                    missing.discard(int(connection.recv(16) or -1))
                    connection.sendall(b"!")
                    connection.recv(1)  # the other side closes first: the port must be free for JAX at once
    if missing:
        raise UserError(
            f"{len(missing)} of {num_processes} processes have not started within {START_TIMEOUT} seconds "
            f"(number {', '.join(map(str, sorted(missing)))}); see their logs"
        )


def _listen(port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=dual)


def _report_to_first(address: tuple[str, int], options: ProcessOptions, deadline: float) -> None:
    while time.monotonic() < deadline:
        # Where hosts start at their own times, as in Kubernetes, neither its name nor its address need exist yet.
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=5.0) as connection:
            connection.sendall(str(options.process_id).encode())
            if connection.recv(1):
                return
        time.sleep(0.1)
    socket.getaddrinfo(*address)  # says so if it is the name that is not known
    raise UserError(
        f"process 0 has not answered at {options.coordinator} within {START_TIMEOUT} seconds; see its log, and whether "
        "this host can reach it"
    )


def _connect(method: str, address: str | None = None, size: int | None = None, rank: int | None = None) -> None:
    timeouts: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT_TIMEOUT}
    if "shutdown_timeout_seconds" in inspect.signature(jax.distributed.initialize).parameters:  # not in JAX 0.7
        timeouts["shutdown_timeout_seconds"] = SHUTDOWN_TIMEOUT
    try:
        jax.distributed.initialize(address, size, rank, **timeouts)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"could not connect the processes of this run through {method}: {reason}") from error


def _may_be_a_pod() -> bool:
    """Returns whether this machine may be one of several TPU hosts; a Colab TPU declares itself to be the only one."""
    if not importlib.util.find_spec("libtpu"):
        return False
    hosts = os.environ.get("TPU_PROCESS_ADDRESSES", os.environ.get("TPU_WORKER_HOSTNAMES"))
    slices = int(os.environ.get("MEGASCALE_NUM_SLICES", "1"))
    return hosts is None or "," in hosts or slices > 1


def is_first_process() -> bool:
    """Returns whether this process is the one that writes files and produces output."""
    return jax.process_index() == 0


def in_all_processes(action: Callable[[], Result]) -> Result:
    """Runs an action that has no joint computation in every process; if it fails in one of them, all end together.

    The processes in which it fails raise their error, and the others, which would wait for them until JAX aborts, a
    UserError or a RunError that repeats it.
    """
    if jax.process_count() == 1:
        return action()
    result: Result | None = None
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:  # raised only after the others know
        failure = error
    kind = type(failure) if isinstance(failure, UserError | Interrupted) else RunError
    message = "" if failure is None else f"{kind.__name__}:{getattr(failure, 'signal_number', '')}:{failure}"
    global _failed_together
    told = gather_texts(message)
    _failed_together = any(told)
    if failure:
        raise failure
    for process, text in enumerate(told):
        if text:
            name, signal_number, reason = text.split(":", 2)
            if name == "Interrupted":
                raise Interrupted(int(signal_number))
            raise {"UserError": UserError, "RunError": RunError}[name](f"process {process}: {reason}")
    return cast(Result, result)


def gather_texts(text: str) -> list[str]:
    """Returns the texts of all processes, each up to MAX_TEXT bytes; every process must call this."""
    own = np.frombuffer(text.encode(errors="backslashreplace")[:MAX_TEXT].ljust(MAX_TEXT, b"\0"), np.uint8)
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in multihost_utils.process_allgather(own)]


def on_first_process(action: Callable[[], object]) -> None:
    """Runs an action, such as a change of files, in the first process while the others wait, as `in_all_processes`."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("before")
    in_all_processes(lambda: action() if is_first_process() else None)


def process_max(number: int) -> jax.Array | int:
    """Returns the maximum of the processes' numbers without waiting for it; int() of the result waits.

    All processes must call this equally often, and in the same order relative to their other joint computations.
    """
    if jax.process_count() == 1:
        return number
    copies = np.full(len(jax.devices()), number, np.int32)
    return _max_over_devices(jax.make_array_from_callback(copies.shape, _one_number_per_device(), copies.__getitem__))


@functools.cache  # training asks for it at every step
def _one_number_per_device() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()), "device"), PartitionSpec("device"))


_max_over_devices = jax.jit(jnp.max)


def gather_to_host(tree: Any) -> Any:
    """Returns arrays, which may be sharded across processes, as complete numpy arrays; every process must call this."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def check_equal_on_all_processes(name: str, digest: str) -> None:
    """Raises UserError in every process unless all have the same digest, or text, of the value with this name."""
    if jax.process_count() == 1:
        return
    for process, other in enumerate(gather_texts(digest)):
        if other != digest:
            raise UserError(f"process {process} has a different {name} from process {jax.process_index()}")


def first_text_of_all(text: str) -> str:
    """Returns in every process the text of the first one whose text is not "", and its number; all must call this."""
    if jax.process_count() == 1:
        return text
    texts = enumerate(gather_texts(text))
    return next((f"{other} (process {process})" for process, other in texts if other), "")


@contextlib.contextmanager
def distributed_session() -> Iterator[None]:
    """Wraps what a command does once the processes are connected: only the first one writes to stdout and stderr.

    A process that fails with anything but a UserError or an interruption exits without waiting for the others. Raises
    RunError if the connection to one of them was lost.
    """
    if jax.process_count() == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        if not is_first_process():
            devnull = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(devnull))
            stack.enter_context(contextlib.redirect_stderr(devnull))
        try:
            yield
        except Interrupted as error:
            raise error if is_first_process() else Interrupted(error.signal_number) from None
        except UserError:
            raise
        except Exception as error:
            atexit.register(_exit_without_waiting)
            is_lost = isinstance(error, (jax.errors.JaxRuntimeError, ValueError))
            if not _failed_together and is_lost and _LOST_CONNECTION.search(str(error)):
                raise RunError(
                    f"process {jax.process_index()} lost another process of this run; see that process's error "
                    "message, then start all of them again to continue from the newest checkpoint"
                ) from error
            raise


def _exit_without_waiting() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)
