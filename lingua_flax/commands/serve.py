"""The command serve: a server that speaks LibreTranslate's protocol."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lingua_flax.commands.translator_command import LineOptions
from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command
from lingua_flax.host.malloc import release_freed_memory
from lingua_flax.options import schema
from lingua_flax.options.command_line import Command, Given, refuse, required_workdir
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.export_formats import check_exportable

if TYPE_CHECKING:
    from lingua_flax.serving.app import Server
    from lingua_flax.serving.continuous_search import ContinuousSearch, Shape
    from lingua_flax.serving.engine import Engine
    from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)

SEARCH = {*schema.SearchOptions.model_fields, "batch_size"}  # of the options of decoding
CHECKPOINTS_IN_MEMORY = 4  # besides the one that is served
CHECKPOINT_SECONDS = 2.0  # between looks for a first checkpoint


class ServeCommand(Command, LineOptions, schema.CheckpointOptions, schema.SearchOptions, schema.AlignmentOptions):
    """Serves translations over HTTP, with LibreTranslate's protocol; /docs describes the interface."""

    workdir: schema.Run
    """Folder of the run, or of a build for its student; without a checkpoint, the server waits for the first one."""
    host: str = "127.0.0.1"
    """Address to listen on; by default only this machine can connect."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    allowed_host: tuple[str, ...] = ()
    """Further host names under which the server may be addressed, without ports."""
    engine: Literal["jax", "ctranslate2"] = "jax"
    """jax translates as the command translate does. ctranslate2, to which the server exports the network at its start,
    cannot run every network (see lingua-flax export), and divides scores by length^alpha."""
    quantization: schema.Quantization = "float32"
    """ctranslate2: type of the matrices."""
    device: Literal["cpu", "gpu", "tpu"] = "cpu"
    """Kind of device; a training run may be using the others."""
    batch_size: schema.PositiveInt | None = None
    """Number of sentences translated together; by default 512 on accelerators, and on CPUs 64 divided by the number of
    cores, of which at most 4 count (ctranslate2: 32). With fewer, the server compiles fewer programs, but translates
    more slowly under load."""
    max_texts: schema.PositiveInt = 64
    """Number of texts in a request."""
    max_characters: schema.PositiveInt = 5000
    """Length of a text."""
    max_waiting: schema.PositiveInt = 1_048_576
    """Tokens times beams that may wait. A request is answered with status 503 if it would have to wait for more than
    that, of each other request for as much as it costs itself, and with 413 if it costs more by itself."""
    timeout: schema.PositiveFloat = 30.0
    """Seconds after which a request of which nothing was translated is given up with status 504."""
    admin_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port for /livez, /readyz and /metrics, which are not answered on the other one then."""
    root_path: str = ""
    """Path such as /mt with which all others may begin, for a reverse proxy that does not remove it."""

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        decoding = read_workdir_config(required_workdir(given)).decoding
        return decoding.model_dump(include=SEARCH)

    def check(self, given: Given) -> None:
        if not all(map(importlib.util.find_spec, ("fastapi_offline", "uvicorn", "selectolax", "lxml", "polib"))):
            raise UserError(f"lingua-flax serve needs the extra serve: {install_command('serve')}")
        if self.engine == "jax":
            refuse(given, ["quantization"], "with --engine jax, only with ctranslate2")
            return
        if not importlib.util.find_spec("ctranslate2"):
            raise UserError(f"--engine ctranslate2 needs the extra export: {install_command('export')}")
        if self.device != "cpu":
            raise UserError(f"--engine ctranslate2 computes on the CPU; leave out --device {self.device}")
        check_exportable("ctranslate2", read_workdir_config(self.workdir).model)


def serve(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = ServeCommand.read(argv)
    host, *_ = hosts = [name.strip("[]") for name in (options.host, *options.allowed_host)]
    config = read_workdir_config(options.workdir)
    from lingua_flax.devices.compilation import set_up_compilation
    from lingua_flax.devices.platform import initialize_devices
    from lingua_flax.serving.app import Server, make_app
    from lingua_flax.serving.guard import LOOPBACK, Guard
    from lingua_flax.serving.languages import languages
    from lingua_flax.serving.protocol import Limits
    from lingua_flax.serving.web_server import ConnectionLimits, WebServer, listen, max_connections

    initialize_devices(options.device)
    set_up_compilation()
    limits = Limits(options.max_texts, options.max_characters)
    server = Server(languages(config.data), limits, max_waiting=options.max_waiting, timeout=options.timeout)
    app = make_app(server, functools.partial(load, options), options.workdir)
    guarded = Guard(app, server.metrics, hosts=hosts, admin_port=options.admin_port, root_path=options.root_path)
    if host not in LOOPBACK:
        reached = "other machines can connect, by the names given with --allowed-host, and nothing asks for a password"
        log.warning("listening on %s: %s", host, reached)
    listener = listen(host, options.port)
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, listener.getsockname()[1])
    listeners = [listener, *([listen(host, options.admin_port)] if options.admin_port else [])]
    # Four bytes of UTF-8, each escaped as three characters in a form.
    largest = 12 * options.max_texts * options.max_characters + 4096
    process = WebServer(guarded, server.stop, ConnectionLimits(max_connections(), largest))
    server.on_failure = process.stop
    process.run(sockets=listeners)  # after SIGTERM or Ctrl-C it passes the signal on
    if server.failure:
        raise server.failure


def load(options: ServeCommand, server: Server) -> Engine:
    """Loads the network and compiles its programs; waits until there is a checkpoint."""
    from lingua_flax.runs.checkpoint import saved_steps
    from lingua_flax.runs.workdir import Workdir
    from lingua_flax.serving.continuous_search import ContinuousSearch, shapes
    from lingua_flax.serving.engine import Engine
    from lingua_flax.serving.inspector import inspected
    from lingua_flax.translation.batched_search import num_concurrent_programs
    from lingua_flax.translation.translator import Translator

    checkpoints = Workdir(options.workdir).checkpoints
    if not saved_steps(checkpoints):
        server.report(f"waiting for the first checkpoint in {checkpoints}")
    while not saved_steps(checkpoints):
        time.sleep(CHECKPOINT_SECONDS)
    server.report("loading the network")
    config = read_workdir_config(options.workdir)
    data, devices = config.data, config.devices.compute.model_copy(update={"platform": options.device})

    def load_checkpoint(checkpoint: str) -> dict[str, Translator]:
        """Returns a translator into each target language."""
        own = options.applied_to(Translator.load(options.workdir, checkpoint, devices))
        if data.tag_target:
            return {language: own.into(*data.direction_into(language)) for language in data.target_languages}
        return {data.target_language: own}

    translators = load_checkpoint(options.checkpoint)
    decoding = schema.DecodingOptions(**options.model_dump(include=SEARCH))
    load_other = functools.lru_cache(CHECKPOINTS_IN_MEMORY)(load_checkpoint)
    server.inspector = functools.partial(inspected, translators, load_other, decoding)
    first, *_ = translators.values()  # the others have the same programs
    programs = num_concurrent_programs(first.mesh)
    if options.engine == "ctranslate2":
        from lingua_flax.serving.ctranslate2_search import load_ctranslate2

        server.report("exporting")
        exported = load_ctranslate2(first, decoding, options.quantization, programs)
        return Engine(translators, exported, decoding, options, programs)
    server.report("compiling the first program")
    # On a CPU, parts of a batch are faster side by side than the whole.
    rows = decoding.batch_size or min(first.batch_size, 8 * math.ceil(first.batch_size / programs / 8))
    step_seconds = server.metrics.step_seconds
    searcher = ContinuousSearch(
        first, decoding, rows, lambda steps, seconds: step_seconds.observe(seconds / max(1, steps))
    )
    small, *others = shapes(rows, first.max_length)
    searcher.compile(small)
    threading.Thread(target=_compile, args=(searcher, others), daemon=True).start()
    return Engine(translators, searcher, decoding, options, programs)


def _compile(searcher: ContinuousSearch, shapes: Sequence[Shape]) -> None:
    """Compiles the other programs, behind traffic that the first ones serve."""
    started = time.monotonic()
    for shape in shapes:
        searcher.compile(shape)
    release_freed_memory()
    log.info("all programs are compiled, after %.0f s", time.monotonic() - started)
