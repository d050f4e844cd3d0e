"""Asks the real LibreTranslate what tests/serving/libretranslate.json asks, and stores its answers there.

LibreTranslate is installed into an environment of its own (`pip install libretranslate`, 6 GB), and translates in both
directions with the network of a run, exported by `lingua-flax export --format ctranslate2`: what it says is of no
interest here. It takes each text for a single sentence, since it would download what divides them.

Run from the repository root:
  python benchmarks/libretranslate.py --python ENVIRONMENT/bin/python --export FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lingua_flax.commands.main import exit_status

TABLE = Path(__file__).parent.parent / "tests" / "serving" / "libretranslate.json"
PATIENCE = 300  # seconds
LONGEST = 2000  # bytes of JSON that the table contains
NAMES = {"en": "English", "fr": "French"}
START = """
import sys
from argostranslate import package, sbd
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
for path in sys.argv[1:3]:
    package.install_from_path(path)
from libretranslate.main import main
del sys.argv[1:3]
main()
"""
OPTIONS = ["--char-limit", "100", "--batch-limit", "4", "--disable-files-translation"]


def ask(url: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns status, type and JSON of the answer to a request of the table.

    A request has a `path`, may have a `method` and a `type`, and one of `json`, `form`, `multipart` and `body`. Where
    the status of Lingua Flax is another one on purpose (docs/guides/serving.md), it is `here`.
    """
    content, kind = request.get("body"), request.get("type")
    if "json" in request:
        content, kind = json.dumps(request["json"]), kind or "application/json"
    elif "form" in request:
        content, kind = urllib.parse.urlencode(request["form"]), "application/x-www-form-urlencoded"
    elif "multipart" in request:
        fields = request["multipart"].items()
        parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
        content, kind = f"{''.join(parts)}--x--\r\n", "multipart/form-data; boundary=x"
    data = None if content is None else content.encode()
    headers = {"Content-Type": kind} if kind else {}
    message = urllib.request.Request(url + request["path"], data, headers, method=request.get("method"))
    try:
        answer = urllib.request.urlopen(message, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        kind, text = answer.headers.get_content_type(), answer.read()
    own = {"status": answer.status, "type": kind}
    is_stored = kind == "application/json" and 0 < len(text) < LONGEST
    return own | ({"content": json.loads(text)} if is_stored else {})


def write_package(path: Path, export: Path) -> None:
    """Writes an exported network as a package of Argos Translate, the library that LibreTranslate translates with."""
    source, target = path.stem.split("_")
    metadata = {"package_version": "1.0", "argos_version": "1.9", "from_code": source, "to_code": target}
    names = {"from_name": NAMES[source], "to_name": NAMES[target]}
    with zipfile.ZipFile(path, "w") as package:
        package.writestr(f"{path.stem}/metadata.json", json.dumps(metadata | names))
        for file in export.iterdir():
            own = "sentencepiece.model" if file.suffix == ".model" else f"model/{file.name}"
            package.write(file, f"{path.stem}/{own}")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until a process accepts connections."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(1)
    raise SystemExit("LibreTranslate did not start")


def command(argv: Sequence[str]) -> None:
    """Asks, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--export", type=Path, required=True)
    options = parser.parse_args(argv)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        packages = [Path(folder) / f"{direction}.argosmodel" for direction in ("en_fr", "fr_en")]
        for path in packages:
            write_package(path, options.export)
        home = {"HOME": folder, "XDG_DATA_HOME": folder, "XDG_CACHE_HOME": folder, "XDG_CONFIG_HOME": folder}
        start = [options.python.absolute(), "-c", START, *packages, "--port", str(port), *OPTIONS]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = subprocess.Popen(start, env=environment | home, cwd=folder)
        try:
            wait_for(port, process)
            requests = json.loads(TABLE.read_text(encoding="utf-8"))
            for request in requests:
                request["answer"] = ask(f"http://127.0.0.1:{port}", request)
        finally:
            process.terminate()
            process.wait()
    lines = ",\n".join(json.dumps(request, ensure_ascii=False) for request in requests)
    TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
