"""What /translate answers to valid and invalid requests, by a server whose network is a function."""

import urllib.parse

from lingua_flax.options.schema import DataConfig
from lingua_flax.serving.languages import languages
from lingua_flax.serving.web_server import ConnectionLimits
from tests.helpers.servers import JSON, metric, request, serving_with, translate


def test_json_is_answered_as_libretranslate_does(url, engine):
    french, english = "Elle a mangé une pomme.", "The cat was tired."
    for options, answer in (
        ({"source": "EN"}, {"translatedText": "ONE TWO"}),
        ({"q": "one\n\ntwo\r\n"}, {"translatedText": "ONE\n\nTWO\n"}),
        ({"alternatives": 9}, {"translatedText": "ONE TWO", "alternatives": ["ONE TWO'", "ONE TWO''"]}),
        ({"q": ["a", "b"], "alternatives": "1"}, {"translatedText": ["A", "B"], "alternatives": [["A'"], ["B'"]]}),
        (
            {"source": "auto", "q": french},
            {"translatedText": french, "detectedLanguage": {"confidence": 100.0, "language": "fr"}},
        ),
        (
            {"source": "auto", "q": english},
            {"translatedText": english.upper(), "detectedLanguage": {"confidence": 100.0, "language": "en"}},
        ),
        (
            {"source": "auto", "q": "table"},  # French at 50 %, too little to leave it as it is
            {"translatedText": "TABLE", "detectedLanguage": {"confidence": 50.0, "language": "en"}},
        ),
        ({"alignments": True}, {"translatedText": "ONE TWO", "alignments": "0-0 1-1"}),
        (
            {"q": ["a", "b c\n\nd"], "alignments": "true"},
            {"translatedText": ["A", "B C\n\nD"], "alignments": ["0-0", "0-0 1-1 2-2"]},
        ),
        ({"q": "one zza\nzzb zza"}, {"translatedText": "ONE ZZA\nZZB ZZA", "unknownWords": ["zza", "zzb"]}),
        ({"q": ["one", "zza"]}, {"translatedText": ["ONE", "ZZA"], "unknownWords": [[], ["zza"]]}),
        (
            {"q": "<p title=zza>one</p><p>a <b>zzb</b></p>", "format": "html"},
            {"translatedText": '<p title="ZZA">ONE</p><p>A <b>ZZB</b></p>', "unknownWords": ["zza", "zzb"]},
        ),
        ({"format": None, "alternatives": "", "alignments": "0", "api_key": 3}, {"translatedText": "ONE TWO"}),
        ({"q": "<b>&amp;</b>"}, {"translatedText": "<B>&AMP;</B>"}),
    ):
        status, content, headers = translate(url, **options)
        assert (status, content) == (200, answer)
        assert headers["Content-Type"] == "application/json"
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert "Access-Control-Allow-Origin" not in headers
    assert set(engine.directions) == {("en", "fr")}


def test_forms_and_query_strings_are_utf_8(url):
    """Clients such as curl -d do not escape it."""
    for text in ("à l'été", "%C3%A0+l'%C3%A9t%C3%A9"):
        body = f"q={text}&source=en&target=fr".encode()
        assert request(url, "/translate", body)[:2] == (200, {"translatedText": "À L'ÉTÉ"})
    query = "/translate?q=one&source=en&target=fr&alternatives=1"
    assert request(url, query, method="POST")[1] == {"translatedText": "ONE", "alternatives": ["ONE'"]}


def test_what_is_neither_a_form_nor_json_is_refused(url, engine):
    for text in (b"\xe0", b"%E0", b"&" * 1200):  # Latin-1, and too many fields
        answer = request(url, "/translate", b"source=en&target=fr&q=" + text)
        assert answer[:2] == (400, {"error": "Invalid form or query string"})
    for charset, text in (("unicode_escape", r"\ud800"), ("utf-7", "+2AA-")):
        fields = {"q": text, "source": "en", "target": "fr"}.items()
        parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
        kind = f"multipart/form-data; boundary=b; charset={charset}"
        answer = request(url, "/translate", f"{''.join(parts)}--b--\r\n".encode(), **{"Content-Type": kind})
        assert answer[:2] == (400, {"error": "Invalid form or query string"})
    for body in (b"{", b"[1]", b'"text"', b'{"q": "\\ud800", "source": "en", "target": "fr"}'):
        for path in ("/translate", "/inspect"):
            assert request(url, path, body, **JSON)[:2] == (400, {"error": "Invalid JSON format"})
    with serving_with(engine, limits=ConnectionLimits(100, body=10_000)) as other:
        for glossary in ("[" * 3000, '{"\\ud800": "one"}'):
            form = urllib.parse.urlencode({"q": "one", "source": "en", "target": "fr", "glossary": glossary})
            answer = (400, {"error": "Invalid request: glossary: Invalid JSON format"})
            assert request(other, "/translate", form.encode())[:2] == answer


def test_invalid_requests_are_refused(url, engine):
    for options, status, message in (
        ({"q": ""}, 400, "Invalid request: missing q parameter"),
        ({"target": None}, 400, "Invalid request: missing target parameter"),
        ({"q": ["one", 2]}, 400, "Invalid request: q: must be a text or a list of texts"),
        ({"source": 3}, 400, "Invalid request: source: input should be a valid string, got 3"),
        ({"source": "de"}, 400, "de is not supported"),
        ({"target": "de"}, 400, "de is not supported"),
        ({"source": "fr", "target": "en"}, 400, "en is not available as a target language from fr"),
        ({"format": "html", "alignments": True}, 400, "alignments are those of words in a text, not in HTML"),
        ({"glossary": {"one": "un"}}, 400, "Invalid request: a glossary needs a network with placeholders"),
        ({"glossary": {" ": "un"}}, 400, "Invalid request: glossary"),
        ({"alternatives": "many"}, 400, 'alternatives: must be a whole number, got "many"'),
        ({"alternatives": -1}, 400, "alternatives: input should be greater than or equal to 0, got -1"),
        ({"q": ["a"] * 5}, 413, "5 texts exceed the limit of 4"),
        ({"q": "a" * 101}, 413, "101 characters exceed the limit of 100"),
        ({"q": "a" * 3000}, 413, "larger than 2,000 bytes"),
        ({"q": "a\n" * 7}, 413, "7 tokens times beams exceed the limit of 6"),
    ):
        answer = translate(url, **options)
        assert answer[0] == status
        assert message in answer[1]["error"]
    assert not engine.batches


def test_failure_of_a_batch_fails_only_its_requests(url, engine):
    right, engine.search = engine.search, lambda *_: [][1]
    assert translate(url)[:2] == (500, {"error": "the text could not be translated"})
    engine.search = right
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
