"""The data report: numbers counted by hand."""

from dataclasses import replace

from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.training.reports.corpus_counts import inspect_corpora
from tests.helpers.networks import small_tokenizer


def corpus_of(target_language: str, **splits: list[tuple[str, str]]) -> Corpus:
    pairs = {name: [Pair(*pair) for pair in split] for name, split in splits.items()}
    return Corpus("made up", "en", target_language, "", pairs)


def test_training_pairs_of_all_corpora_of_a_mixture_count_as_train():
    """Only the other corpus trains on the test sentence "c"; each tag adds a token to every source of its corpus."""
    train = [("a b c", "x y"), ("a b c", "x y"), ("a b c", "z"), ("bus", "bus")]
    validation = [("a b c", "x y"), ("bus", "z"), ("", "x y"), ("b c", "y")]
    first = corpus_of("fr", train=train, validation=validation, test=[("c", ""), ("a  b", "x y")])
    more = corpus_of("de", train=[("c", "zz"), ("c", "")], test=[("b", "y")])
    tokenizer = small_tokenizer()
    tokenizers = {"data": replace(tokenizer, source_tags=(2,)), "more": replace(tokenizer, source_tags=(2, 2))}
    counts = inspect_corpora({"data": first, "more": more}, tokenizers)
    in_train = {name: (split.in_train, split.sources_in_train) for name, split in counts.items()}
    assert in_train == {"train": (None, None), "more": (None, None), "validation": (1, 2), "test": (1, 1)}
    assert counts["more"].target.language == "de"
    assert counts["train"].source.words.tolist() == [3, 3, 3, 1]
    assert counts["more"].source.tokens.sum() == counts["more"].source.pieces + 2 * 3
