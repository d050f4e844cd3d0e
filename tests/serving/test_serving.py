"""The HTTP server: LibreTranslate's protocol, its limits and faults. Most tests replace the network by a function."""

import asyncio
import dataclasses
import http.client
import json
import re
import shutil
import socket
import threading
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from unittest.mock import Mock

import ctranslate2
import pytest
import tomli_w
from starlette.responses import JSONResponse

import lingua_flax.commands.serve
from lingua_flax.data.text_files import read_lines
from lingua_flax.export import ctranslate2_model
from lingua_flax.inspection.page_files import PAGE_FILES
from lingua_flax.options.schema import AlignmentOptions, DataConfig, DecodingOptions
from lingua_flax.serving import app
from lingua_flax.serving.ctranslate2_search import load_ctranslate2
from lingua_flax.serving.engine import Engine
from lingua_flax.serving.guard import Guard
from lingua_flax.serving.languages import languages
from lingua_flax.serving.web_server import ConnectionLimits
from lingua_flax.translation import parallel
from lingua_flax.translation.translator import Translator
from tests.conftest import PROMPTLY
from tests.processes import start_command
from tests.serving.servers import JSON, raw, request, serving, translate, until


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({}, {"translatedText": "ONE TWO"}),
        ({"q": ["one", "two"]}, {"translatedText": ["ONE", "TWO"]}),
        ({"q": "one\n\ntwo\r\n"}, {"translatedText": "ONE\n\nTWO\n"}),
        ({"alternatives": 2}, {"translatedText": "ONE TWO", "alternatives": ["ONE TWO'", "ONE TWO''"]}),
        ({"alternatives": 9}, {"translatedText": "ONE TWO", "alternatives": ["ONE TWO'", "ONE TWO''"]}),
        (
            {"source": "auto", "q": "Elle a mangé une pomme."},  # which is French already
            {
                "translatedText": "Elle a mangé une pomme.",
                "detectedLanguage": {"confidence": 100.0, "language": "fr"},
            },
        ),
        ({"q": ["a", "b"], "alternatives": "1"}, {"translatedText": ["A", "B"], "alternatives": [["A'"], ["B'"]]}),
        (
            {"source": "auto", "q": "The cat was tired."},
            {"translatedText": "THE CAT WAS TIRED.", "detectedLanguage": {"confidence": 100.0, "language": "en"}},
        ),
        ({"alignments": True}, {"translatedText": "ONE TWO", "alignments": "0-0 1-1"}),
        (
            {"q": ["a", "b c\n\nd"], "alignments": "true"},
            {"translatedText": ["A", "B C\n\nD"], "alignments": ["0-0", "0-0 1-1 2-2"]},
        ),
        ({"alignments": "0"}, {"translatedText": "ONE TWO"}),
        ({"q": "one zza\nzzb zza"}, {"translatedText": "ONE ZZA\nZZB ZZA", "unknownWords": ["zza", "zzb"]}),
        ({"q": ["one", "zza"]}, {"translatedText": ["ONE", "ZZA"], "unknownWords": [[], ["zza"]]}),
        (
            {"q": "<p title=zza>one</p><p>a <b>zzb</b></p>", "format": "html"},
            {
                "translatedText": '<p title="ZZA">ONE</p><p>A <b>ZZB</b></p>',
                "unknownWords": ["zza", "zzb"],
            },
        ),
        ({"format": None, "alternatives": "", "alignments": ""}, {"translatedText": "ONE TWO"}),
        ({"format": "text", "api_key": 3, "unknown": 3}, {"translatedText": "ONE TWO"}),
        ({"q": "<b>&amp;</b>"}, {"translatedText": "<B>&AMP;</B>"}),
    ],
)
def test_json_is_answered_as_libretranslate_does(url, options, answer):
    status, content, headers = translate(url, **options)
    assert (status, content) == (200, answer)
    assert headers["Content-Type"] == "application/json"
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "Access-Control-Allow-Origin" not in headers


def test_forms_and_query_strings_are_answered(url):
    assert request(url, "/translate", b"q=one+two&source=en&target=fr")[:2] == (200, {"translatedText": "ONE TWO"})
    query = "/translate?q=one&source=en&target=fr&alternatives=1"
    assert request(url, query, method="POST")[1] == {"translatedText": "ONE", "alternatives": ["ONE'"]}


@pytest.mark.parametrize("text", ["à l'été", "%C3%A0+l'%C3%A9t%C3%A9"])
def test_forms_are_utf_8(url, text):
    """Clients such as curl -d do not escape it."""
    body = f"q={text}&source=en&target=fr".encode()
    assert request(url, "/translate", body)[:2] == (200, {"translatedText": "À L'ÉTÉ"})


@pytest.mark.parametrize("text", [b"\xe0", b"%E0", b"&" * 1200])
def test_forms_that_are_invalid_are_refused(url, text):
    """Latin-1, or too many fields."""
    answer = request(url, "/translate", b"source=en&target=fr&q=" + text)
    assert answer[:2] == (400, {"error": "Invalid form or query string"})


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"q": ""}, 400, "Invalid request: missing q parameter"),
        ({"source": ""}, 400, "Invalid request: missing source parameter"),
        ({"target": None}, 400, "Invalid request: missing target parameter"),
        ({"q": ["one", 2]}, 400, "Invalid request: q: must be a text or a list of texts"),
        ({"source": 3}, 400, "Invalid request: source: input should be a valid string, got 3"),
        ({"source": "de"}, 400, "de is not supported"),
        ({"target": "de"}, 400, "de is not supported"),
        ({"source": "fr", "target": "en"}, 400, "en is not available as a target language from fr"),
        ({"format": "xml"}, 400, "Invalid request: format: input should be 'text' or 'html', got \"xml\""),
        (
            {"format": "html", "alignments": True},
            400,
            "Invalid request: alignments are those of words in a text, not in HTML",
        ),
        (
            {"glossary": {"one": "un"}},
            400,
            "Invalid request: a glossary needs a network with placeholders",
        ),
        ({"glossary": {" ": "un"}}, 400, "Invalid request: glossary"),
        ({"glossary": "one"}, 400, "Invalid request: glossary"),
        ({"alternatives": "many"}, 400, 'Invalid request: alternatives: must be a whole number, got "many"'),
        ({"alternatives": float("inf")}, 400, "alternatives: input should be a finite number, got inf"),
        ({"alternatives": -1}, 400, "alternatives: input should be greater than or equal to 0, got -1"),
        ({"alignments": "perhaps"}, 400, 'alignments: must be True or False, got "perhaps"'),
        ({"q": ["a"] * 5}, 413, "5 texts exceed the limit of 4"),
        ({"q": "a" * 101}, 413, "101 characters exceed the limit of 100"),
        ({"q": "a" * 3000}, 413, "larger than 2,000 bytes"),
        ({"q": "a\n" * 7}, 413, "7 tokens times beams exceed the limit of 6"),
    ],
)
def test_invalid_requests_are_refused(url, engine, options, status, message):
    answer = translate(url, **options)
    assert answer[0] == status
    assert message in answer[1]["error"]
    assert not engine.batches


def test_other_paths_and_methods_are_errors_too(url):
    assert request(url, "/other")[:2] == (404, {"error": "Not Found"})
    assert request(url, "/translate")[:2] == (405, {"error": "Method Not Allowed"})


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"text"', b'{"q": "\\ud800", "source": "en", "target": "fr"}'])
def test_invalid_json_is_refused(url, body):
    status, answer, _ = request(url, "/translate", body, **JSON)
    assert (status, answer) == (400, {"error": "Invalid JSON format"})


@pytest.mark.parametrize("glossary", ["[" * 3000, '{"\\ud800": "one"}'])
def test_invalid_json_in_a_form_is_refused(engine, glossary):
    limits = ConnectionLimits(100, body=10_000)
    with serving(lambda _: engine, limits=limits) as (server, url):
        until(lambda: server.status == "ok")
        form = urllib.parse.urlencode({"q": "one", "source": "en", "target": "fr", "glossary": glossary})
        answer = (400, {"error": "Invalid request: glossary: Invalid JSON format"})
        assert request(url, "/translate", form.encode())[:2] == answer


@pytest.mark.parametrize(("charset", "text"), [("unicode_escape", r"\ud800"), ("utf-7", "+2AA-")])
def test_forms_of_several_parts_that_are_no_text_are_refused(url, charset, text):
    fields = {"q": text, "source": "en", "target": "fr"}.items()
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
    kind = f"multipart/form-data; boundary=b; charset={charset}"
    answer = request(url, "/translate", f"{''.join(parts)}--b--\r\n".encode(), **{"Content-Type": kind})
    assert answer[:2] == (400, {"error": "Invalid form or query string"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "translator.example"}, 200),
        ({"Host": "LOCALHOST:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "[::2]:8000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
    ],
)
def test_foreign_hosts_and_origins_are_refused(url, engine, headers, status):
    answer = request(url, "/translate", {"q": "one", "source": "en", "target": "fr"}, **headers)
    assert answer[0] == status
    assert len(engine.batches) == (status == 200)


def test_cluster_asks_by_any_name(url, engine):
    for path in ("/livez", "/readyz"):
        assert request(url, path, Host="10.0.0.7:8000")[0] == 200
    assert request(url, "/livez", {}, Host="10.0.0.7:8000")[0] == 403
    assert raw(url, b"GET /metrics HTTP/1.1\r\nHost: 10.0.0.7\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    engine.may_go_on.clear()
    threads = [threading.Thread(target=translate, args=[url, text]) for text in ("a", *["b"] * 6)]
    for thread in threads:
        thread.start()
        until(lambda: engine.batches)
    until(lambda: request(url, "/readyz")[:2] == (503, {"status": "too many requests are waiting"}))
    assert request(url, "/livez")[0] == 200
    engine.may_go_on.set()
    for thread in threads:
        thread.join()
    assert request(url, "/readyz")[0] == 200


def test_admin_port_has_only_what_a_cluster_asks():
    guard = Guard(JSONResponse("found"), Mock(), hosts=[], admin_port=9000)

    def status(host, port, path):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", host)], "server": ("::1", port)}
        asyncio.run(guard(scope, None, send))
        return sent[0]["status"]

    assert status(b"localhost", 8000, "/livez") == 404
    assert status(b"10.0.0.7", 9000, "/livez") == 200
    assert status(b"localhost", 9000, "/languages") == 404
    assert status(b"localhost", 8000, "/languages") == 200


@pytest.mark.parametrize(
    ("path", "status"), [("/mt/languages", 200), ("/languages", 200), ("/mt", 404), ("/mt/mt/languages", 404)]
)
def test_paths_may_begin_with_the_root_path(engine, path, status):
    with serving(lambda _: engine, root_path="mt/") as (server, url):
        until(lambda: server.status == "ok")
        assert request(url, path)[0] == status


def test_head_is_answered_like_get(url):
    for path in ("/languages", "/health", "/docs", "/metrics"):
        answer = raw(url, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"\r\n\r\n")


def test_content_types_are_read_in_any_case(url):
    body = b'{"q": "one", "source": "en", "target": "fr"}'
    assert request(url, "/translate", body, **{"Content-Type": "Application/JSON; charset=UTF-8"})[0] == 200


def test_what_is_not_offered_is_answered(url):
    for path in ("/translate_file", "/suggest"):
        status, answer, _ = request(url, path, {})
        assert (status, answer) == (403, {"error": "Files and suggestions are disabled on this server."})
    assert request(url, "/frontend/settings")[1] == {
        "apiKeys": False,
        "charLimit": 100,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {"source": {"code": "en", "name": "English"}, "target": {"code": "fr", "name": "French"}},
        "suggestions": False,
        "supportedFilesFormat": [],
    }


def test_own_origin_is_accepted(url):
    """The server's own address, or that of a proxy in front of it, which sends requests to 127.0.0.1."""
    for origin in (url, "https://translator.example"):
        assert request(url, "/translate", {"q": "a", "source": "en", "target": "fr"}, Origin=origin)[0] == 200


def test_body_without_a_length_is_limited_too(url):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PROMPTLY)
    chunks = (b"q=" + b"a" * 1000 for _ in range(3))
    connection.request("POST", "/translate", chunks, {"Content-Type": "application/x-www-form-urlencoded"})
    assert connection.getresponse().status == 413


def test_requests_that_arrive_together_are_one_batch(url, engine):
    answers = {}

    def ask(text):
        answers[text] = translate(url, text)[1]["translatedText"]

    engine.may_go_on.clear()
    threads = [threading.Thread(target=ask, args=[f"line {number}"]) for number in range(6)]
    threads[0].start()
    until(lambda: engine.batches)
    for thread in threads[1:]:
        thread.start()
    until(lambda: waiting_lines(url) == 5)
    assert translate(url, ["a", "b"])[0] == 503
    engine.may_go_on.set()
    for thread in threads:
        thread.join()
    assert answers == {f"line {number}": f"LINE {number}" for number in range(6)}
    assert [len(batch) for batch in engine.batches] == [1, 5]


def metric(url, name):
    """Returns the value of a metric, given with its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PROMPTLY) as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[-1])


def waiting_lines(url):
    return metric(url, "lingua_flax_waiting_cost")


def test_engine_is_told_which_language_a_text_is_in(url, engine):
    for source in ("EN", "auto"):
        translate(url, "The cat was tired.", source=source)
    assert engine.directions == [("en", "fr")] * 2


def test_sentences_are_those_of_the_language_a_text_is_in(trained):
    """Not of the language in which another direction of the same network begins."""
    translator = Translator.load(trained[0])
    translators = {"en": dataclasses.replace(translator, languages=("en", "de"), translate_unknown=True)}
    engine = Engine(translators, Mock(), DecodingOptions(), AlignmentOptions(), workers=1)
    parts, _ = next(engine.searches(["Er kam am 3. Mai."], ("de", "en"), 1, None))
    assert [part.text for part in parts] == ["Er kam am 3. Mai."]


def test_requests_are_counted(url):
    translate(url)
    translate(url, ["one", "two"])
    translate(url, target="xx")
    request(url, "/some/where")
    assert metric(url, 'lingua_flax_requests_total{path="/translate",status="200"}') == 2
    assert metric(url, 'lingua_flax_requests_total{path="/translate",status="400"}') == 1
    assert metric(url, 'lingua_flax_requests_total{path="other",status="404"}') == 1
    assert metric(url, 'lingua_flax_request_seconds_count{path="/translate"}') == 3
    assert metric(url, "lingua_flax_batch_sentences_sum") == 3


def test_full_queue_says_when_to_try_again(url, engine):
    engine.may_go_on.clear()
    threads = [threading.Thread(target=translate, args=[url, text]) for text in ("a", "b", ["c"] * 4)]
    for number, thread in enumerate(threads):
        thread.start()
        until(lambda number=number: engine.batches and waiting_lines(url) == [0, 1, 5][number])
    status, answer, headers = translate(url, ["d"] * 4)
    assert (status, headers["Retry-After"]) == (503, "1")
    assert answer == {"error": "too many requests are waiting; try again later"}
    engine.may_go_on.set()
    for thread in threads:
        thread.join()


def test_client_that_goes_away_costs_nothing(url, engine):
    """Neither before its batch begins nor after; and it counts neither as an error nor as a success."""
    engine.may_go_on.clear()
    first = threading.Thread(target=translate, args=[url, "first"])
    first.start()
    until(lambda: engine.batches)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PROMPTLY)
    connection.request("POST", "/translate?q=abandoned&source=en&target=fr")
    until(lambda: waiting_lines(url) == 1)
    connection.close()
    until(lambda: waiting_lines(url) == 0)
    engine.may_go_on.set()
    first.join()
    assert translate(url, "last")[0] == 200
    assert engine.batches == [["first"], ["last"]]
    engine.may_go_on.clear()
    connection.request("POST", "/translate?q=under+way&source=en&target=fr")
    until(lambda: len(engine.batches) == 3)
    connection.close()
    until(lambda: metric(url, 'lingua_flax_requests_total{path="/translate",status="499"}') == 2)
    engine.may_go_on.set()
    until(lambda: engine.unwanted == ["under way"])


def test_deadline(engine):
    with serving(lambda _: engine, timeout=0.05) as (server, url):
        until(lambda: server.status == "ok")
        engine.may_go_on.clear()
        assert translate(url)[:2] == (504, {"error": "nothing was translated for 0.05 seconds"})
        engine.may_go_on.set()


def test_server_that_is_not_ready_says_so(engine):
    ready = threading.Event()

    def load(server):
        server.status = "compiling"
        ready.wait(PROMPTLY)
        return engine

    with serving(load) as (server, url):
        until(lambda: server.status == "compiling")
        assert request(url, "/health")[:2] == (503, {"status": "compiling"})
        assert translate(url)[:2] == (503, {"error": "the server is not ready: compiling"})
        assert request(url, "/inspect", {"q": "one"})[:2] == (503, {"error": "the server is not ready: compiling"})
        ready.set()
        until(lambda: request(url, "/health")[:2] == (200, {"status": "ok"}))
        assert translate(url)[0] == 200


def test_failure_of_a_batch_fails_only_its_requests(url, engine):
    right, engine.search = engine.search, lambda *_: [][1]
    assert translate(url)[:2] == (500, {"error": "the text could not be translated"})
    engine.search = right
    assert translate(url)[0] == 200


def test_documentation_needs_no_other_host(url):
    with urllib.request.urlopen(f"{url}/docs", timeout=PROMPTLY) as answer:
        page = answer.read().decode()
    files = re.findall('(?:href|src)="([^"]+)"', page)
    assert len(files) == 4
    assert "://" not in page
    for file in files:
        with urllib.request.urlopen(urllib.parse.urljoin(f"{url}/docs", file), timeout=PROMPTLY) as answer:
            assert answer.read()
    paths = request(url, "/openapi.json")[1]["paths"]
    assert set(paths) == {"/translate", "/inspect", "/detect", "/languages", "/health", "/frontend/settings"}
    assert request(url, "/spec")[1]["paths"] == paths


def test_addresses_in_pages_are_relative():
    """So that they work below any path of a proxy."""
    names = ("index.html", "api.js", "docs.html", "docs.js")
    assert not re.findall(r'["`]/\w+', "".join((PAGE_FILES / name).read_text("utf-8") for name in names))


def test_documentation_describes_requests(url):
    paths = request(url, "/openapi.json")[1]["paths"]
    bodies = {path: paths[path]["post"]["requestBody"]["content"] for path in ("/translate", "/detect", "/inspect")}
    assert "$ref" not in json.dumps(bodies)
    form = "application/x-www-form-urlencoded"
    assert [path for path, content in bodies.items() if form in content] == ["/translate", "/detect"]
    schemas = {path: content["application/json"]["schema"] for path, content in bodies.items()}
    assert {path: schema["required"] for path, schema in schemas.items()} == {
        "/translate": ["q", "source", "target"],
        "/detect": ["q"],
        "/inspect": ["q"],
    }
    assert schemas["/translate"]["properties"]["alternatives"]["minimum"] == 0
    assert schemas["/translate"]["properties"]["api_key"]["type"] == "string"
    assert schemas["/inspect"]["properties"]["heads_off"]["items"]["required"] == ["attention", "layer", "head"]


def test_languages_of_a_network_for_several():
    mixture = ({"target_language": "fr"}, {"source_language": "de", "target_language": "en"})
    first = {"name": "multi30k", "source_language": "en", "target_language": "de"}
    data = DataConfig(**first, tag_target=True, mixture=mixture)
    assert [language.model_dump() for language in languages(data)] == [
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "fr", "name": "French", "targets": []},
    ]


def test_stopping_server_answers_what_it_has_accepted(engine):
    answers = []
    with serving(lambda _: engine) as (server, url):
        until(lambda: server.status == "ok")
        engine.may_go_on.clear()
        threads = [threading.Thread(target=lambda: answers.append(translate(url)[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: engine.batches and waiting_lines(url) + len(engine.batches[0]) == 2)
        threading.Timer(0.0, lambda: (until(lambda: not accepts(url)), engine.may_go_on.set())).start()
    for thread in threads:
        thread.join()
    assert answers == [200, 200]


def test_requests_on_open_connections_are_refused_while_the_server_stops(engine):
    answers = []

    def ask_again():
        until(lambda: not accepts(url))
        connection.request("POST", "/translate", '{"q": "a", "source": "en", "target": "fr"}', JSON)
        answer = connection.getresponse()
        answers.append((answer.status, answer.headers["Connection"]))

    with serving(lambda _: engine, drain=2.0) as (server, url):
        until(lambda: server.status == "ok")
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/health")
        connection.getresponse().read()
        thread = threading.Thread(target=ask_again)
        thread.start()
    thread.join()
    assert answers == [(503, "close")]


def test_stopping_server_refuses_what_it_cannot_answer_in_time(engine, monkeypatch):
    monkeypatch.setattr(app, "FINISH_SECONDS", 0.1)
    answers = []
    with serving(lambda _: engine) as (server, url):
        until(lambda: server.status == "ok")
        engine.may_go_on.clear()
        thread = threading.Thread(target=lambda: answers.append(translate(url)[:2]))
        thread.start()
        until(lambda: engine.batches)
        threading.Timer(0.0, lambda: (thread.join(), engine.may_go_on.set())).start()
    assert answers == [(503, {"error": "the server is stopping"})]
    assert engine.unwanted == ["one two"]


@pytest.mark.parametrize(
    ("path", "parameters"),
    [("/inspect", {"q": "one"}), ("/translate", {"q": "one", "source": "en", "target": "fr", "alignments": True})],
)
def test_stopping_server_refuses_what_other_threads_compute(engine, monkeypatch, path, parameters):
    monkeypatch.setattr(app, "FINISH_SECONDS", 0.1)
    answers, is_computing, may_end = [], threading.Event(), threading.Event()

    def compute(*_):
        is_computing.set()
        may_end.wait(PROMPTLY)
        return []

    engine.align = compute
    with serving(lambda _: engine) as (server, url):
        server.inspector = compute
        until(lambda: server.status == "ok")
        thread = threading.Thread(target=lambda: answers.append(request(url, path, parameters)))
        thread.start()
        assert is_computing.wait(PROMPTLY)
        threading.Timer(0.0, lambda: (thread.join(), may_end.set())).start()
    ((status, answer, headers),) = answers
    assert (status, answer, headers["Retry-After"]) == (503, {"error": "the server is stopping"}, "1")


def test_batches_run_at_the_same_time(engine):
    engine.workers = 2
    engine.may_go_on.clear()
    with serving(lambda _: engine) as (server, url):
        until(lambda: server.status == "ok")
        threads = [threading.Thread(target=translate, args=(url, text)) for text in ("a", "b")]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            until(lambda number=number: len(engine.batches) == number)
        engine.may_go_on.set()
    for thread in threads:
        thread.join()
    assert engine.batches == [["a"], ["b"]]


def accepts(url):
    """Returns whether the server accepts connections."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=PROMPTLY).close()
    except ConnectionError:
        return False
    return True


def test_real_server_translates_as_translate_does(trained, run, tmp_path):
    """With a real network, in a real process, from its first checkpoint to SIGTERM."""
    workdir = tmp_path / "workdir"
    shutil.copytree(trained[0], workdir, ignore=shutil.ignore_patterns("checkpoints"))
    process = start_command("serve", "--workdir", workdir, "--port", 0, "--beam-size", 1, "--batch-size", 2)
    log = iter(process.stderr.readline, "")
    line = next(line for line in log if line.startswith("listening on "))
    url = line.split()[-1]
    assert next(log) == f"waiting for the first checkpoint in {workdir}/checkpoints\n"
    status, answer, _ = request(url, "/health")
    assert (status, answer) == (503, {"status": "waiting for the first checkpoint in checkpoints"})  # not where that is
    shutil.copytree(trained[0] / "checkpoints", tmp_path / "copied")
    (tmp_path / "copied").rename(workdir / "checkpoints")
    assert [next(log) for _ in range(3)] == ["loading the network\n", "compiling the first program\n", "ready\n"]
    assert next(log).startswith("all programs are compiled, after ")
    lines = ["one two three.", "nine.", "four " * 40, "", "seven eight.", "two nine. three zero.   five six."]
    expected = run("translate", "--workdir", workdir, "--beam-size", 1, input="".join(f"{line}\n" for line in lines))
    status, answer, _ = translate(url, lines)
    assert (status, answer["translatedText"]) == (200, expected.stdout.splitlines())
    assert translate(url, lines[2])[1] == {"translatedText": expected.stdout.splitlines()[2]}
    path = tmp_path / "links.txt"
    run("translate", "--workdir", workdir, "--beam-size", 1, "--alignments", path, input=f"{lines[0]}\n{lines[2]}\n")
    assert translate(url, [lines[0], lines[2]], alignments=True)[1]["alignments"] == path.read_text().splitlines()
    workdir.rename(tmp_path / "moved")
    status, answer, headers = request(url, "/run")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert answer["error"].startswith("workdir: not a workdir (there is no such folder)")
    assert str(tmp_path) not in str(answer)
    process.terminate()
    assert process.communicate()[1].endswith("stopped by SIGTERM\n")  # programs may have been compiled meanwhile
    assert process.returncode == 143


def test_host_that_does_not_exist_is_refused(trained, run):
    done = run("serve", "--workdir", trained[0], "--host", "nosuch.invalid")
    assert done.returncode == 2
    assert "cannot listen on nosuch.invalid" in done.stderr
    assert "Unknown error" not in done.stderr


def test_ipv6_address_may_have_brackets(trained, tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    workdir = shutil.copytree(trained[0], tmp_path / "w", ignore=shutil.ignore_patterns("checkpoints"))
    process = start_command("serve", "--workdir", workdir, "--port", 0, "--host", "[::1]")
    url = process.stderr.readline().split()[-1]  # without a warning that other machines can connect
    assert url.startswith("http://[::1]:")
    assert request(url, "/health")[0] == 503
    process.terminate()
    process.communicate()


def test_server_computes_in_the_precision_of_the_run(trained, tmp_path, monkeypatch):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    config = tomllib.loads((workdir / "config.toml").read_text(encoding="utf-8"))
    config["devices"]["precision"] = "bfloat16"
    (workdir / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    loaded = []

    class LoadedError(Exception):
        pass

    def load(workdir, checkpoint, devices):
        loaded.append(devices)
        raise LoadedError

    monkeypatch.setattr(Translator, "load", load)
    with pytest.raises(LoadedError):
        lingua_flax.commands.serve.load(lingua_flax.commands.serve.ServeCommand(workdir=workdir), Mock())
    assert [(devices.platform, devices.precision) for devices in loaded] == [("cpu", "bfloat16")]


def test_ctranslate2_translates_too(trained, run):
    lines = ["one two three.", "nine.", "", "four " * 40, "seven eight.", "two nine. Привет.   five six."]
    options = ("--workdir", trained[0], "--beam-size", 2, "--length-penalty", 0)
    expected = run("translate", *options, input="".join(f"{line}\n" for line in lines)).stdout.splitlines()
    process = start_command("serve", *options, "--port", 0, "--engine", "ctranslate2")
    log = [process.stderr.readline()]
    while log[-1] != "ready\n":
        log.append(process.stderr.readline())
    url = next(line.split()[-1] for line in log if line.startswith("listening on "))
    assert translate(url, lines)[:2] == (200, {"translatedText": expected})
    assert len(translate(url, alternatives=1)[1]["alternatives"]) == 1
    status, answer, _ = translate(url, ["nine."], alignments=True)
    assert (status, len(answer["alignments"])) == (200, 1)
    process.terminate()
    process.communicate()
    assert process.returncode == 143


def test_ctranslate2_computes_with_one_thread_a_worker(trained, monkeypatch):
    """Several threads of a product wait for each other on busy cores: 1 to 5 lines/s instead of 41 to 122."""
    given = []
    monkeypatch.setattr(ctranslate2, "Translator", lambda folder, **options: given.append(options))
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    options = lingua_flax.commands.serve.ServeCommand(workdir=trained[0], engine="ctranslate2")
    engine = lingua_flax.commands.serve.load(options, Mock())
    assert engine.workers == 2
    assert [(own["inter_threads"], own["intra_threads"]) for own in given] == [(2, 1)]


def test_ctranslate2_does_not_end_a_search_too_soon(trained, toy, monkeypatch):
    """It finds what it finds if many more hypotheses have to finish first, but for 1 of 100 lines at most."""
    lines = list(read_lines(toy.parent / "train.en"))[:200]
    options = DecodingOptions(beam_size=5, length_penalty=1.0)
    translator = Translator.load(trained[0])
    searches = translator.searches(lines, options, 1)
    parts, count = next(searches)
    searcher = load_ctranslate2(translator, options, "float32", workers=1)
    found = list(searcher.search(parts, count, lambda part: True))
    monkeypatch.setattr(ctranslate2_model, "PATIENCE", 10)
    patient = list(searcher.search(parts, count, lambda part: True))
    assert sum(one != other for one, other in zip(patient, found, strict=True)) <= len(found) / 100


def test_server_that_cannot_load_a_network_ends():
    ended = threading.Event()

    def load(server):
        server.on_failure = ended.set
        raise RuntimeError("no network")

    with serving(load) as (server, _):
        assert ended.wait(PROMPTLY)
        assert (server.status, str(server.failure)) == ("failed", "no network")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "ctranslate2", "--device", "gpu"], "computes on the CPU"),
        (["--quantization", "int8"], "--quantization has no effect with --engine jax"),
        (["--port", 70000], "port"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 8000 (Cannot assign requested address)\n"),
        (["--host", "host.invalid"], "ame"),  # "Name or service not known", "Temporary failure in name resolution"
        (["--checkpoint", "7", "--port", 0], "no checkpoint 7; saved: "),
        (["--device", "gpu"], "gpu"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(trained, run, options, message):
    result = run("serve", "--workdir", trained[0], *options)
    assert result.returncode == 2
    assert message in result.stderr
