"""The promise of `make train`: the phrasebook is learned, with its contrast pairs, and whole texts are translated."""

import json
import random
import re

import pytest

from lingua_flax.data.corpora.phrasebook import generate
from lingua_flax.data.corpora.phrasebook.lexicon import load_lexicon
from lingua_flax.translation.translator import Translator


@pytest.fixture(scope="module")
def workdir(run, tmp_path_factory):
    """Returns the workdir of the phrasebook's network, trained as by `make train`."""
    workdir = tmp_path_factory.mktemp("phrasebook") / "tiny"
    done = run("train", "--config", "configs/tiny.toml", "--workdir", workdir, timeout=2 * 3600)
    assert done.returncode == 0, done.stderr
    return workdir


@pytest.mark.slow
def test_phrasebook_is_learned(workdir, run, tmp_path):
    for split in ("test", "contrast"):
        done = run("evaluate", "--workdir", workdir, "--split", split, "--json", tmp_path / f"{split}.json")
        assert done.returncode == 0, done.stderr
    test, contrast = (json.loads((tmp_path / f"{split}.json").read_text()) for split in ("test", "contrast"))
    assert test["bleu"] >= 90
    assert "contrast_pairs" not in test
    assert contrast["contrast_pairs"] >= 300
    assert contrast["contrast_right"] >= 0.95 * contrast["contrast_pairs"]
    masked = contrast["contrast_masked_pairs"]
    assert masked == contrast["contrast_right"]
    assert contrast["contrast_flipped"] > 0.8 * masked
    assert contrast["contrast_flipped_control"] < 0.1 * masked
    assert f"{contrast['contrast_right']} of {contrast['contrast_pairs']}" in done.stdout


def sentences_with_a_noun(count):
    """Returns sentences of the test split with one occurrence of a noun, and its only possible translation."""
    translations: dict[str, set[str]] = {}
    for noun in load_lexicon().nouns:
        translations.setdefault(noun.english, set()).add(noun.french)
        translations.setdefault(noun.english_plural, set()).add(noun.french_plural)

    def once(word, text):
        return len(re.findall(rf"\b{word}\b", text)) == 1

    found = []
    for english, french in generate().test:
        for word in sorted({*re.findall(r"\w+", english)} & {*translations}):
            known = [translation for translation in translations[word] if once(translation, french)]
            if once(word, english) and len(known) == 1:
                found.append((english, word, known[0]))
                break
    return random.Random(0).sample(found, count)


@pytest.mark.slow
def test_bold_words_are_bold_in_the_translation(workdir):
    cases = sentences_with_a_noun(200)
    paragraphs = [re.sub(rf"\b{word}\b", f"<b>{word}</b>", sentence) for sentence, word, _ in cases]
    page = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    translated = re.findall("<p>(.*?)</p>", Translator.load(workdir).translate_html(page))
    right = 0
    for line, (_, _, translation) in zip(translated, cases, strict=True):
        (bold,) = re.findall("<b>(.*?)</b>", line)
        right += bold.split("'")[-1] == translation  # with nothing else but an elided article
    assert right >= 190


@pytest.mark.slow
def test_paragraphs_are_translated_sentence_by_sentence(workdir, run):
    """The sentences of the seeds, and 50 paragraphs of three sentences with any white space."""
    draw = random.Random(0)
    seeds = [
        "I swam across the river to get to the other bank.",
        "We saw the bank.",
        "She ate an apple. He read a book.",
    ]
    paragraphs = [[*seeds, "The cat sat on the mat because it was tired."]]
    paragraphs += [[source for source, _ in draw.sample(generate().test, 3)] for _ in range(50)]
    spaces = [[draw.choice([" ", "  ", "\u3000", " \t"]) for _ in paragraph] for paragraph in paragraphs]
    command = ("translate", "--workdir", workdir)
    alone = iter(run(*command, input="\n".join(s for own in paragraphs for s in own)).stdout.splitlines())
    lines, wanted = [], []
    for own, between in zip(paragraphs, spaces, strict=True):
        lines.append("".join(text + space for text, space in zip(own, between, strict=True)).rstrip())
        translated = [next(alone) for _ in own]
        wanted.append("".join(text + space for text, space in zip(translated, between, strict=True)).rstrip())
    assert run(*command, input="\n".join(lines)).stdout.splitlines() == wanted
    assert [line.text for line in Translator.load(workdir).translate(lines)] == wanted
