"""What must stay and the terms of glossaries are in every translation, whatever the network makes of placeholders.

The network is that of the toy corpus, in which some numbers are replaced by things, the same on both sides.
"""

import json
import random
import re

import numpy as np
import pytest

from lingua_flax.data.glossary import Glossary
from lingua_flax.data.subword_sampling import SubwordSampler
from lingua_flax.host.errors import UserError
from lingua_flax.inspection.attention_maps import attention_maps
from lingua_flax.inspection.interventions import inspect, inspection_of
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import PREFIX_UNUSED, TRANSLATED_AROUND, Translator
from lingua_flax.translation.word_alignment import align_translations, word_links
from tests.toy import ENGLISH, FRENCH

THINGS = ["https://example.org/?a=b.c", "{name}", "%1$s", "12345", "`x = 1`", "me@example.org"]
COUNT = 3  # placeholders


@pytest.fixture(scope="module")
def placing(toy, run, tmp_path_factory):
    """Returns a workdir of a network with placeholders."""
    folder, draw = tmp_path_factory.mktemp("placing"), random.Random(0)
    sources, targets = [], []
    for _ in range(700):
        numbers = [draw.randrange(10) for _ in range(draw.randint(1, 5))]
        things = draw.sample(THINGS, COUNT)
        words = [things.pop() if things and draw.random() < 0.2 else number for number in numbers]
        sides = [[word if isinstance(word, str) else names[word] for word in words] for names in (ENGLISH, FRENCH)]
        sources.append(" ".join(sides[0]) + ".")
        targets.append(" ".join(reversed(sides[1])) + " !")
    for name, lines in (("train.en", sources), ("train.fr", targets)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ("--data.train-source", folder / "train.en", "--data.train-target", folder / "train.fr")
    options = ("--tokenizer.placeholders", COUNT, "--tokenizer.vocab-size", 45, "--training.num-steps", 300)
    done = run("train", "--config", toy, *files, *options, "--workdir", folder / "w", "--training.eval-every", 0)
    assert done.returncode == 0, done.stderr
    return folder / "w"


@pytest.fixture(scope="module")
def translator(placing):
    return Translator.load(placing)


def lines_with_things(count, most, seed=1):
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        words = [draw.choice(ENGLISH) for _ in range(draw.randint(1, 4))]
        for thing in draw.sample(THINGS, draw.randint(0, most)):
            words.insert(draw.randint(0, len(words)), thing)
        lines.append(" ".join(words) + ".")
    return lines


def test_all_things_are_kept_once_whatever_their_number(placing, run):
    lines = [*lines_with_things(60, COUNT + 2), "https://example.org", "%s {a} %s 12345 {b}", "two `a b. C d.` one."]
    options = ("--json-lines", "--num-hypotheses", 2, "--devices.padding", "longest")
    done = run("translate", "--workdir", placing, *options, input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    for line, record in zip(lines, records, strict=True):
        for hypothesis in record["hypotheses"]:
            for thing in [*THINGS, "`a b. C d.`", "{a}", "{b}"]:
                assert hypothesis["text"].count(thing) == line.count(thing)
            assert not re.search("[\U0010f000-\U0010ffff]", hypothesis["text"])
    assert [record["hypotheses"][0]["text"] for record in records[60:62]] == lines[60:62]
    assert TRANSLATED_AROUND in done.stderr  # at least those with more things than placeholders
    around = [record for line, record in zip(lines, records, strict=True) if "sentences" in record["hypotheses"][0]]
    assert len(around) < 40  # others were placed by the network
    assert all("".join(part["source"] for part in record["hypotheses"][0]["sentences"]) for record in around)


def test_a_prefix_is_used_as_soon_as_something_is_translated(translator, caplog):
    lines = ["12345", "", "12345. Two three.", "{name} %1$s 12345 me@example.org one.", "one {name} two."]
    prefixes = ["deux", "deux", "deux", "deux", "deux {name}"]
    kept, empty, second, around, placed = (line.text for line in translator.translate(lines, prefixes=prefixes))
    assert (kept, empty) == ("12345", "")
    assert second.startswith("12345. deux")
    assert around.startswith("{name} %1$s 12345 me@example.org deux")
    assert placed.startswith("deux {name}")
    assert placed.count("{name}") == 1
    assert f"{PREFIX_UNUSED}: line 1\n" in caplog.text


def test_terms_of_a_glossary_are_placed(placing, trained, run, tmp_path):
    lines = [re.sub(r"\bnine\b", "nine hundred", line) for line in lines_with_things(40, 1, seed=2)]
    path = tmp_path / "terms.tsv"
    path.write_text("nine hundred\tneuf-cents\nseven\tSEPT\nnine\t9\n")
    command = ("translate", "--workdir", placing, "--glossary", path)
    done = run(*command, input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    for line, text in zip(lines, done.stdout.splitlines(), strict=True):
        assert text.count("neuf-cents") == line.count("nine hundred")
        assert text.count("SEPT") == line.count("seven")
        assert "9" not in text.replace("12345", "")
    cased = run(*command, "--match-case", input="Seven one.\nseven one.")
    assert [text.count("SEPT") for text in cased.stdout.splitlines()] == [0, 1]
    with pytest.raises(UserError, match="a glossary needs a network with placeholders"):
        Translator.load(trained[0]).with_glossary(Glossary((("one", "un"),)))


def test_words_are_aligned_around_what_stays(translator):
    translations = translator.translate([f"{line} two `a b` one." for line in lines_with_things(20, 1)])
    for line, links in zip(translations, align_translations(translator, translations), strict=True):
        words = word_links(links, line.source, line.text)
        assert words
        assert all(i < len(line.source.split()) and j < len(line.text.split()) for i, j in words)
        for link in links:
            for text, characters in ((line.source, link.source), (line.text, link.target)):
                token = text[slice(*characters)].strip()
                assert "`" not in token or token in ("`a b`", "`x = 1`")  # never a part of it


def test_placeholders_are_shown_as_what_they_stand_for(translator):
    (translation,) = translator.translate(["one {name} two."])
    maps = attention_maps(inspection_of(translator, translation), translator.tokenizer)
    answer = inspect(translator, "one {name} two.", DecodingOptions()).as_json(translator.tokenizer)
    assert "{name}" in maps.source_tokens
    for side in ("source", "target"):
        assert "{name}" in [token["piece"] for token in answer[side]]
    assert "{name}" in answer["translation"]


def test_sampled_segmentations_are_possible_ones(translator):
    tokenizer = translator.tokenizer
    assert len(tokenizer.placeholders) == COUNT
    lines = [tokenizer.protect(line).text for line in lines_with_things(30, COUNT)]
    best = SubwordSampler(tokenizer.source, alpha=50.0)  # practically always the best segmentation
    assert [best.sample(line, np.random.default_rng(0)) for line in lines] == tokenizer.source.encode(lines)


def test_placeholders_belong_to_the_tokenizer(placing, toy, run, tmp_path):
    given = ("--tokenizer.model-file", placing / "tokenizer.model", "--training.num-steps", 1)
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *given, "--tokenizer.placeholders", 5)
    assert done.returncode == 2
    assert f"tokenizer.placeholders must be {COUNT} with it, not 5" in done.stderr
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *given, "--tokenizer.sampling-alpha", 0.5)
    assert done.returncode == 0, done.stderr
