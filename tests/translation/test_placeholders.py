"""What must stay and the terms of glossaries are in every translation, whatever the network makes of placeholders.

The network is that of the toy corpus, in which some numbers are replaced by things, the same on both sides.
"""

import functools
import random
import re

import numpy as np
import pytest

from lingua_flax.commands import serve
from lingua_flax.data.glossary import Glossary
from lingua_flax.data.subword_sampling import SubwordSampler
from lingua_flax.data.tokenizer import load_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.inspection.attention_maps import attention_maps
from lingua_flax.inspection.interventions import inspect, inspection_of
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import ComputeConfig, DecodingOptions, TokenizerConfig
from lingua_flax.serving.protocol import Limits
from lingua_flax.serving.web_server import ConnectionLimits
from lingua_flax.training.given_tokenizer import given_tokenizer
from lingua_flax.translation.html_text import translate_html
from lingua_flax.translation.line_warnings import PREFIX_UNUSED, TRANSLATED_AROUND
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import align_translations, pharaoh, word_links
from tests.helpers import servers
from tests.helpers.commands import succeed
from tests.helpers.translation import decisive_translator
from tests.toy import ENGLISH, FRENCH

THINGS = ["https://example.org/?a=b.c", "{name}", "%1$s", "12345", "`x=1`", "me@example.org"]
COUNT = 3  # placeholders
BEAM = DecodingOptions(beam_size=2)


def lines_with_things(count, most, seed=1):
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        words = [draw.choice(ENGLISH) for _ in range(draw.randint(1, 4))]
        for thing in draw.sample(THINGS, draw.randint(0, most)):
            words.insert(draw.randint(0, len(words)), thing)
        lines.append(" ".join(words) + ".")
    return lines


@pytest.fixture(scope="module")
def placing(toy, run, tmp_path_factory):
    """Returns a workdir of a network with placeholders."""
    folder, names = tmp_path_factory.mktemp("placing"), dict(zip(ENGLISH, FRENCH, strict=True))
    sources = lines_with_things(700, 2, seed=0)
    words = [source.removesuffix(".").split() for source in sources]
    targets = [" ".join(names.get(word, word) for word in reversed(own)) + " !" for own in words]
    for name, lines in (("train.en", sources), ("train.fr", targets)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ("--data.train-source", folder / "train.en", "--data.train-target", folder / "train.fr")
    options = ("--tokenizer.placeholders", COUNT, "--tokenizer.vocab-size", 45, "--training.num-steps", 300)
    options += ("--training.eval-every", 0, "--training.checkpoint-every", 300)
    succeed(run, "train", "--config", toy, *files, *options, "--workdir", folder / "w")
    return folder / "w"


@pytest.fixture(scope="module")
def translator(placing):
    return Translator.load(placing, devices=ComputeConfig(padding="longest"))


def test_all_things_are_kept_once_whatever_their_number(translator, caplog):
    kept = ["https://example.org", "%s {a} %s 12345 {b}"]
    lines = [*kept, *lines_with_things(60, COUNT + 2), "two `a b. C d.` one."]
    translations = translator.translate(lines, BEAM, num_hypotheses=2)
    for line, translation in zip(lines, translations, strict=True):
        for hypothesis in translation.hypotheses:
            for thing in [*THINGS, "`a b. C d.`", "{a}", "{b}"]:
                assert hypothesis.text.count(thing) == line.count(thing)
            assert not re.search("[\U0010f000-\U0010ffff]", hypothesis.text)
    assert [translation.text for translation in translations[:2]] == kept
    assert TRANSLATED_AROUND in caplog.text  # at least those with more things than placeholders
    around = [translation for translation in translations if translation.hypotheses[0].parts]
    assert len(around) < 40  # others were placed by the network
    for translation in around:
        parts = " ".join(text for text, _ in translation.hypotheses[0].parts)
        assert "".join(parts.split()) == "".join(translation.source.split())


def test_a_prefix_is_used_as_soon_as_something_is_translated(translator, caplog):
    lines = ["12345", "", "12345. Two three.", "{name} %1$s 12345 me@example.org one.", "one {name} two."]
    prefixes = ["deux", "deux", "deux", "deux", "deux {name}"]
    kept, empty, second, around, placed = (line.text for line in translator.translate(lines, BEAM, prefixes=prefixes))
    assert (kept, empty) == ("12345", "")
    assert second.startswith("12345. deux")
    assert around.startswith("{name} %1$s 12345 me@example.org deux")
    assert placed.startswith("deux {name}")
    assert placed.count("{name}") == 1
    assert f"{PREFIX_UNUSED}: line 1\n" in caplog.text


def test_terms_of_a_glossary_are_placed(placing, run, tmp_path):
    lines = [re.sub(r"\bnine\b", "nine hundred", line) for line in [*lines_with_things(40, 1, seed=2), "Seven one."]]
    path = tmp_path / "terms.tsv"
    path.write_text("nine hundred\tneuf-cents\nseven\tSEPT\nnine\t9\n")
    options = ("--glossary", path, "--match-case", "--beam-size", 2, "--devices.padding", "longest")
    done = succeed(run, "translate", "--workdir", placing, *options, input="\n".join(lines))
    for line, text in zip(lines, done.stdout.splitlines(), strict=True):
        assert text.count("neuf-cents") == line.count("nine hundred")
        assert text.count("SEPT") == line.count("seven")
        assert "9" not in text.replace("12345", "")
    with pytest.raises(UserError, match="a glossary needs a network with placeholders"):
        decisive_translator().with_glossary(Glossary((("one", "un"),)))


def test_words_are_aligned_around_what_stays(translator):
    translations = translator.translate([f"{line} two `a b` one." for line in lines_with_things(20, 1)], BEAM)
    for line, links in zip(translations, align_translations(translator, translations), strict=True):
        words = word_links(links, line.source, line.text)
        assert words
        assert all(i < len(line.source.split()) and j < len(line.text.split()) for i, j in words)
        for link in links:
            for text, characters in ((line.source, link.source), (line.text, link.target)):
                token = text[slice(*characters)].strip()
                assert "`" not in token or token in ("`a b`", "`x=1`")  # never a part of it


def paragraph(line, draw):
    """Returns a line as HTML, with tags around some of its words."""
    return "<p>" + " ".join(f"<b>{word}</b>" if draw.random() < 0.3 else word for word in line.split(" ")) + "</p>"


def test_command_python_server_and_html_agree(placing, run, tmp_path, monkeypatch):
    """On translations, alignments and tags of 300 texts with things, terms, several sentences, and numbers alone."""
    draw, terms = random.Random(3), {"nine": "neuf-cents", "seven two": "SEPT"}
    singles = lines_with_things(500, 2, seed=3)
    lines = [draw.choice(["", "1. ", "- "]) + " ".join(singles[i : i + draw.choice([1, 1, 2])]) for i in range(300)]
    page = "".join(paragraph(line, draw) for line in lines)
    translator = Translator.load(placing).with_glossary(Glossary(tuple(terms.items())))
    prefixes = []
    firsts = [f"{'- ' * line.startswith('- ')}{single}" for line, single in zip(lines, singles, strict=False)]
    for own in translator.tokenizer.protect_text(firsts):
        is_placed = own.has_placeholders and own.has_words_around_spans
        prefixes.append(draw.choice(["", "deux", *[f"deux {span.kept}" for span in own.spans if is_placed]]))
    translations = translator.translate(lines, BEAM)
    texts = [translation.text for translation in translations]
    aligned = zip(translations, align_translations(translator, translations), strict=True)
    links = [pharaoh(word_links(own, line.source, line.text)) for line, own in aligned]
    tagged = translate_html(translator, page, BEAM)
    assert re.findall("<p>(.*?)</p>", re.sub("</?b>", "", tagged)) == texts

    for name, content in (("lines", lines), ("prefixes", prefixes), ("terms", map("\t".join, terms.items()))):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in content))
    command = ("translate", "--workdir", placing, "--beam-size", 2, "--glossary", tmp_path / "terms")
    files = ("--input", tmp_path / "lines", "--alignments", tmp_path / "links")
    assert succeed(run, *command, *files).stdout.splitlines() == texts
    assert (tmp_path / "links").read_text().splitlines() == links
    assert succeed(run, *command, "--format", "html", input=page).stdout.strip() == tagged
    begun = translator.translate(lines, BEAM, prefixes=prefixes)
    assert [line.text for line in begun] != texts
    done = succeed(run, *command, *files[:2], "--prefix-file", tmp_path / "prefixes")
    assert done.stdout.splitlines() == [line.text for line in begun]

    monkeypatch.setattr(serve, "_compile", lambda *_: None)  # the first program is enough
    monkeypatch.setattr(servers, "LIMITS", Limits(texts=len(lines), characters=100_000))
    options = functools.partial(serve.load, serve.ServeCommand(workdir=placing, beam_size=2))
    with servers.serving(options, limits=ConnectionLimits(1, 1 << 20), max_waiting=1_000_000) as (server, url):
        servers.until(lambda: server.status == "ok")
        answer = servers.translate(url, lines, glossary=terms, alignments=True)[1]
        assert (answer["translatedText"], answer["alignments"]) == (texts, links)
        assert servers.translate(url, page, format="html", glossary=terms)[1]["translatedText"] == tagged


def test_placeholders_are_shown_as_what_they_stand_for(translator):
    (translation,) = translator.translate(["one {name} two."], BEAM)
    maps = attention_maps(inspection_of(translator, translation), translator.tokenizer)
    answer = inspect(translator, "one {name} two.", BEAM).as_json(translator.tokenizer)
    assert "{name}" in maps.source_tokens
    for side in ("source", "target"):
        assert "{name}" in [token["piece"] for token in answer[side]]
    assert "{name}" in answer["translation"]


def test_sampled_segmentations_are_possible_ones(translator):
    tokenizer = translator.tokenizer
    lines = [tokenizer.protect(line).text for line in lines_with_things(30, COUNT)]
    best = SubwordSampler(tokenizer.source, alpha=50.0)  # practically always the best segmentation
    assert [best.sample(line, np.random.default_rng(0)) for line in lines] == tokenizer.source.encode(lines)


def test_placeholders_belong_to_the_tokenizer(placing, toy):
    def opened(placeholders):
        tokenizer = TokenizerConfig(model_file=placing / "tokenizer.model", placeholders=placeholders)
        return given_tokenizer(read_config(toy).model_copy(update={"tokenizer": tokenizer}), None)

    assert len(load_tokenizer(opened(0)).placeholders) == COUNT
    with pytest.raises(UserError, match=f"tokenizer.placeholders must be {COUNT} with it, not 5"):
        opened(5)
