"""Runs the program with each name and list of arguments, given as JSON; prints what is imported after each."""

import contextlib
import io
import json
import runpy
import sys


def run(name: str, *arguments: str) -> None:
    sys.argv[:] = ["lingua-flax", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_module("lingua_flax", run_name=name)


for name, *arguments in json.loads(sys.argv[1]):
    run(name, *arguments)
    print(json.dumps(sorted(sys.modules)))
