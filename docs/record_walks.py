"""Records which files a reader crosses from a command to the program that it compiles, by tracing the command.

Run from the repository root: python -m docs.record_walks [--root CHECKOUT] [--functions]

A walk ends when a compiled program is called: the training step for the third time, or the first one that translates.
It consists of the project's functions that are on the stack then, and of those that these have called until then; a
function and those that are defined in it count as one. The stack of a thread goes on with that of whoever started it or
submitted its task. What a library calls is not counted, be it a validator or the generator of a context manager. The
walk of the network consists of all functions that run while JAX traces the training step.

A file is left out, as a leaf, if the walk calls a single function of it, without passing through it to the program,
and that function calls none of another file: the walk can be followed without opening it.
"""

import argparse
import ast
import functools
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import jax

TRACER = Path(__file__).resolve()
ROOT = TRACER.parent.parent
STEP = "train_step"
ENDS = {"train.py": (STEP, 3), "translate.py": (".*", 1)}  # the name of the program, a pattern, and which of its calls
TRAINING = ["--training.num-steps", "3", "--training.tokens-per-batch", "256"]
SENTENCE = "I swam across the river to get to the other bank.\n"


def record(root: Path, output: Path, script: str) -> None:
    """Records the calls of the project's functions from now on, before it is imported; ends the process with a walk."""
    (program, left), tracing, step = ENDS[script], None, None
    calls: dict[Any, None] = {}  # (caller or None for a library, function), in the order in which they were first made
    network: dict[Any, None] = {}  # those of the thread in which JAX traces the step, meanwhile
    of_task = threading.local()
    jit, call, start, submit = jax.jit, jax.stages.Compiled.__call__, threading.Thread.start, ThreadPoolExecutor.submit

    @functools.cache
    def path_of(name: str) -> str:
        file = Path(name).resolve()  # lingua_flax/model is a link
        is_inside = file.is_relative_to(root) and file != TRACER and not name.startswith("<")
        return "" if (path := str(file.relative_to(root) if is_inside else ".")).startswith(".") else path  # .venv

    def function_of(frame: FrameType) -> tuple[str, str] | None:
        path = path_of(frame.f_code.co_filename)
        return (path, frame.f_code.co_qualname.split(".<locals>")[0]) if path else None

    def stack() -> list[tuple[str, str]]:
        functions = [function_of(frame) for frame, _ in traceback.walk_stack(sys._getframe())]
        return [*filter(None, functions), *getattr(of_task, "stack", [])]

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal tracing
        if frame.f_code is step and event in ("call", "return"):
            tracing = threading.get_ident() if event == "call" else None
        if event == "call" and (function := function_of(frame)):
            edge = (frame.f_back and function_of(frame.f_back), function)
            calls.setdefault(edge)
            if tracing == threading.get_ident():
                network.setdefault(edge)

    def call_program(name: str) -> None:
        nonlocal left
        left -= bool(re.fullmatch(program, name))
        if not left:
            walked = {"stack": stack(), "calls": [*calls], "network": [*network]}
            output.write_text(json.dumps({"program": name} | walked), encoding="utf-8")
            os._exit(0)

    def noticed_jit(function: Any = None, **options: Any) -> Any:
        nonlocal step
        if function is None:
            return functools.partial(noticed_jit, **options)
        code, jitted = getattr(function, "__code__", None), jit(function, **options)
        if not code or not path_of(code.co_filename):
            return jitted
        step = code if code.co_name == STEP else step

        @functools.wraps(function)
        def noticed(*arguments: Any, **named: Any) -> Any:
            if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named))):
                call_program(code.co_name)
            return jitted(*arguments, **named)

        vars(noticed).update({name: getattr(jitted, name) for name in ("eval_shape", "lower", "trace")})
        return noticed

    def noticed_call(compiled: Any, *arguments: Any, **named: Any) -> Any:
        call_program(compiled.runtime_executable().hlo_modules()[0].name.removeprefix("jit_"))
        return call(compiled, *arguments, **named)

    def with_stack(task: Any) -> Any:
        def task_with_stack(stack: Any, *arguments: Any, **named: Any) -> Any:
            of_task.stack = stack
            return task(*arguments, **named)

        return functools.partial(task_with_stack, stack())

    def noticed_start(thread: Any) -> None:
        thread.run = with_stack(thread.run)
        start(thread)

    def noticed_submit(pool: Any, task: Any, /, *arguments: Any, **named: Any) -> Any:
        return submit(pool, with_stack(task), *arguments, **named)

    patches: Any = [(jax, "jit", noticed_jit), (jax.stages.Compiled, "__call__", noticed_call)]
    patches += [(threading.Thread, "start", noticed_start), (ThreadPoolExecutor, "submit", noticed_submit)]
    for owner, name, noticed in patches:
        setattr(owner, name, noticed)
    threading.setprofile(on_event)
    sys.setprofile(on_event)


def record_walks(root: Path, scratch: Path) -> dict[str, dict[str, list[str]]]:
    """Returns the walks of a checkout, as in `walk`; trains a network to translate with if none comes with it."""
    environment = {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(scratch / "cache")}
    run = functools.partial(subprocess.run, env=os.environ | environment, cwd=scratch, check=True, stdout=sys.stderr)
    python, training = [sys.executable, "-P"], ["--config", root / "configs" / "tiny.toml", *TRAINING, "--workdir"]

    def recorded(script: str, *arguments: object) -> Any:
        output = scratch / f"{script}.json"
        run([*python, TRACER, "--record", root, output, script, *arguments], input=SENTENCE, text=True)
        record = json.loads(output.read_text(encoding="utf-8"))
        print(f"{script} was recorded until {record['program']} was called", file=sys.stderr)
        return record

    network = root / "checkpoints" / "phrasebook"
    if not network.exists():
        network = scratch / "network"
        run([*python, root / "train.py", *training, network])
    train, translate = recorded("train.py", *training, "run"), recorded("translate.py", "--workdir", network)
    return {
        "train": walk(train["calls"], train["stack"]),
        "network": walk(train["network"], None),
        "translate": walk(translate["calls"], translate["stack"]),
    }


def walk(calls: list[Any], stack: list[Any] | None) -> dict[str, list[str]]:
    """Returns the functions of a walk by their files: to the end of a stack or, if that is None, along all calls."""
    walked: dict[str, list[str]] = {}
    for caller, (file, name) in calls:
        if (stack is None or caller in stack or [file, name] in stack) and name not in walked.get(file, ()):
            walked.setdefault(file, []).append(name)

    def is_leaf(file: str) -> bool:
        (first, *others), reached = walked[file], []
        new = [[file, first]]
        while new:
            reached += new
            new = [function for caller, function in calls if caller in reached and function not in reached]
        return not others and all(other == file for other, _ in reached) and file not in dict(stack or ())

    return {file: names for file, names in walked.items() if not is_leaf(file)}


def as_list(root: Path, walked: dict[str, list[str]], *, functions: bool) -> str:
    """Returns a walk as a list in Markdown."""
    text, lines = "", []
    for number, (file, names) in enumerate(walked.items(), 1):
        code = (root / file).read_text(encoding="utf-8")
        lines.append(len(code.splitlines()))
        purpose = " ".join((ast.get_docstring(ast.parse(code)) or "").split())
        text += f"{number}. `{file}` ({lines[-1]} lines): {re.split('(?<=[.]) (?=[A-Z])', purpose)[0]}\n"
        text += f"   - {', '.join(names)}\n" if functions else ""
    return f"{text}\n{len(lines)} files, {sum(lines):,} lines; the longest {max(lines)}\n"


def main() -> None:
    """Prints the walks of a checkout."""
    parser = argparse.ArgumentParser(description="Prints which files a reader crosses, as lists in Markdown.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to trace, by default this one")
    parser.add_argument("--functions", action="store_true", help="list the functions of each file, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        walks = record_walks(options.root.resolve(), Path(scratch))
    for name, walked in walks.items():
        print(f"{name}:\n\n{as_list(options.root, walked, functions=options.functions)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        _, _, checkout, file, script, *arguments = sys.argv
        sys.argv = [str(Path(checkout, script)), *arguments]
        record(Path(checkout), Path(file), script)
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main()
