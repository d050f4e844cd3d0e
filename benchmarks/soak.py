"""Mixed traffic for long, some of it of clients that leave: wrong and lost answers, and the memory of the server.

Run from the repository root:
  python -m benchmarks.soak --workdir checkpoints/tiny --input FILE [--minutes 30]
A request has 1, 3, 10 or 40 lines; of one in five, the client closes its connection within a second.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serving import Client, Server, load, report, translated
from lingua_flax.commands.main import exit_status
from lingua_flax.data.text_files import read_lines
from lingua_flax.options.config_files import read_workdir_config


class LeavingClient(Client):
    """A client that gives up some of its requests."""

    def translate(self, lines: Sequence[str], expected: Sequence[str]) -> None:
        """Sends some of the lines, and reads the answer or closes the connection."""
        count = random.choice([1, 3, 10, len(lines)])
        if random.random() > 0.2:
            super().translate(lines[:count], expected[:count])
            return
        self.send(lines[:count])
        time.sleep(random.random())
        self.close()


def command(argv: Sequence[str]) -> None:
    """Sends requests, and prints once a minute what became of them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--minutes", type=int, default=30)
    options = parser.parse_args(argv)
    data = read_workdir_config(options.workdir).data
    pairs = translated(options.workdir, list(read_lines(options.input)))
    server = Server(options.workdir, [])
    clients = [LeavingClient(server.port, (data.source_language, data.target_language)) for _ in range(16)]

    def watch() -> None:
        for minute in range(1, options.minutes + 1):
            time.sleep(60)
            report(f"{minute} min, {server.memory / 2**20:.0f} MiB", clients, 60 * minute)

    load(clients, pairs, 40, watch)
    server.process.terminate()
    print(f"exit status {server.process.wait()}")


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
