"""Who may ask a server what, below which paths, and the documentation that it serves."""

import asyncio
import json
from unittest.mock import AsyncMock, Mock

from starlette.responses import JSONResponse

from lingua_flax.serving.guard import Guard
from tests.helpers.servers import later, raw, request, serving_with, translate, until


def test_foreign_hosts_and_origins_are_refused(url, engine):
    """An own origin is the server's address, or that of a proxy in front of it, which sends requests to 127.0.0.1."""
    for headers, status in (
        ({"Host": "evil.example"}, 403),
        ({"Host": "translator.example"}, 200),
        ({"Host": "LOCALHOST:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "[::2]:8000"}, 403),
        ({"Origin": url}, 200),
        ({"Origin": "https://translator.example"}, 200),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
    ):
        engine.batches.clear()
        answer = request(url, "/translate", {"q": "one", "source": "en", "target": "fr"}, **headers)
        assert answer[0] == status, headers
        assert len(engine.batches) == (status == 200)


def test_cluster_asks_by_any_name(url, engine):
    def ready():
        return request(url, "/readyz", Host="10.0.0.7:8000")[:2]

    assert ready() == (200, {"status": "ok"})
    assert request(url, "/livez", {}, Host="10.0.0.7:8000")[0] == 403
    assert raw(url, b"GET /metrics HTTP/1.1\r\nHost: 10.0.0.7\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    engine.may_go_on.clear()
    answers = [later(translate, url, "a")]
    until(lambda: engine.batches)
    answers += [later(translate, url, "b") for _ in range(6)]
    until(lambda: ready() == (503, {"status": "too many requests are waiting"}))
    assert request(url, "/livez", Host="10.0.0.7:8000")[0] == 200
    engine.may_go_on.set()
    assert {answer.result()[0] for answer in answers} == {200}


def test_admin_port_has_only_what_a_cluster_asks():
    guard = Guard(JSONResponse("found"), Mock(), hosts=[], admin_port=9000)
    for host, port, path, status in (
        (b"localhost", 8000, "/livez", 404),
        (b"10.0.0.7", 9000, "/livez", 200),
        (b"localhost", 9000, "/languages", 404),
        (b"localhost", 8000, "/languages", 200),
    ):
        send = AsyncMock()
        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", host)], "server": ("::1", port)}
        asyncio.run(guard(scope, None, send))
        assert send.call_args_list[0].args[0]["status"] == status


def test_paths_may_begin_with_the_root_path(engine):
    with serving_with(engine, root_path="mt/") as url:
        for path, status in (("/mt/languages", 200), ("/languages", 200), ("/mt", 404), ("/mt/mt/languages", 404)):
            assert request(url, path)[0] == status


def test_other_methods_and_paths_are_answered(url):
    for path in ("/languages", "/health", "/docs", "/metrics"):
        answer = raw(url, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"\r\n\r\n")
    assert request(url, "/other")[:2] == (404, {"error": "Not Found"})
    assert request(url, "/translate")[:2] == (405, {"error": "Method Not Allowed"})
    assert request(url, "/suggest", {})[:2] == (403, {"error": "Files and suggestions are disabled on this server."})


def test_documentation_describes_requests(url):
    paths = request(url, "/openapi.json")[1]["paths"]
    assert request(url, "/spec")[1]["paths"] == paths
    bodies = {path: paths[path]["post"]["requestBody"]["content"] for path in ("/translate", "/detect", "/inspect")}
    assert "$ref" not in json.dumps(bodies)
    assert [len(content) for content in bodies.values()] == [2, 2, 1]  # as JSON and as forms
    schemas = [content["application/json"]["schema"] for content in bodies.values()]
    assert [schema["required"] for schema in schemas] == [["q", "source", "target"], ["q"], ["q"]]
    assert schemas[2]["properties"]["heads_off"]["items"]["required"] == ["attention", "layer", "head"]
