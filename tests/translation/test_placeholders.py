"""What must stay and the terms of glossaries are in every translation, whatever the network makes of placeholders.

The network is that of the toy corpus, in which some numbers are replaced by things, the same on both sides.
"""

import json
import random
import re
import tomllib

import numpy as np
import pytest

from lingua_flax.data.subword_sampling import SubwordSampler
from lingua_flax.data.tokenizer import load_tokenizer
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
    options = ("--tokenizer.placeholders", COUNT, "--tokenizer.vocab-size", 45)
    done = run("train", "--config", toy, *files, *options, "--workdir", folder / "w", "--training.num-steps", 300)
    assert done.returncode == 0, done.stderr
    return folder / "w"


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
    lines = [
        *lines_with_things(150, COUNT + 2),
        "https://example.org",
        "",
        "%s {a} %s 12345 {b}",
        "two `a b. C d.` one.",
    ]
    done = run("translate", "--workdir", placing, "--json-lines", "--num-hypotheses", 2, input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    for line, record in zip(lines, records, strict=True):
        for hypothesis in record["hypotheses"]:
            for thing in [*THINGS, "`a b. C d.`", "{a}", "{b}"]:
                assert hypothesis["text"].count(thing) == line.count(thing)
            assert not re.search("[\U0010f000-\U0010ffff]", hypothesis["text"])
    assert [record["hypotheses"][0]["text"] for record in records[150:153]] == [lines[150], "", lines[152]]
    assert TRANSLATED_AROUND in done.stderr  # at least those with more things than placeholders
    around = [record for line, record in zip(lines, records, strict=True) if "sentences" in record["hypotheses"][0]]
    assert len(around) < 100  # others were placed by the network
    assert all("".join(part["source"] for part in record["hypotheses"][0]["sentences"]) for record in around)


def test_prefixes_may_contain_what_must_stay(placing):
    translator = Translator.load(placing)
    (line,) = translator.translate(["one {name} two."], prefixes=["deux {name}"])
    assert line.text.startswith("deux {name}")
    assert line.text.count("{name}") == 1


def test_a_prefix_is_used_as_soon_as_something_is_translated(placing, run):
    lines = ["12345", "", "{name} %1$s 12345 me@example.org one.", "one two."]
    done = run("translate", "--workdir", placing, "--prefix", "deux", input="\n".join(lines))
    kept, empty, around, plain = done.stdout.splitlines()
    assert (kept, empty) == ("12345", "")
    assert around.startswith("{name} %1$s 12345 me@example.org deux")
    assert plain.startswith("deux")
    assert f"{PREFIX_UNUSED}: line 1\n" in done.stderr


@pytest.mark.parametrize("line", ["12345", "{name} %1$s 12345 me@example.org one."])
def test_attention_is_shown_of_a_single_pass_only(placing, run, tmp_path, line):
    done = run("translate", "--workdir", placing, "--attention", tmp_path / "a.json", input=line)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "--attention shows one pass of the network, but the line" in done.stderr.splitlines()[-1]


def test_terms_of_a_glossary_are_placed(placing, run, tmp_path):
    lines = [re.sub(r"\bnine\b", "nine hundred", line) for line in lines_with_things(40, 1, seed=2)]
    terms = {"nine hundred": "neuf-cents", "seven": "SEPT", "nine": "9"}
    path = tmp_path / "terms.tsv"
    path.write_text("".join(f"{term}\t{translation}\n" for term, translation in terms.items()))
    done = run("translate", "--workdir", placing, "--glossary", path, input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    for line, text in zip(lines, done.stdout.splitlines(), strict=True):
        assert text.count("neuf-cents") == line.count("nine hundred")
        assert text.count("SEPT") == line.count("seven")
        assert "9" not in text.replace("12345", "")
    cased = run("translate", "--workdir", placing, "--glossary", path, "--match-case", input="Seven one.\nseven one.")
    assert [text.count("SEPT") for text in cased.stdout.splitlines()] == [0, 1]


def test_words_are_aligned_around_what_stays(placing):
    translator = Translator.load(placing)
    lines = [f"{line} two `a b` one." for line in lines_with_things(20, 1)]
    translations = translator.translate(lines)
    for line, links in zip(translations, align_translations(translator, translations), strict=True):
        words = word_links(links, line.source, line.text)
        assert words
        assert all(i < len(line.source.split()) and j < len(line.text.split()) for i, j in words)
        for link in links:
            for text, characters in ((line.source, link.source), (line.text, link.target)):
                token = text[slice(*characters)].strip()
                assert "`" not in token or token in ("`a b`", "`x = 1`")  # never a part of it


def test_placeholders_are_shown_as_what_they_stand_for(placing):
    translator = Translator.load(placing)
    line = "one {name} two."
    (translation,) = translator.translate([line])
    maps = attention_maps(inspection_of(translator, translation), translator.tokenizer)
    answer = inspect(translator, line, DecodingOptions()).as_json(translator.tokenizer)
    assert "{name}" in maps.source_tokens
    assert "{name}" in [token["piece"] for token in answer["source"]]
    assert "{name}" in [token["piece"] for token in answer["target"]]
    assert "{name}" in answer["translation"]


def test_sampled_segmentations_are_possible_ones(placing):
    tokenizer = load_tokenizer([placing / "tokenizer.model"])
    assert len(tokenizer.placeholders) == COUNT
    lines = [tokenizer.protect(line).text for line in lines_with_things(30, COUNT)]
    best = SubwordSampler(tokenizer.source, alpha=50.0)  # practically always the best segmentation
    assert [best.sample(line, np.random.default_rng(0)) for line in lines] == tokenizer.source.encode(lines)


def test_placeholders_belong_to_the_tokenizer(placing, trained, toy, run, tmp_path):
    given = ("--tokenizer.model-file", placing / "tokenizer.model", "--training.num-steps", 1)
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *given, "--tokenizer.placeholders", 5)
    assert done.returncode == 2
    message = f"tokenizer.placeholders must be {COUNT} with it, not 5"
    assert done.stderr.splitlines()[-1] == f"error: {placing / 'tokenizer.model'}: {message}"
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *given, "--tokenizer.sampling-alpha", 0.5)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "terms.tsv"
    path.write_text("one\tun\n")
    done = run("translate", "--workdir", trained[0], "--glossary", path, input="one.")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a glossary needs a network with placeholders" in done.stderr
    config = tomllib.loads((placing / "config.toml").read_text(encoding="utf-8"))
    assert config["tokenizer"]["placeholders"] == COUNT
