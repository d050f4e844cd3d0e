"""The program lingua-flax: its commands, logging on stderr, and an exit status for every way in which it can end."""

import errno
import keyword
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from lingua_flax.host.errors import Interrupted, RunError, UserError, is_disk_full
from lingua_flax.host.interruption import interruption
from lingua_flax.host.version import VERSION

COMMANDS = {  # each is the function of that name in the module of that name in lingua_flax.commands
    "import": "make a workdir of a network that others have trained",
    "build": "make a translator from parallel text, by the other commands",
    "train": "train a translator, or resume its training",
    "evaluate": "translate a split or a file and score the translations",
    "compare": "compare the runs of two systems, over seeds and sentences",
    "translate": "translate lines of text",
    "export": "write a folder with which other programs translate",
    "serve": "translate over HTTP, with a page in the browser",
    "clean": "mend parallel text, and leave out the pairs that do not match",
    "distill": "translate the training split, for a student to learn from",
    "verify-resume": "kill a run again and again, and compare it with an uninterrupted one",
}
# Errors that the user can correct, caused by a path.
_BAD_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST)


def main(command: str | None = None) -> int:
    """Runs a command on the process's arguments, which begin with its name if none is given; returns its status."""
    interruption.install()  # before imports that take time
    for needed in ("lingua_flax.model", "jax"):  # the first is a link, which some copies of the repository lack
        if not find_spec(needed):
            root = Path(__file__).parent.parent
            print(f"error: {needed} is missing, since this is not installed: pip install -e {root}", file=sys.stderr)
            return 2
    return run([command, *sys.argv[1:]] if command else sys.argv[1:])


def run(argv: Sequence[str]) -> int:
    """Runs the command that the first argument names on the others, and returns its exit status."""
    if argv[:1] == ["--version"]:
        print(f"lingua-flax {VERSION}")
        return 0
    if argv[:1] in (["--help"], ["-h"]):
        print("usage: lingua-flax COMMAND [OPTION ...]\n")
        print("\n".join(f"  {name:15}{purpose}" for name, purpose in COMMANDS.items()))
        print("\nlingua-flax COMMAND --help lists the options of a command.")
        return 0
    return exit_status(_execute, argv)


def _execute(argv: Sequence[str]) -> None:
    if not argv or argv[0] not in COMMANDS:
        what = f'unknown command "{argv[0]}"' if argv else "a command is required"
        raise UserError(f"{what}: one of {', '.join(COMMANDS)}")
    sys.argv[0] = f"lingua-flax {argv[0]}"  # for the usage line of --help
    name = function_name(argv[0])
    getattr(import_module(f"lingua_flax.commands.{name}"), name)(argv[1:])


def function_name(command: str) -> str:
    """Returns what the function of a command is called, and its module."""
    name = command.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def exit_status(command: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Runs a command on arguments, with logging on stderr, and returns the exit status for the way in which it ends."""
    from lingua_flax.host.logs import log_to_stderr  # late, because a signal during slow imports must be handled

    log_to_stderr()
    try:
        command(argv)
    except UserError as error:
        return _fail(2, str(error))
    except RunError as error:
        return _fail(1, str(error))
    except Interrupted as interrupted:
        if str(interrupted):
            print(interrupted, file=sys.stderr)
        return 128 + interrupted.signal_number
    except KeyboardInterrupt:  # at the prompt of translate
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of stdout, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # SIGPIPE, which Windows does not have
    except Exception as error:
        if is_disk_full(error):
            where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
            return _fail(1, f"the disk is full{where}; what was saved before is intact: make space and run this again")
        if isinstance(error, OSError) and error.errno in _BAD_PATH:
            return _fail(2, f"{error.filename}: {error.strerror}")
        raise
    return 0


def _fail(status: int, message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
