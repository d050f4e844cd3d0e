"""LibreTranslate's protocol: the answers of the real server, and what its clients send."""

import json
from urllib.parse import urlencode

import pytest
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from tests.serving.libretranslate import TABLE, ask
from tests.serving.servers import JSON, request

REQUESTS = json.loads(TABLE.read_text(encoding="utf-8"))


def is_alike(one, other):
    """Returns whether two JSON values have the same fields and types."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return all(is_alike(own, each) for own in one for each in other)
    return type(one) is type(other)


@pytest.mark.parametrize("asked", REQUESTS, ids=lambda asked: json.dumps(asked)[:70])
def test_answers_are_like_those_of_the_real_server(url, asked):
    answer, real = ask(url, asked), asked["answer"]
    assert answer["status"] == asked.get("here", real["status"])
    if "here" not in asked and real["status"] < 404:  # the real server's other errors are HTML
        assert answer["type"] == real["type"]
        assert is_alike(answer.get("content"), real.get("content"))


POST = '<p>one <a href="https://x.org/@two" class="mention">@<span>two</span></a> &amp; three<br>four</p>'
TRANSLATED = POST.replace("one", "ONE").replace(">two", ">TWO").replace("three", "THREE").replace("four", "FOUR")


def test_mastodon_is_answered(url):
    """It asks which languages there are, and sends the HTML of a post with its warning and the options of its poll."""
    assert request(url, "/languages", **JSON)[1][0]["targets"] == ["fr"]
    body = {"q": [POST, "<p></p>", "five"], "source": "auto", "target": "fr", "format": "html", "api_key": None}
    status, answer, _ = request(url, "/translate", body)
    assert (status, answer["translatedText"]) == (200, [TRANSLATED, "<p></p>", "FIVE"])
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en"] * 3


def test_discourse_is_answered(url):
    """It has the language of a post detected, and sends it as a form."""
    detected = request(url, "/detect", urlencode({"q": "one three four", "api_key": "k"}).encode())[1][0]["language"]
    body = {"q": POST, "source": detected, "target": "fr", "format": "html", "api_key": "k"}
    assert request(url, "/translate", urlencode(body).encode())[1] == {"translatedText": TRANSLATED}


def test_weblate_is_answered(url):
    """It sends the strings of a component, earlier versions each by itself as a form."""
    assert [language["code"] for language in request(url, "/languages")[1]] == ["en", "fr"]
    body = {"api_key": "", "q": ["one %s", "two\n"], "source": "en", "target": "fr"}
    assert request(url, "/translate", body)[1] == {"translatedText": ["ONE %S", "TWO\n"]}
    assert request(url, "/translate", urlencode(body | {"q": "one"}).encode())[1] == {"translatedText": "ONE"}


def test_clients_in_javascript_are_answered(url):
    """The packages libretranslate, which asks for languages first and misspells the key, and translate."""
    assert {"en", "fr"} == {language["code"] for language in request(url, "/languages", **JSON)[1]}
    body = {"q": "one", "source": "auto", "target": "fr"}
    assert request(url, "/translate", body | {"format": "text", "apiKey": ""})[1]["translatedText"] == "ONE"
    assert request(url, "/translate", body | {"source": "en"})[1]["translatedText"] == "ONE"


def test_page_of_libretranslate_is_answered(url):
    """It sends forms of several parts, and knows each language that it is told of."""
    settings, languages = (ask(url, {"path": path})["content"] for path in ("/frontend/settings", "/languages"))
    codes = {language["code"] for language in languages}
    assert codes >= {target for language in languages for target in language["targets"]}
    assert codes >= {side["code"] for side in settings["language"].values()}
    fields = {"q": "The cat was tired.", "source": "auto", "target": "fr", "format": "text", "alternatives": 3}
    answer = ask(url, {"path": "/translate", "multipart": fields | {"api_key": ""}})["content"]
    assert answer["translatedText"] == "THE CAT WAS TIRED."
    assert answer["detectedLanguage"] == {"confidence": 100.0, "language": "en"}


def test_client_packages_work_unchanged(url):
    api = LibreTranslateAPI(url)
    assert api.translate("one", "en", "fr") == "ONE"
    assert api.detect("Elle a mangé une pomme.")[0] == {"confidence": 100.0, "language": "fr"}
    english = {"code": "en", "name": "English", "targets": ["fr"]}
    assert api.languages() == [english, {"code": "fr", "name": "French", "targets": []}]
    client = LibreTranslator(source="en", target="fr", api_key="any", custom_url=f"{url}/")
    assert client.translate("two") == "TWO"
    assert client.translate_batch(["one", "two"]) == ["ONE", "TWO"]
