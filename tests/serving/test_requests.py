"""Who may ask the server what, and what it answers to valid and invalid requests.

A request of requests.json has a `path`, may have a `method` and a `type`, and one of `json`, `form`, `multipart` and
`body`. `answer` is that of the real LibreTranslate, which was recorded. `here` is the status here where it is another
one on purpose (docs/guides/serving.md), `exactly` what is answered here, and `says` a part of the error. In `exactly`,
{one} stands for the best translation of one, {one}' for the second, {one}'' for the third, and [one] for its links.
"""

import asyncio
import dataclasses
import json
import re
import urllib.parse
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import jax
import pytest
import requests
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI
from starlette.responses import JSONResponse

from lingua_flax.options.language_codes import language_code
from lingua_flax.options.schema import DataConfig
from lingua_flax.serving.guard import Guard
from lingua_flax.serving.languages import detect, languages, served
from lingua_flax.serving.web_server import ConnectionLimits
from lingua_flax.translation.word_alignment import align_translations, pharaoh, word_links
from tests.helpers.servers import (
    JSON,
    OPTIONS,
    later,
    metric,
    network,
    raw,
    request,
    serving_with,
    translate,
    translation,
    until,
)

TABLE = Path(__file__).with_name("requests.json")


def send(url, asked):
    """Returns status, type, JSON and headers of an answer."""
    parts = {name: (None, str(value)) for name, value in asked.get("multipart", {}).items()}
    content = {"json": asked.get("json"), "data": asked.get("form", asked.get("body")), "files": parts or None}
    method = asked.get("method", "GET" if all(value is None for value in content.values()) else "POST")
    headers = {"Content-Type": asked["type"]} if "type" in asked else {}
    answer = requests.request(method, url + asked["path"], headers=headers, **content)
    kind = answer.headers.get("content-type", "").partition(";")[0]
    is_json = kind == "application/json" and answer.text
    return answer.status_code, kind, answer.json() if is_json else None, answer.headers


def is_alike(one, other):
    """Returns whether two JSON values have the same fields and types."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return all(is_alike(own, each) for own in one for each in other)
    return type(one) is type(other)


def filled(value):
    """Returns an answer with translations and links."""
    if isinstance(value, dict):
        return {name: filled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each) for each in value]
    if not isinstance(value, str):
        return value
    text = re.sub("{(.*?)}('*)", lambda match: translation(match[1], len(match[2])), value, flags=re.DOTALL)
    return re.sub(r"\[(.*?)\]", lambda match: links(match[1]), text, flags=re.DOTALL)


def links(text):
    """Returns the links of the words of a text, line by line."""
    translations = network().translate(text.split("\n"), OPTIONS)
    found, sources, targets = [], 0, 0
    for own, of_line in zip(translations, align_translations(network(), translations), strict=True):
        found += [(sources + i, targets + j) for i, j in word_links(of_line, own.source, own.text)]
        sources, targets = sources + len(own.source.split()), targets + len(own.text.split())
    return pharaoh(found)


def test_requests_are_answered_as_libretranslate_does(url, engine):
    engine.translator = Mock(wraps=engine.translator)
    for asked in json.loads(TABLE.read_text(encoding="utf-8")):
        status, kind, content, headers = send(url, asked)
        real = asked.get("answer", {})
        assert status == asked.get("here", real.get("status")), asked
        if "here" not in asked and real["status"] < 404:  # the real server's other errors are HTML
            assert kind == real["type"], asked
            assert "content" not in real or is_alike(content, real["content"]), asked
        assert content == filled(asked.get("exactly")) or "exactly" not in asked, asked
        assert "says" not in asked or asked["says"] in content["error"], asked
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert "Access-Control-Allow-Origin" not in headers
    assert {call.args[0] for call in engine.translator.call_args_list} == {("en", "fr")}


def test_forms_and_query_strings_are_utf_8(url):
    """Clients such as curl -d do not escape it."""
    for text in ("à l'été", "%C3%A0+l'%C3%A9t%C3%A9"):
        body = f"q={text}&source=en&target=fr".encode()
        assert request(url, "/translate", body)[:2] == (200, {"translatedText": translation("à l'été")})
    query = "/translate?q=one&source=en&target=fr&alternatives=1"
    both = {"translatedText": translation("one"), "alternatives": [translation("one", 1)]}
    assert request(url, query, method="POST")[1] == both


def test_all_texts_of_a_form_are_translated(url):
    fields = [("q", "one"), ("q", "two"), ("source", "en_US"), ("target", "FR-ca")]
    query = urllib.parse.urlencode(fields)
    answers = [request(url, "/translate", query.encode()), request(url, f"/translate?{query}", method="POST")]
    expected = {"translatedText": [translation("one"), translation("two")]}
    assert [answer[:2] for answer in answers] == [(200, expected)] * 2
    files = [(name, (None, value)) for name, value in fields]
    assert requests.post(f"{url}/translate", files=files).json() == expected


IN_LANGUAGES = {
    "pt pt_BR pt-BR por": "Onde fica a estação?",
    "zh zh_Hant zho yue": "火車站在哪裡？",
    "de deu-AT gsw tlh xx_Latn": "Wo isch de Bahnhof?",
}


@pytest.mark.parametrize(("codes", "text"), IN_LANGUAGES.items())
def test_languages_are_recognized_whatever_codes_they_have(codes, text):
    """What the detector does not know is at least not surely in the other language, or it would not be translated."""
    for source in codes.split():
        own = languages(DataConfig(name="text", source_language=source, target_language="en", train_source="x.tsv"))
        assert [each["language"] for each in detect(text, own)] == [source, "en"]
        assert detect("The station is here, I think.", own)[0]["language"] == "en"
        assert served(own, source.upper().replace("_", "-")) == source
        assert served(own, f"{language_code(source)}-001") == source


def test_what_is_neither_a_form_nor_json_is_refused(url, engine):
    no_form = (400, {"error": "Invalid form or query string"})
    for text in (b"\xe0", b"%E0", b"&" * 1200):  # Latin-1, and too many fields
        assert request(url, "/translate", b"source=en&target=fr&q=" + text)[:2] == no_form
    for charset, text in (("unicode_escape", r"\ud800"), ("utf-7", "+2AA-")):
        fields = {"q": text, "source": "en", "target": "fr"}.items()
        parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
        kind = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
        assert request(url, "/translate", f"{''.join(parts)}--b--\r\n".encode(), **kind)[:2] == no_form
    assert request(url, "/translate", b'{"q": "\\ud800", "source": "en", "target": "fr"}', **JSON)[0] == 400
    with serving_with(engine, limits=ConnectionLimits(100, body=10_000)) as other:
        for glossary in ("[" * 3000, '{"\\ud800": "one"}'):
            form = urllib.parse.urlencode({"q": "one", "source": "en", "target": "fr", "glossary": glossary})
            answer = (400, {"error": "Invalid request: glossary: Invalid JSON format"})
            assert request(other, "/translate", form.encode())[:2] == answer


def test_failure_of_a_batch_fails_only_its_requests(url, search, monkeypatch):
    broken = dataclasses.replace(network(), params=jax.tree.map(lambda leaf: leaf * float("nan"), network().params))
    with monkeypatch.context() as patch:
        patch.setattr(search.real, "_translator", broken)
        assert translate(url)[:2] == (500, {"error": "the text could not be translated"})
    assert translate(url)[0] == 200


def test_requests_are_counted(url):
    translate(url)
    translate(url, ["one", "two"])
    translate(url, target="xx")
    request(url, "/some/where")
    assert metric(url, 'requests_total{path="/translate",status="200"}') == 2
    assert metric(url, 'requests_total{path="/translate",status="400"}') == 1
    assert metric(url, 'requests_total{path="other",status="404"}') == 1
    assert metric(url, 'request_seconds_count{path="/translate"}') == 3
    assert metric(url, "batch_sentences_sum") == 3


def test_languages_of_a_network_for_several():
    mixture = ({"target_language": "fr"}, {"source_language": "de", "target_language": "en"})
    first = {"name": "multi30k", "source_language": "en", "target_language": "de"}
    data = DataConfig(**first, tag_target=True, mixture=mixture)
    assert [language.model_dump() for language in languages(data)] == [
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "fr", "name": "French", "targets": []},
    ]


def test_client_packages_work_unchanged(url):
    api = LibreTranslateAPI(url)
    assert api.translate("one", "en", "fr") == translation("one")
    assert api.detect("Elle a mangé une pomme.")[0] == {"confidence": 100.0, "language": "fr"}
    english, french = {"code": "en", "name": "English"}, {"code": "fr", "name": "French"}
    assert api.languages() == [english | {"targets": ["fr"]}, french | {"targets": []}]
    assert request(url, "/frontend/settings")[1]["language"] == {"source": english, "target": french}  # for its page
    client = LibreTranslator(source="en", target="fr", api_key="any", custom_url=f"{url}/")
    assert client.translate_batch(["one", "two"]) == [translation("one"), translation("two")]


def test_foreign_hosts_and_origins_are_refused(url, search):
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
        search.batches.clear()
        answer = request(url, "/translate", {"q": "one", "source": "en", "target": "fr"}, **headers)
        assert answer[0] == status, headers
        assert len(search.batches) == (status == 200)


def test_cluster_asks_by_any_name(url, search):
    def ready():
        return request(url, "/readyz", Host="10.0.0.7:8000")[:2]

    assert ready() == (200, {"status": "ok"})
    assert request(url, "/livez", {}, Host="10.0.0.7:8000")[0] == 403
    assert raw(url, b"GET /metrics HTTP/1.1\r\nHost: 10.0.0.7\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    search.may_go_on.clear()
    answers = [later(translate, url, "a")]
    until(lambda: search.batches)
    answers += [later(translate, url, "b") for _ in range(6)]
    until(lambda: ready() == (503, {"status": "too many requests are waiting"}))
    assert request(url, "/livez", Host="10.0.0.7:8000")[0] == 200
    search.may_go_on.set()
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


def test_paths_and_methods(engine):
    with serving_with(engine, root_path="mt/") as url:
        for path, status in (("/mt/languages", 200), ("/languages", 200), ("/mt", 404), ("/mt/mt/languages", 404)):
            assert request(url, path)[0] == status
        for path in ("/languages", "/health", "/docs", "/metrics"):
            answer = raw(url, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert answer.endswith(b"\r\n\r\n")
        assert request(url, "/translate")[:2] == (405, {"error": "Method Not Allowed"})


def test_documentation_describes_requests(url):
    paths = request(url, "/openapi.json")[1]["paths"]
    assert request(url, "/spec")[1]["paths"] == paths
    bodies = {path: paths[path]["post"]["requestBody"]["content"] for path in ("/translate", "/detect", "/inspect")}
    assert "$ref" not in json.dumps(bodies)
    assert [len(content) for content in bodies.values()] == [2, 2, 1]  # as JSON and as forms
    schemas = [content["application/json"]["schema"] for content in bodies.values()]
    assert [schema["required"] for schema in schemas] == [["q", "source", "target"], ["q"], ["q"]]
    assert schemas[2]["properties"]["heads_off"]["items"]["required"] == ["attention", "layer", "head"]
