"""Networks of the Hugging Face hub, which a server on this machine stands in for, with the protocol of its library."""

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.helpers.commands import succeed
from tests.helpers.marian import write_folder

NAME, COMMIT = "someone/opus-mt-en-de", "0" * 40


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Serves a folder as NAME; returns the environment in which its library asks this server, and what it was asked."""
    folder = write_folder(tmp_path_factory.mktemp("hub") / "folder")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            path = self.path.partition("?")[0]
            if path in (f"/api/models/{NAME}/tree/{at}" for at in ("main", COMMIT)):
                tree = [{"type": "file", "path": name, "size": len(own), "oid": "0"} for name, own in files.items()]
                self.answer(json.dumps(tree).encode())
            elif path in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/main"):
                siblings = [{"rfilename": name} for name in files]
                self.answer(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode())
            elif (content := files.get(path.rpartition("/")[2])) and path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
                self.answer(content)
            else:
                self.answer(b'{"error": "Repository not found"}', 404)

        do_HEAD = do_GET

        def answer(self, content: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", "application/json")
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_TELEMETRY": "1"}
    own |= {
        "HF_HOME": str(tmp_path_factory.mktemp("hf")),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    yield os.environ | own, asked
    server.shutdown()


def test_network_is_downloaded_by_its_name(hub, run, tmp_path):
    environment, asked = hub
    succeed(run, "import", NAME, "--workdir", tmp_path / "w", env=environment)
    origin = json.loads((tmp_path / "w" / "origin.json").read_text(encoding="utf-8"))
    assert (origin["name"], origin["license"]) == (NAME, "cc-by-4.0")
    assert not [path for path in asked if path.endswith("pytorch_model.bin")]
    refused = run("import", "someone/else", "--workdir", tmp_path / "x", env=environment)
    assert refused.returncode == 2
    assert "error: someone/else: not downloaded from the Hugging Face hub" in refused.stderr
