"""Asks the real LibreTranslate what libretranslate.json asks, and stores its answers there.

LibreTranslate is installed into an environment of its own (`pip install libretranslate`; 1.3 GB with a torch for CPUs,
which it does not use here). It translates in both directions with one network, exported by `lingua-flax export --format
ctranslate2`, as what it says is of no interest, and takes each text for a single sentence, since it would download what
divides them.

Run from the repository root:
  python -m tests.serving.libretranslate --python ENVIRONMENT/bin/python --export FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter, Retry

from lingua_flax.commands.main import exit_status

TABLE = Path(__file__).with_suffix(".json")
PATIENCE = 300  # seconds until the server answers
LONGEST = 2000  # characters of JSON that the table contains
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


def ask(url: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns status, type and JSON of the answer to a request of the table.

    A request has a `path`, may have a `method` and a `type`, and one of `json`, `form`, `multipart` and `body`. Where
    the status of Lingua Flax is another one on purpose (docs/guides/serving.md), it is `here`.
    """
    parts = {name: (None, str(value)) for name, value in asked.get("multipart", {}).items()}
    content = {"json": asked.get("json"), "data": asked.get("form", asked.get("body")), "files": parts or None}
    method = asked.get("method", "GET" if all(value is None for value in content.values()) else "POST")
    headers = {"Content-Type": asked["type"]} if "type" in asked else {}
    with requests.Session() as session:
        session.mount(url, HTTPAdapter(max_retries=Retry(PATIENCE, backoff_factor=1, backoff_max=1)))
        answer = session.request(method, url + asked["path"], headers=headers, **content)
    kind = answer.headers.get("content-type", "").partition(";")[0]
    is_stored = kind == "application/json" and 0 < len(answer.text) < LONGEST
    return {"status": answer.status_code, "type": kind} | ({"content": answer.json()} if is_stored else {})


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
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), folder)
        start = [options.python.absolute(), "-c", START, *packages, "--port", str(port), *OPTIONS]
        process = subprocess.Popen(start, env=environment, cwd=folder)
        try:
            table = json.loads(TABLE.read_text(encoding="utf-8"))
            for asked in table:
                asked["answer"] = ask(f"http://127.0.0.1:{port}", asked)
        finally:
            process.terminate()
            process.wait()
    lines = ",\n".join(json.dumps(asked, ensure_ascii=False) for asked in table)
    TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
