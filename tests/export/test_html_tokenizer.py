"""The tokenizer and the words of the HTML file are those of SentencePiece and of Python, whatever the text."""

import io
import json
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from lingua_flax.data.known_words import known_words
from lingua_flax.data.placeholders import TO_KEEP
from lingua_flax.export.html_file import _tokenizer
from lingua_flax.host.errors import UserError
from tests.helpers.deno import conversation
from tests.helpers.networks import LINES, TRANSLATIONS, small_tokenizer
from tests.helpers.texts import LETTERS, MARKS, OTHERS

SCRIPTS = Path(__file__).parent / "scripts"
TOKENIZERS = {
    "unigram": {},
    "BPE": {"kind": "bpe"},
    "bytes": {"byte_fallback": True, "vocab_size": 300},
    "bytes, BPE": {"kind": "bpe", "byte_fallback": True, "vocab_size": 300},
    "lower case": {"lowercase": True, "placeholders": 3},
    "NFKC, BPE": {"kind": "bpe", "normalization": "nfkc", "placeholders": 2},
    "as it is": {"normalization": "identity"},
}


@pytest.fixture(scope="module")
def find_unknown():
    """Returns a function that asks the code of the file for unknown words."""
    with conversation(SCRIPTS / "unknown_words.js") as ask:
        yield ask


# Letters of many scripts, and what stays as it is, in ASCII: the classes of JavaScript's patterns have nothing else.
CHARACTERS = st.sampled_from(LETTERS + MARKS + OTHERS)
KEPT = st.sampled_from(
    [" {name} ", " %s ", " https://example.org/a?b=c ", " a@b.org ", " `code` ", '<x id="1">', " a/b.py "]
)
ASSIGNED = st.text(st.characters(exclude_categories=["Cs", "Cn"]))
TEXTS = st.lists(st.lists(CHARACTERS | KEPT).map("".join) | ASSIGNED)


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_file_finds_the_unknown_words_that_python_finds(find_unknown, lines, texts):
    words = known_words(lines)
    answers = find_unknown(words=list(words.counts), kept=TO_KEEP.pattern, texts=texts + lines)
    for text, answer in zip(texts + lines, answers, strict=True):
        places, are_most = words.unknown_in(text)
        assert answer == {"unknown_words": list(map(list, places)), "mostly_unknown": are_most}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizers(request, tmp_path_factory):
    """Returns a tokenizer, and a function that asks the one in JavaScript."""
    tokenizer = small_tokenizer(**{"vocab_size": 60, **TOKENIZERS[request.param]}).source
    model, charsmap = _tokenizer(tokenizer)
    path = tmp_path_factory.mktemp("tokenizer") / "model.json"
    path.write_text(json.dumps({"model": model, "charsmap": list(charsmap)}))
    with conversation(SCRIPTS / "tokenize.js", path) as ask:
        yield tokenizer, ask


WORDS = st.sampled_from(
    [*" ".join(LINES).split(), " ", "  ", "\u3000", "\u2581", "ﬁ", "①", "e\u0301", "<0x41>", "</s>"]
)
ANY_TEXTS = st.lists(st.text() | st.lists(WORDS | st.text(max_size=3)).map("".join), min_size=10)


@given(ANY_TEXTS, st.lists(st.lists(st.integers(4, 59)), min_size=10))
@settings(deadline=None)
def test_any_text_has_the_same_tokens_and_any_tokens_the_same_text(tokenizers, texts, sentences):
    tokenizer, ask = tokenizers
    answer = ask(texts=texts, sentences=sentences)
    assert answer["ids"] == tokenizer.encode(texts)
    expected = [tokenizer.decode(ids).replace("\n", " ").replace("\r", " ") for ids in sentences]
    assert answer["texts"] == expected


def test_tokenizers_of_other_kinds_are_refused():
    model = io.BytesIO()
    special = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    options = {"model_type": "word", "vocab_size": 20, "treat_whitespace_as_suffix": True, "minloglevel": 2}
    lines = iter(LINES + TRANSLATIONS)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **options, **special)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    with pytest.raises(UserError, match="that is neither unigram nor BPE and puts spaces after words; use another"):
        _tokenizer(processor)
