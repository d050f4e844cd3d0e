"""The data report: numbers counted by hand, and the command as users run it."""

import io
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from matplotlib.image import imread

from lingua_flax.commands.train import train
from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.data.tokenizer import parse_tokenizers
from lingua_flax.host.errors import UserError
from lingua_flax.host.terminal import share
from lingua_flax.options.config_files import read_config, to_toml
from lingua_flax.training.reports.corpus_counts import inspect_corpora

# The tokens are easy to count: one per character, one for the space that SentencePiece adds at the start, and </s>.
# "a b c" has 7; "", to which no space is added, has 1.
SPLITS = {
    "validation": [
        ("a b c", "x y"),  # in train
        ("bus", "z"),  # only the source is in train
        ("", "x y"),  # an empty side; 1 token to 5
        ("b é c", "y"),  # an unknown character
    ],
    "train": [
        ("a b c", "x y"),
        ("a b c", "x y"),  # a repeated pair
        ("a b c", "z"),  # a repeated source
        ("bus", "bus"),  # target is source
        ("a a a a a a a a a a a a", "z"),  # 25 tokens to 3
        ("b c", "y z"),
    ],
    "test": [
        ("c", ""),  # an empty side
        ("a  b", "x y"),  # SentencePiece merges the two spaces
    ],
}


def corpus_of(splits: dict[str, list[tuple[str, str]]]) -> Corpus:
    return Corpus("made up", "en", "fr", "", {name: [Pair(*pair) for pair in pairs] for name, pairs in splits.items()})


def train_model(lines, **options) -> bytes:
    model = io.BytesIO()
    options |= {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    return model.getvalue()


@pytest.fixture(scope="module")
def character_model() -> bytes:
    """Returns a model whose pieces are the characters of train: 4 special pieces, 8 letters and the space."""
    return train_model([line for pair in SPLITS["train"] for line in pair], model_type="char", vocab_size=13)


def test_training_pairs_of_all_corpora_of_a_mixture_count_as_train(character_model):
    """Only the other corpus trains on the test sentence "c"; each tag adds a token to every source of its corpus."""
    more = Corpus("more", "en", "de", "", {"train": [Pair("c", "zz"), Pair("c", "")], "test": [Pair("b", "y")]})
    tokenizer = parse_tokenizers([character_model])
    tokenizers = {"data": replace(tokenizer, source_tags=(2,)), "more": replace(tokenizer, source_tags=(2, 2))}
    counts = inspect_corpora({"data": corpus_of(SPLITS), "more": more}, tokenizers)
    in_train = {name: (split.in_train, split.sources_in_train) for name, split in counts.items()}
    assert list(counts) == ["train", "more", "validation", "test"]
    assert in_train == {"train": (None, None), "more": (None, None), "validation": (1, 2), "test": (1, 1)}
    assert counts["more"].target.language == "de"
    assert (counts["train"].source.tokens.sum(), counts["train"].source.pieces) == (56 + 6, 50)
    assert counts["more"].source.tokens.sum() == counts["more"].source.pieces + 2 * 3


def test_what_both_sides_contain_is_counted_as_the_placeholder_that_training_sees():
    """One token instead of 19, of which most characters would be unknown; the year is only in the source."""
    splits = {"train": [("a https://example.org c", "x https://example.org")], "validation": [("a 1984", "x")]}
    model = train_model(["a c x"] * 9, model_type="char", vocab_size=16, user_defined_symbols=[*PLACEHOLDERS[:8]])
    train, validation = inspect_corpora({"data": corpus_of(splits)}, {"data": parse_tokenizers([model])}).values()
    assert (train.source.tokens.tolist(), train.target.tokens.tolist()) == ([7], [5])
    assert (train.source.words.tolist(), train.source.pieces, train.source.fallbacks) == ([3], 6, 0)
    assert (validation.source.tokens.tolist(), validation.source.fallbacks) == ([5], 1)  # unknown ones are merged


def test_byte_tokens_are_counted():
    """Two for é, three for €."""
    splits = {"train": SPLITS["train"], "validation": [("b é c", "€ y €"), ("a", "é z")]}
    lines = [line for pair in SPLITS["train"] for line in pair]
    model = train_model(lines, vocab_size=300, byte_fallback=True, hard_vocab_limit=False)
    counts = inspect_corpora({"data": corpus_of(splits)}, {"data": parse_tokenizers([model])})
    assert counts["validation"].source.spells_bytes
    fallbacks = [(split.source.fallbacks, split.target.fallbacks) for split in counts.values()]
    assert fallbacks == [(0, 0), (2, 8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, character_model) -> Path:
    """Returns a folder with the corpus as files, its config, the tokenizer, and a workdir without checkpoints."""
    folder = tmp_path_factory.mktemp("made up")
    config = '[model]\nmax_length = 20\n[tokenizer]\nvocab_size = 4000\n[data]\nname = "text"\nrow_length = 8\n'
    for name, pairs in SPLITS.items():
        path = folder / f"{name}.tsv"
        path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
        config += f'{name}_source = "{path}"\n'
    (folder / "c.toml").write_text(config, encoding="utf-8")
    (folder / "character.model").write_bytes(character_model)
    workdir = folder / "workdir"
    workdir.mkdir()
    (workdir / "config.toml").write_text(to_toml(read_config(folder / "c.toml")), encoding="utf-8")
    (workdir / "tokenizer.model").write_bytes(character_model)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Returns all files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


def test_share_is_never_rounded_to_zero():
    shares = ((None, 7), (0, 0), (1, 600_000), (1, 10_000), (7, 7))
    assert [share(*each) for each in shares] == ["", "0", "1 (<0.01%)", "1 (0.01%)", "7 (100.00%)"]


@pytest.mark.parametrize("has_workdir", [False, True])
def test_report_shows_counts_made_by_hand_and_a_picture(run, folder, tmp_path, monkeypatch, has_workdir):
    """The tokenizer is that of the workdir or given: one of the config's size could not be trained on the corpus."""
    monkeypatch.setattr("lingua_flax.training.reports.corpus_counts.CHUNK", 4)
    before = contents(folder)
    options = ["--config", folder / "c.toml", "--tokenizer.model-file", folder / "character.model"]
    if has_workdir:
        options = ["--workdir", folder / "workdir"]
    done = run("train", "--inspect-data", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("│").split("│") for line in done.stdout.splitlines() if line.startswith("│")]  # but no headings
    assert [[cell.strip() for cell in row] for row in rows] == ROWS
    for words in ("left out by", "row_length 8", "above max_length 20"):
        assert words in done.stdout
    assert "is that wanted" not in done.stdout
    picture = folder / "workdir" / "inspection.png" if has_workdir else tmp_path / "inspection.png"
    shown = picture if has_workdir else picture.name
    assert f"histograms of the lengths: {shown}" in done.stdout.splitlines()
    assert imread(picture).std() > 0
    picture.unlink()
    assert contents(folder) == before
    assert contents(tmp_path) == {}


def test_inspection_of_a_new_workdir_trains_a_tokenizer(run, tmp_path):
    """The corpus contains markup and escape sequences, which must not reach the terminal."""
    lines = ["½ cup\ttwo words", "one word\tzwei", "[bold]\x1b[2J\x07 " + "long " * 30 + "\tdrei"]
    (tmp_path / "c.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = [f"--data.{name}-source={tmp_path / 'c.tsv'}" for name in ("train", "validation", "test")]
    options += ["--tokenizer.vocab-size", 290, "--tokenizer.byte-fallback", "True", "--tokenizer.kind", "bpe"]
    command = ("train", "--inspect-data", "--config", "tiny", "--data.name", "text", "--workdir", tmp_path / "w")
    done = run(*command, *options)
    assert done.returncode == 0, done.stderr
    assert "training the tokenizer: bpe, 290 pieces" in done.stderr
    for words in ("byte tokens", "[bold] [2J  long long", "…", "nmt_nfkc changes 67% of the sentences in en; is that"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["inspection.png"]


def test_invalid_inspections_are_refused(folder, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "inspection.png").mkdir()
    config = ["--config", folder / "c.toml"]
    before = contents(folder)
    for arguments, message in (
        ([], "--inspect-data needs a config: give one with --config, for example --config tiny"),
        ([*config, "--workdir", tmp_path / "file"], "file: not a directory"),
        ([*config, "--workdir", tmp_path], "inspection.png: cannot be written (it is a folder)"),
        ([*config, "--workdir", tmp_path / "w"], "vocab_size 4000 is larger than the corpus"),
        (["--workdir", folder / "workdir", "--tokenizer.kind", "bpe"], "with a different config"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            train(["--inspect-data", *map(str, arguments)])
    assert not (tmp_path / "w").exists()
    assert contents(folder) == before


def test_ctrl_c_ends_the_command_while_sentencepiece_trains(run, tmp_path):
    """The signal is sent once SentencePiece has read all lines, after which it runs no Python code for many seconds."""
    draw = random.Random(0)
    lines = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=200)) for _ in range(2000)]
    (tmp_path / "train.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines), encoding="utf-8")
    config = tmp_path / "c.toml"
    config.write_text(f'[data]\nname = "text"\ntrain_source = "{tmp_path}/train.tsv"\n', encoding="utf-8")
    script = Path(__file__).parent / "scripts" / "interrupt_tokenizer_training.py"
    done = run(script, "--config", config, "--inspect-data", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "training the tokenizer" in done.stderr
    assert done.stderr.endswith("stopped by SIGINT\n")
