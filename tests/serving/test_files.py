"""Files by LibreTranslate's calls, as its page and libretranslate's clients make them: sent, translated, fetched."""

import re

import requests

from lingua_flax.documents import DOCUMENTS
from lingua_flax.serving import app, kept_files, web_server
from tests.helpers.archives import docx, packed, unpacked
from tests.helpers.servers import are_waiting, later, request, serving_with, translation, until

BODY = "<w:p><w:r><w:t>one </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>two</w:t></w:r></w:p>"


def send(url, content, name="letter.docx", target="fr", source="en", **headers):
    fields = {"source": source, "target": target, "api_key": "any"}
    return requests.post(f"{url}/translate_file", fields, files={"file": (name, content)}, headers=headers)


def test_files_are_translated(url):
    answer = send(url, docx(BODY))
    assert answer.status_code == 200
    address = answer.json()["translatedFileUrl"]
    assert re.fullmatch(rf"{url}/download_file/[\w-]{{22}}\.letter_fr\.docx", address)
    for _ in range(2):
        file = requests.get(address)
        text = unpacked(file.content)["word/document.xml"].decode()
        assert "".join(re.findall("<w:t[^>]*>([^<]*)</w:t>", text)) == translation("one two")
        assert file.headers["Content-Disposition"] == 'attachment; filename="letter_fr.docx"'
        assert file.headers["Content-Type"] == "application/octet-stream"
    other = send(url, docx(BODY)).json()["translatedFileUrl"]
    assert other != address
    assert requests.get(address.replace(".letter", "x.letter")).status_code == 404


def test_names_languages_and_addresses(url):
    settings = request(url, "/frontend/settings")[1]
    assert settings["filesTranslation"] is True
    assert set(settings["supportedFilesFormat"]) == {*DOCUMENTS, ".txt"}
    for name, kept in (
        ("../../Ünï x.TXT", "_n__x_fr.txt"),
        ("C:\\a\\b.srt", "b_fr.srt"),
        ('"\r\n;.html', "__fr.html"),
    ):
        address = send(url, b"1\n", name).json()["translatedFileUrl"]
        assert address.partition(".")[2].endswith(kept), name
        assert requests.get(address).status_code == 200
    french = "Elle a mangé une pomme et un chien dort dans la maison.".encode()
    assert requests.get(send(url, french, "a.txt", source="auto").json()["translatedFileUrl"]).content == french
    answer = send(url, b"one", "a.txt", Host="translator.example", **{"X-Forwarded-Proto": "https"}).json()
    assert answer["translatedFileUrl"].startswith("https://translator.example/download_file/")


def test_addresses_are_below_the_path_of_a_proxy(engine):
    with serving_with(engine, root_path="/mt") as url:
        address = send(f"{url}/mt", b"one", "a.txt").json()["translatedFileUrl"]
        assert address.startswith(f"{url}/mt/download_file/")
        assert requests.get(address).text == translation("one") + "\n"


def test_what_cannot_be_translated_is_refused(url, monkeypatch):
    for content, name, message in (
        (b"one", "letter.pdf", "the name of a file must end in .txt, .docx"),
        (b"one", "letter", "the name of a file must end"),
        (b"one", "letter.docx", "letter.docx: not a .docx file, damaged or encrypted"),
        (packed({"word/document.xml": "x" * 2**20}) * 2, "letter.docx", "letter.docx"),
        (docx("", **{"../a": "x"}), "letter.docx", "names lead out of it"),
    ):
        answer = send(url, content, name)
        assert answer.status_code == 400
        assert message in answer.json()["error"], name
    assert send(url, b"one", "a.txt", target="de").json() == {"error": "de is not supported"}
    assert send(url, b"one", "a.txt", target="").status_code == 400
    assert send(url, b"one", "a.txt", Origin="http://elsewhere.example").status_code == 403
    assert send(url, b"x" * 2**24, "a.txt").status_code == 413
    assert requests.post(f"{url}/translate", {"q": "x" * 3000}).status_code == 413
    monkeypatch.setattr(app, "MAX_FILES", 0)
    assert send(url, b"one", "a.txt").status_code == 503


def test_files_in_work_are_limited(url, search):
    search.may_go_on.clear()
    first = [later(send, url, b"one", "a.txt") for _ in range(app.MAX_FILES)]
    until(lambda: search.batches and are_waiting(url, *["one"] * (app.MAX_FILES - len(search.batches[0]))))
    assert send(url, b"one", "a.txt").status_code == 503
    search.may_go_on.set()
    assert {own.result().status_code for own in first} == {200}
    assert send(url, b"one", "a.txt").status_code == 200


def test_files_are_kept_for_some_time_and_up_to_some_size(url, monkeypatch):
    texts = ["one", "two", "three"]
    longest = max(len(f"{translation(text)}\n".encode()) for text in texts)
    monkeypatch.setattr(kept_files, "MAX_BYTES", longest)
    addresses = [send(url, text.encode(), "a.txt").json()["translatedFileUrl"] for text in texts]
    assert [requests.get(address).status_code for address in addresses] == [404, 404, 200]
    monkeypatch.setattr(kept_files, "MAX_SECONDS", 0.01)
    address = send(url, b"one", "a.txt").json()["translatedFileUrl"]
    until(lambda: requests.get(address).status_code == 404)


def test_only_files_may_be_large(engine):
    limits = web_server.ConnectionLimits(100, body=2000, files=5000)
    with serving_with(engine, limits=limits) as url:
        assert send(url, b"one" + b"\n" * 4000, "a.txt").status_code == 200
        assert send(url, b"one" + b"\n" * 6000, "a.txt").json() == {"error": "the request is larger than 5,000 bytes"}
        answer = requests.post(f"{url}/translate?x=/translate_file", {"q": "x" * 4000})
        assert answer.json() == {"error": "the request is larger than 2,000 bytes"}
