"""Which words the training text had: counted, kept in a file, and looked up, in many scripts."""

import dataclasses
import unicodedata
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.glossary import Glossary
from lingua_flax.data.known_words import UnknownWords, known_words
from lingua_flax.data.placeholders import PLACEHOLDERS, Protected
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.options.schema import TokenizerConfig
from tests.helpers.pairs import PAIRS
from tests.helpers.texts import LETTERS, MARKS, OTHERS

TEXT = st.text(st.sampled_from(LETTERS + MARKS + OTHERS) | st.characters(exclude_categories=["Cs"]))
SENTENCE = st.text(st.sampled_from(LETTERS + MARKS + "  '-_,!?1½👍"))  # in which nothing stays as it is
UNSPACED = "あイ漢字ตกໄកက\u0e49"


def unknown(words, text):
    return [text[begin:end] for begin, end in words.unknown_in(text).places]


@given(st.lists(TEXT))
def test_no_word_of_the_training_text_is_unknown(lines):
    words = known_words(lines)
    for line in lines:
        assert words.unknown_in(line) == UnknownWords()


def test_words_are_known_in_both_cases_and_in_any_composition():
    for word in ["Straße", "ΟΔΟΣ", "ışık", "İstanbul", "ﬁn", "e\u0301té", "ǆ", "Ｆｕｌｌ", "ﷺ"]:
        text = " ".join([word.upper(), word.lower(), *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))])
        assert unknown(known_words([word]), text) == []
    assert unknown(known_words(["ısı iyi"]), "ISI İYİ ısı iyi") == []


@given(st.lists(SENTENCE), SENTENCE, SENTENCE, st.sampled_from(["xqxqWord", "шщъ", "אבגדה"]))
def test_made_up_word_is_found_at_its_place(lines, before, after, made_up):
    words = known_words(lines, known_words([before, after]).counts)
    found = words.unknown_in(f"{before} {made_up} {after}")
    assert found == UnknownWords([(len(before) + 1, len(before) + 1 + len(made_up))])


def slowly_counted(lines):
    """Counts words character by character."""
    counts = Counter()
    for line in lines:
        runs = [""]
        for character in line:
            if character in UNSPACED:
                runs += [character, ""]
            elif character == "_" or unicodedata.category(character)[0] in "LMN":
                runs[-1] += character
            else:
                runs.append("")
        for run in runs:
            kinds = {unicodedata.category(character)[0] for character in run}
            if "L" in kinds and "N" not in kinds:
                counts[unicodedata.normalize("NFKC", run).upper().lower().replace("i̇", "i")] += 1
    return counts


@given(st.lists(SENTENCE))
def test_words_are_letters_and_marks_without_anything_between_them(lines):
    counts = slowly_counted(lines)
    words = known_words(lines)
    assert words.counts == counts
    assert words.tsv.decode() == "".join(f"{word}\t{counts[word]}\n" for word in sorted(counts))


def test_what_is_not_a_word_is_never_unknown():
    for text in (
        "12345 3,14 % 3D MP3 ½ ٣ !? … — 👍",
        "https://example.org/nothing?x=nothing {nothing} %(nothing)s `nothing`",
        'nobody@example.org @nobody /usr/nothing report.pdf <nothing id="1">',
        "\ud800",
    ):
        assert unknown(known_words([]), f"{text} word") == ["word"]


def test_scripts_without_spaces_are_looked_up_by_characters():
    words = known_words(["私は猫が好き", "ฉันชอบแมว"])
    assert words.unknown_in("猫は犬が好き") == UnknownWords([(2, 3)], False)
    assert unknown(words, "ชอบหมา") == ["ห", "า"]


def test_most_words_are_more_than_half_and_two():
    words = known_words(["the cat eats"])
    for text in ("pizza", "the cat eats pizza ananas", "the cat pizza ananas"):
        assert not words.unknown_in(text).are_most
    for text in ("pizza ananas", "the 12 34 pizza ananas", "pizza ananas {cat} https://the.cat/the/cat"):
        assert words.unknown_in(text).are_most


def test_counts_are_added():
    words = known_words(["The cat.", "a cat"])
    assert known_words(["cat", "dog"], words.counts).tsv == b"a\t1\ncat\t3\ndog\t1\nthe\t1\n"
    assert known_words(["ﷺ"]).counts.total() == 1  # a letter that is composed of words with spaces


def test_words_of_a_tokenizer_and_terms_of_its_glossary_are_known():
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=50)))
    assert tokenizer.unknown_words(Protected("pizza ananas")) == UnknownWords()  # without words, it knows all
    terms = {"glossary": Glossary((("Ice Cream", "glace"),)), "placeholders": PLACEHOLDERS[:2]}
    own = dataclasses.replace(tokenizer, words=known_words(["pizza"]), **terms)
    assert own.unknown_words(own.protect("pizza ice cream and cream")).places == [(16, 19), (20, 25)]
