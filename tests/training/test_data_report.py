"""The data report: numbers counted by hand, and the command as users run it."""

import functools
import io
import os
import signal
import threading
from dataclasses import replace

import pytest
import sentencepiece
from matplotlib.image import imread

from lingua_flax.commands.train import train
from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import to_toml
from lingua_flax.options.schema import Config, TokenizerConfig
from lingua_flax.training.reports.corpus_counts import inspect_corpora
from tests.conftest import PROMPTLY
from tests.helpers.commands import succeed

# The tokens are easy to count: one per character, one for the space that SentencePiece adds at the start, and </s>.
# "a b c" has 7; "", to which no space is added, has 1.
SPLITS = {
    "validation": [
        ("a b c", "x y"),  # in train
        ("bus", "z"),  # only the source is in train
        ("", "x y"),
        ("b é c", "y"),  # an unknown character
    ],
    "train": [
        *[("a b c", "x y"), ("a b c", "x y"), ("a b c", "z"), ("bus", "bus"), ("b c", "y z")],
        ("a a a a a a a a a a a a", "z"),  # 25 tokens to 3
    ],
    "test": [("c", ""), ("a  b", "x y")],  # SentencePiece merges the two spaces
}


LINES = [line for pair in SPLITS["train"] for line in pair]


def corpus_of(splits: dict[str, list[tuple[str, str]]]) -> Corpus:
    return Corpus("made up", "en", "fr", "", {name: [Pair(*pair) for pair in pairs] for name, pairs in splits.items()})


@functools.cache
def character_model() -> bytes:
    """Returns a model whose pieces are the characters of train: 4 special pieces, 8 letters and the space."""
    return train_model(LINES, model_type="char", vocab_size=13)


def train_model(lines, **options) -> bytes:
    model = io.BytesIO()
    options |= {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    return model.getvalue()


def test_training_pairs_of_all_corpora_of_a_mixture_count_as_train():
    """Only the other corpus trains on the test sentence "c"; each tag adds a token to every source of its corpus."""
    more = Corpus("more", "en", "de", "", {"train": [Pair("c", "zz"), Pair("c", "")], "test": [Pair("b", "y")]})
    tokenizer = parse_tokenizers([character_model()])
    tokenizers = {"data": replace(tokenizer, source_tags=(2,)), "more": replace(tokenizer, source_tags=(2, 2))}
    counts = inspect_corpora({"data": corpus_of(SPLITS), "more": more}, tokenizers)
    in_train = {name: (split.in_train, split.sources_in_train) for name, split in counts.items()}
    assert in_train == {"train": (None, None), "more": (None, None), "validation": (1, 2), "test": (1, 1)}
    assert counts["more"].target.language == "de"
    assert (counts["train"].source.tokens.sum(), counts["train"].source.pieces) == (56 + 6, 50)
    assert counts["more"].source.tokens.sum() == counts["more"].source.pieces + 2 * 3


def test_what_both_sides_contain_is_counted_as_the_placeholder_that_training_sees():
    """One token instead of 19, of which most characters would be unknown; the year is only in the source."""
    splits = {"train": [("a https://example.org c", "x https://example.org")], "validation": [("a 1984", "x")]}
    model = train_model(["a c x"] * 9, model_type="char", vocab_size=16, user_defined_symbols=[*PLACEHOLDERS[:8]])
    train, validation = inspect_corpora({"data": corpus_of(splits)}, {"data": parse_tokenizers([model])}).values()
    assert (train.source.words.tolist(), train.source.tokens.tolist(), train.source.fallbacks) == ([3], [7], 0)
    assert (validation.source.tokens.tolist(), validation.source.fallbacks) == ([5], 1)  # unknown ones are merged


def test_byte_tokens_are_counted():
    """Two for é, three for €."""
    splits = {"train": SPLITS["train"], "validation": [("b é c", "€ y €"), ("a", "é z")]}
    model = train_model(LINES, vocab_size=300, byte_fallback=True, hard_vocab_limit=False)
    counts = inspect_corpora({"data": corpus_of(splits)}, {"data": parse_tokenizers([model])})
    assert [(split.source.fallbacks, split.target.fallbacks) for split in counts.values()] == [(0, 0), (2, 8)]


ROWS = [
    ["train", "6", "", "", "1 (16.67%)"],
    ["validation", "4", "1 (25.00%)", "2 (50.00%)", ""],
    ["test", "2", "0", "0", ""],
    ["train", "en", "24", "4.0", "3", "12", "12", "56", "9.3", "7", "25", "25"],
    ["train", "fr", "9", "1.5", "1", "2", "2", "26", "4.3", "5", "5", "5"],
    ["validation", "en", "7", "1.8", "1", "3", "3", "20", "5.0", "5", "7", "7"],
    ["validation", "fr", "6", "1.5", "1", "2", "2", "16", "4.0", "3", "5", "5"],
    ["test", "en", "3", "1.5", "1", "2", "2", "8", "4.0", "3", "5", "5"],
    ["test", "fr", "2", "1.0", "0", "2", "2", "6", "3.0", "1", "5", "5"],
    ["train", "en", "2.08", "0", "0", "1 (16.67%)"],
    ["train", "fr", "2.22", "0", "0", "0"],
    ["validation", "en", "2.29", "1 (6.25%)", "1 (25.00%)", "0"],
    ["validation", "fr", "2.00", "0", "0", "0"],
    ["test", "en", "2.00", "0", "0", "0"],
    ["test", "fr", "2.00", "0", "1 (50.00%)", "0"],
    ["left out: duplicates", "1 (16.67%)", "2", "a b c | x y"],
    ["left out: identical", "1 (16.67%)", "4", "bus | bus"],
]


def test_report_shows_counts_made_by_hand_and_a_picture(run, tmp_path, monkeypatch):
    """The tokenizer is that of the workdir: one of the config's size could not be trained on the corpus."""
    monkeypatch.setattr("lingua_flax.training.reports.corpus_counts.CHUNK", 4)
    data, workdir = {"name": "text", "row_length": 8}, tmp_path / "workdir"
    for name, pairs in SPLITS.items():
        data[f"{name}_source"] = path = tmp_path / f"{name}.tsv"
        path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    sections = {"model": {"max_length": 20}, "tokenizer": {"vocab_size": 4000}, "data": data}
    workdir.mkdir()
    (workdir / "config.toml").write_text(to_toml(Config.model_validate(sections)), encoding="utf-8")
    (workdir / "tokenizer.model").write_bytes(character_model())
    done = succeed(run, "train", "--inspect-data", "--workdir", workdir)
    rows = [line.strip("│").split("│") for line in done.stdout.splitlines() if line.startswith("│")]  # but no headings
    assert [[cell.strip() for cell in row] for row in rows] == ROWS
    assert "is that wanted" not in done.stdout
    picture = workdir / "inspection.png"
    assert f"histograms of the lengths: {picture}" in done.stdout.splitlines()
    assert imread(picture).std() > 0
    assert {path.name for path in workdir.iterdir()} == {"config.toml", "tokenizer.model", "inspection.png"}


def test_inspection_without_a_workdir_trains_a_tokenizer(run, tmp_path):
    """The corpus contains markup and escape sequences, which must not reach the terminal."""
    lines = ["½ cup\ttwo words", "one word\tzwei", "[bold]\x1b[2J\x07 " + "long " * 30 + "\tdrei"]
    (tmp_path / "c.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = [f"--data.{name}-source={tmp_path / 'c.tsv'}" for name in ("train", "validation", "test")]
    options += ["--tokenizer.vocab-size", 290, "--tokenizer.byte-fallback", "True", "--tokenizer.kind", "bpe"]
    command = ("train", "--inspect-data", "--config", "tiny", "--data.name", "text", *options)
    done = succeed(run, *command, cwd=tmp_path)
    assert "training the tokenizer: bpe, 290 pieces" in done.stderr
    for words in ("byte tokens", "[bold] [2J  long long", "…", "nmt_nfkc changes 67% of the sentences in en; is that"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"c.tsv", "inspection.png"}


def test_invalid_inspections_are_refused(tmp_path):
    (tmp_path / "inspection.png").mkdir()
    for arguments, message in (
        ([], "needs a config"),
        (["--config", "tiny", "--workdir", str(tmp_path)], "inspection.png: .*it is a folder"),
    ):
        with pytest.raises(UserError, match=message):
            train(["--inspect-data", *arguments])


def test_ctrl_c_is_handled_while_sentencepiece_trains(monkeypatch):
    """It runs no Python code for many seconds, so it trains in another thread than the one that handles signals."""
    handled = threading.Event()

    def train_for_long(**_):
        assert threading.current_thread() is not threading.main_thread()
        os.kill(os.getpid(), signal.SIGINT)
        assert handled.wait(PROMPTLY)

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", train_for_long)
    previous = signal.signal(signal.SIGINT, lambda *_: handled.set())
    train_tokenizer([Pair("a", "b")], TokenizerConfig())
    signal.signal(signal.SIGINT, previous)
