"""The promise of `make train`: the phrasebook is learned, its contrast pairs too, and tags stay at their words."""

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
