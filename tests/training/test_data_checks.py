"""What a run says about its data, in corpora whose faults are counted by hand."""

import itertools
import random

import pytest

from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.data.mixture import TrainingCorpus
from lingua_flax.data.training_data import TrainingData
from lingua_flax.options.schema import Config
from lingua_flax.training.data_checks import check_data
from tests.helpers.networks import small_tokenizer


def data_of(*corpora: dict[str, list[tuple[str, str]]]) -> TrainingData:
    """Returns the data of a run on these splits from en to fr, with a tokenizer of other text."""
    training = []
    for number, splits in enumerate(corpora):
        pairs = {name: [Pair(*pair) for pair in split] for name, split in splits.items()}
        training.append(TrainingCorpus(Corpus("made up", "en", "fr", "", pairs), 1.0, (), f"{number}: "))
    return TrainingData(Config(), training, small_tokenizer(), [], planner=None)  # type: ignore[arg-type]


def test_training_pairs_of_all_corpora_of_a_mixture_count_as_trained_on(caplog):
    """Only the other corpus has the test sentence "c"; its test split is not that of the run."""
    train = [("a b c", "x y"), ("a b c", "x y"), ("a b c", "z"), ("bus", "bus")]
    validation = [("a b c", "x y"), ("bus", "z"), ("", "x y"), ("b c", "y")]
    first = {"train": train, "validation": validation, "test": [("c", ""), ("a  b", "x y")], "more": [("d", "d")]}
    check_data(data_of(first, {"train": [("c", "zz"), ("c", "")], "test": [("bus", "bus")]}))
    assert [message for message in caplog.messages if "are also trained on" in message] == [
        "2 of the 4 sentences of validation are also trained on, 1 with the same translation",
        "1 of the 2 sentences of test are also trained on, 1 with the same translation",
    ]


@pytest.mark.parametrize("alphabet", ["abcçdeé", "абвгд", "कखगिीु", "กขคิี", "日本語", "אבגָ", "12345"])
def test_held_out_sentences_are_found_in_training_whatever_their_case_and_punctuation(caplog, alphabet):
    """But not those that differ in a letter, or in a vowel that is a mark."""
    draw = random.Random(alphabet)
    sentences = [" ".join("".join(draw.choices(alphabet, k=6)) for _ in range(3)) for _ in range(60)]
    copies = [draw.choice(["«{}»", "{}!", "- {}"]).format(draw.choice([str.upper, str])(each)) for each in sentences]
    copies = [copy.replace(" ", draw.choice(["  ", ", ", "\u00a0", ""])) for copy in copies]
    following = dict(itertools.pairwise(alphabet + alphabet[0]))
    test = copies[:7] + [sentence[:-1] + following[sentence[-1]] for sentence in sentences[:43]]
    check_data(data_of({"train": [(each, "x") for each in sentences], "test": [(each, "X.") for each in test]}))
    assert "7 of the 50 sentences of test are also trained on, 7 with the same translation" in caplog.messages


def test_lost_characters_and_changed_words_are_counted_on_each_side(caplog):
    """White space, and a change of a hundredth of the sentences, are not worth a warning."""
    sources = [*["the cat あ", "あ the cat い"] * 50, *["the cat", "ｔhe cat"] * 50]
    targets = ["le ｃhat", "ｌe chat", *["le chat  dort"] * 198]
    check_data(data_of({"train": list(zip(sources, targets, strict=True))}))
    assert caplog.messages == [
        "0: the tokenizer has no pieces for characters in 100 of 200 sampled sentences in en, such as あ, い: they are "
        "lost (see tokenizer.byte_fallback)",
        "0: tokenizer.normalization changes words in 50 of 200 sampled sentences in en: is that wanted?",
    ]
