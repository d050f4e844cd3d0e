"""The promise of `make train`: the phrasebook is learned, its contrast pairs too, and tags stay at their words."""

import json
import random
import re

import pytest

from lingua_flax.data.corpora import open_corpus
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.html_text import translate_html
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed

NOUNS = """friend ami lemonade limonade mattress matelas table table soup soupe horse cheval cow vache camel chameau
train train prince prince lemon citron cat chat aunt tante actress actrice sofa canapé onion oignon jacket veste
engineer ingénieur customer client car voiture doctor médecin butter beurre blanket couverture park parc panther
panthère orange orange lion lion lawyer avocat giraffe girafe cousin cousin cook cuisinier brother frère bench banc
uncle oncle turtle tortue stone pierre soldier soldat sister sœur shoe chaussure owl hibou letter lettre gardener
jardinier frog grenouille farmer fermier donkey âne waitress serveuse van camionnette son fils plate assiette pillow
oreiller painter peintre package paquet office bureau nurse infirmière neighbor voisin monkey singe lamp lampe lady
dame"""  # and their translations


@pytest.fixture(scope="module")
def workdir(run, tmp_path_factory):
    """Returns the workdir of the phrasebook's network, trained as by `make train`."""
    workdir = tmp_path_factory.mktemp("phrasebook") / "tiny"
    succeed(run, "train", "--config", "configs/tiny.toml", "--workdir", workdir, timeout=2 * 3600)
    return workdir


@pytest.mark.slow
def test_phrasebook_is_learned(workdir, run, tmp_path):
    for split in ("test", "contrast"):
        done = succeed(run, "evaluate", "--workdir", workdir, "--split", split, "--json", tmp_path / f"{split}.json")
    test, contrast = (json.loads((tmp_path / f"{split}.json").read_text()) for split in ("test", "contrast"))
    assert test["bleu"] >= 90
    assert "contrast_pairs" not in test
    assert contrast["contrast_pairs"] >= 300
    assert contrast["contrast_right"] >= 0.95 * contrast["contrast_pairs"]
    assert contrast["contrast_masked_pairs"] == contrast["contrast_right"]
    assert contrast["contrast_flipped"] > 0.8 * contrast["contrast_right"]
    assert contrast["contrast_flipped_control"] < 0.1 * contrast["contrast_right"]
    assert f"{contrast['contrast_right']} of {contrast['contrast_pairs']}" in done.stdout


@pytest.mark.slow
def test_bold_words_are_bold_in_the_translation(workdir):
    """The words are nouns of which there is one in the sentence, and one translation in the reference."""
    words = NOUNS.split()
    nouns = dict(zip(words[::2], words[1::2], strict=True))
    cases = []
    for english, french in open_corpus(DataConfig()).split("test"):
        words, translations = re.findall(r"\w+", english), re.findall(r"\w+", french)
        once = [word for word in words if words.count(word) == 1 and translations.count(nouns.get(word)) == 1]
        cases += [(english, word, nouns[word]) for word in once[:1]]
    cases = random.Random(0).sample(cases, 200)
    paragraphs = [re.sub(rf"\b{word}\b", f"<b>{word}</b>", sentence) for sentence, word, _ in cases]
    page = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    translated = re.findall("<p>(.*?)</p>", translate_html(Translator.load(workdir), page))
    right = 0
    for line, (_, _, translation) in zip(translated, cases, strict=True):
        (bold,) = re.findall("<b>(.*?)</b>", line)
        right += bold.split("'")[-1] == translation  # with nothing else but an elided article
    assert right >= 190
