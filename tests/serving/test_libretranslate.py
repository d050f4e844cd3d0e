"""LibreTranslate's protocol: the recorded answers of the real server, and what its clients send.

A request of libretranslate.json has a `path`, may have a `method` and a `type`, and one of `json`, `form`, `multipart`
and `body`. Where the status here is another one on purpose (docs/guides/serving.md), it is `here`.
"""

import json
from pathlib import Path

import requests
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from tests.helpers.servers import request

TABLE = Path(__file__).with_name("libretranslate.json")


def ask(url, asked):
    """Returns status, type and JSON of an answer."""
    parts = {name: (None, str(value)) for name, value in asked.get("multipart", {}).items()}
    content = {"json": asked.get("json"), "data": asked.get("form", asked.get("body")), "files": parts or None}
    method = asked.get("method", "GET" if all(value is None for value in content.values()) else "POST")
    headers = {"Content-Type": asked["type"]} if "type" in asked else {}
    answer = requests.request(method, url + asked["path"], headers=headers, **content)
    kind = answer.headers.get("content-type", "").partition(";")[0]
    return answer.status_code, kind, answer.json() if kind == "application/json" and answer.text else None


def is_alike(one, other):
    """Returns whether two JSON values have the same fields and types."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return all(is_alike(own, each) for own in one for each in other)
    return type(one) is type(other)


def test_answers_are_like_those_of_the_real_server(url):
    for asked in json.loads(TABLE.read_text(encoding="utf-8")):
        status, kind, content = ask(url, asked)
        real = asked["answer"]
        assert status == asked.get("here", real["status"]), asked
        if "here" not in asked and real["status"] < 404:  # the real server's other errors are HTML
            assert kind == real["type"], asked
            assert "content" not in real or is_alike(content, real["content"]), asked


def test_page_of_libretranslate_knows_each_language_that_it_is_told_of(url):
    settings, languages = (request(url, path)[1] for path in ("/frontend/settings", "/languages"))
    codes = {language["code"] for language in languages}
    assert codes >= {target for language in languages for target in language["targets"]}
    assert codes >= {side["code"] for side in settings["language"].values()}


def test_client_packages_work_unchanged(url):
    api = LibreTranslateAPI(url)
    assert api.translate("one", "en", "fr") == "ONE"
    assert api.detect("Elle a mangé une pomme.")[0] == {"confidence": 100.0, "language": "fr"}
    english = {"code": "en", "name": "English", "targets": ["fr"]}
    assert api.languages() == [english, {"code": "fr", "name": "French", "targets": []}]
    client = LibreTranslator(source="en", target="fr", api_key="any", custom_url=f"{url}/")
    assert client.translate_batch(["one", "two"]) == ["ONE", "TWO"]
