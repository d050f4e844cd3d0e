"""The data report: numbers computed by hand and by a slow reference, and the command as users run it."""

import io
import random
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from matplotlib.image import imread

from lingua_flax.commands.train import train
from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.host.terminal import share
from lingua_flax.options.config_files import read_config, to_toml
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.training.reports.corpus_counts import inspect_corpora

# The tokens are easy to count: one per character, one for the space that SentencePiece adds at the start, and </s>.
# "a b c" has 7; "", to which no space is added, has 1.
SPLITS = {
    "train": [
        ("a b c", "x y"),
        ("a b c", "x y"),  # a repeated pair
        ("a b c", "z"),  # a repeated source
        ("bus", "bus"),  # target is source
        ("a a a a a a a a a a a a", "z"),  # 25 tokens to 3
        ("b c", "y z"),
    ],
    "validation": [
        ("a b c", "x y"),  # in train
        ("bus", "z"),  # only the source is in train
        ("", "x y"),  # an empty side; 1 token to 5
        ("b é c", "y"),  # an unknown character
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


@pytest.fixture(scope="module")
def tokenizer(character_model) -> Tokenizer:
    return parse_tokenizers([character_model])


def test_counts_match_those_made_by_hand(tokenizer):
    progress = []
    counts = inspect_corpora({"data": corpus_of(SPLITS)}, {"data": tokenizer}, progress.append)
    train, validation, test = counts.values()
    assert list(counts) == ["train", "validation", "test"]
    assert progress == [6, 4, 2]
    assert [split.in_train for split in counts.values()] == [None, 1, 0]
    assert [split.sources_in_train for split in counts.values()] == [None, 2, 0]
    assert train.source.words.tolist() == [3, 3, 3, 1, 12, 2]
    assert train.source.tokens.tolist() == [7, 7, 7, 5, 25, 5]
    assert train.target.words.tolist() == [2, 2, 1, 1, 1, 2]
    assert train.target.tokens.tolist() == [5, 5, 3, 5, 3, 5]
    assert validation.source.words.tolist() == [3, 1, 0, 3]
    assert validation.source.tokens.tolist() == [7, 5, 1, 7]
    assert test.source.words.tolist() == [1, 2]
    assert test.source.tokens.tolist() == [3, 5]
    assert (train.source.pieces, train.target.pieces) == (50, 20)
    assert [(split.source.fallbacks, split.target.fallbacks) for split in counts.values()] == [(0, 0), (1, 0), (0, 0)]
    assert not validation.source.spells_bytes
    assert (train.source.language, train.target.language) == ("en", "fr")


def test_training_pairs_of_all_corpora_of_a_mixture_count_as_train(tokenizer):
    """Only the other corpus trains on the test sentence "c"; each tag adds a token to every source of its corpus."""
    more = Corpus("more", "en", "de", "", {"train": [Pair("c", "zz"), Pair("c", "")], "test": [Pair("b", "y")]})
    tokenizers = {
        "data": replace(tokenizer, source_tags=(2,)),
        "data.mixture.0": replace(tokenizer, source_tags=(2, 2)),
    }
    counts = inspect_corpora({"data": corpus_of(SPLITS), "data.mixture.0": more}, tokenizers)
    assert list(counts) == ["train", "data.mixture.0", "validation", "test"]
    assert counts["data.mixture.0"].target.language == "de"
    assert [split.in_train for split in counts.values()] == [None, None, 1, 1]
    assert [split.sources_in_train for split in counts.values()] == [None, None, 2, 1]
    assert (counts["train"].source.tokens.sum(), counts["train"].source.pieces) == (56 + 6, 50)
    mixed = counts["data.mixture.0"].source
    assert mixed.tokens.sum() == mixed.pieces + 2 * 3


def test_what_both_sides_contain_is_counted_as_the_placeholder_that_training_sees():
    """One token instead of 19, of which most characters would be unknown; the year is only in the source."""
    splits = {"train": [("a https://example.org c", "x https://example.org")], "validation": [("a 1984", "x")]}
    model = train_model(["a c x"] * 9, model_type="char", vocab_size=16, user_defined_symbols=[*PLACEHOLDERS[:8]])
    train, validation = inspect_corpora({"data": corpus_of(splits)}, {"data": parse_tokenizers([model])}).values()
    assert (train.source.tokens.tolist(), train.target.tokens.tolist()) == ([7], [5])
    assert (train.source.words.tolist(), train.source.pieces, train.source.fallbacks) == ([3], 6, 0)
    assert (validation.source.tokens.tolist(), validation.source.fallbacks) == ([5], 1)  # unknown ones are merged


def test_byte_tokens_are_counted():
    """Two for é, three for €, with a model for each side."""
    splits = {"train": SPLITS["train"], "validation": [("b é c", "€ y €"), ("a", "é z")]}
    config = TokenizerConfig(vocab_size=300, byte_fallback=True, joint=False)
    with pytest.raises(Exception, match="works is") as error:  # a tiny corpus supports only a few pieces
        train_tokenizer(corpus_of(splits).split("train"), config)
    size = int(str(error.value).split()[-1])
    models = train_tokenizer(corpus_of(splits).split("train"), config.model_copy(update={"vocab_size": size}))
    counts = inspect_corpora({"data": corpus_of(splits)}, {"data": parse_tokenizers(models)})
    assert counts["train"].source.fallbacks == 0
    assert counts["validation"].source.spells_bytes
    assert (counts["validation"].source.fallbacks, counts["validation"].target.fallbacks) == (2, 8)


def test_counts_of_many_chunks_match_a_slow_reference(tokenizer, monkeypatch):
    """The test split comes first and is compared with train nevertheless."""
    monkeypatch.setattr("lingua_flax.training.reports.corpus_counts.CHUNK", 7)
    draw = random.Random(3)

    def line(letters: str) -> str:
        return " ".join(draw.choice(letters) for _ in range(draw.choice([0, 1, 1, 2, 3, 20])))

    splits = {name: [(line("abc"), line("axy")) for _ in range(n)] for name, n in (("test", 90), ("train", 200))}
    counts = inspect_corpora({"data": corpus_of(splits)}, {"data": tokenizer})
    assert list(counts) == ["train", "test"]
    for name, pairs in splits.items():
        split = counts[name]
        tokens = [[len(text) + 2 if text else 1 for text in pair] for pair in pairs]
        for side, number in ((split.source, 0), (split.target, 1)):
            assert side.words.tolist() == [len(pair[number].split()) for pair in pairs]
            assert side.tokens.tolist() == [both[number] for both in tokens]
    train_sources = [source for source, _ in splits["train"]]
    assert counts["test"].in_train == sum(pair in splits["train"] for pair in splits["test"]) > 0
    assert counts["test"].sources_in_train == sum(source in train_sources for source, _ in splits["test"])


# The command.

CONFIG = """
[data]
name = "text"
row_length = 8
{files}

[tokenizer]
vocab_size = 4000

[model]
max_length = 20
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, character_model) -> Path:
    """Returns a folder with the corpus as files, its config, the tokenizer, and a workdir without checkpoints."""
    folder = tmp_path_factory.mktemp("made up")
    files = []
    for name, pairs in SPLITS.items():
        for side, suffix, number in (("source", "en", 0), ("target", "fr", 1)):
            path = folder / f"{name}.{suffix}"
            path.write_text("".join(pair[number] + "\n" for pair in pairs), encoding="utf-8")
            files.append(f'{name}_{side} = "{path}"')
    (folder / "c.toml").write_text(CONFIG.format(files="\n".join(files)), encoding="utf-8")
    (folder / "character.model").write_bytes(character_model)
    workdir = folder / "workdir"
    workdir.mkdir()
    (workdir / "config.toml").write_text(to_toml(read_config(folder / "c.toml")), encoding="utf-8")
    (workdir / "tokenizer.model").write_bytes(character_model)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Returns all files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(printed: str) -> list[list[str]]:
    """Returns the cells of every row except headings."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in printed.splitlines() if line.startswith("│")
    ]


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


def check_picture(path: Path) -> None:
    """Checks that the file is a PNG image that is not blank."""
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert imread(path).std() > 0


def test_share_is_never_rounded_to_zero():
    shares = ((None, 7), (0, 0), (1, 600_000), (1, 10_000), (7, 7))
    assert [share(*each) for each in shares] == ["", "0", "1 (<0.01%)", "1 (0.01%)", "7 (100.00%)"]


def test_inspection_without_a_workdir(run, folder, tmp_path):
    before = contents(folder)
    options = ["--config", folder / "c.toml", "--tokenizer.model-file", folder / "character.model"]
    done = run("train", "--inspect-data", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout) == ROWS
    assert "left out by" in done.stdout
    assert "row_length 8" in done.stdout
    assert "above max_length 20" in done.stdout
    assert "histograms of the lengths: inspection.png" in done.stdout.splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["inspection.png"]
    check_picture(tmp_path / "inspection.png")
    assert contents(folder) == before


@pytest.mark.parametrize(("sources", "share"), [(["½ cup"], "50%"), (["½ cup"] + ["one word"] * 199, None)])
def test_change_by_normalization_is_mentioned(run, tmp_path, sources, share):
    lines = "".join(f"{source}\tzwei drei\n" for source in [*sources, "one word"])
    for name in ("train", "validation", "test"):
        (tmp_path / f"{name}.tsv").write_text(lines, encoding="utf-8")
    files = [f"--data.{name}-source={tmp_path / name}.tsv" for name in ("train", "validation", "test")]
    options = ["--config", "configs/tiny.toml", "--data.name", "text", *files, "--tokenizer.vocab-size", 20]
    done = run("train", "--inspect-data", *options, "--workdir", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "is that wanted" in line]
    assert told == (
        [f"tokenizer.normalization nmt_nfkc changes {share} of the sentences in en; is that wanted?"] if share else []
    )


def test_inspection_of_a_workdir_uses_its_tokenizer(run, folder, tmp_path):
    """A tokenizer with the vocabulary size of the config could not be trained on the corpus."""
    workdir = folder / "workdir"
    before = contents(folder)
    done = run("train", "--inspect-data", "--workdir", workdir, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout) == ROWS
    assert f"histograms of the lengths: {workdir / 'inspection.png'}" in done.stdout.splitlines()
    assert list(tmp_path.iterdir()) == []
    check_picture(workdir / "inspection.png")
    (workdir / "inspection.png").unlink()
    assert contents(folder) == before


def test_inspection_of_a_new_workdir_trains_a_tokenizer(run, folder, tmp_path):
    """The corpus contains markup and escape sequences, which must not reach the terminal."""
    hostile = "[bold]\x1b[2J\x07 " + "long " * 30
    for name in ("train", "validation", "test"):
        (tmp_path / f"{name}.tsv").write_text(f"one word\ttwo words\n{hostile}\tdrei\n", encoding="utf-8")
    (tmp_path / "c.toml").write_text(
        '[data]\nname = "text"\ntarget_language = "de"\n'
        + "".join(f'{name}_source = "{tmp_path / name}.tsv"\n' for name in ("train", "validation", "test"))
        + '[tokenizer]\nvocab_size = 290\nbyte_fallback = true\nkind = "bpe"\n',
        encoding="utf-8",
    )
    workdir = tmp_path / "new" / "workdir"
    done = run("train", "--config", tmp_path / "c.toml", "--inspect-data", "--workdir", workdir)
    assert done.returncode == 0, done.stderr
    assert "training the tokenizer: bpe, 290 pieces" in done.stderr
    assert "byte tokens" in done.stdout
    assert "[bold] [2J  long long" in done.stdout
    assert "\x1b" not in done.stdout
    assert "…" in done.stdout
    assert [path.name for path in workdir.iterdir()] == ["inspection.png"]


def test_invalid_inspections_are_refused(run, folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "inspection.png").mkdir()
    config = ["--config", folder / "c.toml"]
    before = contents(folder)
    done = run("train", "--inspect-data")
    message = "error: --inspect-data needs a config: give one with --config, for example --config tiny\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    for arguments, message in (
        (["--inspect-data", "--workdir", tmp_path], f"{tmp_path} has no config.toml yet"),
        (["--inspect-data", "True", *config], 'unexpected argument "True"'),
        (["--inspect-dat", *config, "--workdir", tmp_path / "w"], "did you mean --inspect-data"),
        (config, "--workdir is required"),
        (["--inspect-data", *config, "--workdir", tmp_path / "file"], "file: not a directory"),
        (["--inspect-data", *config, "--workdir", tmp_path], "inspection.png: cannot be written (it is a folder)"),
        (["--inspect-data", *config, "--workdir", tmp_path / "w"], "vocab_size 4000 is larger than the corpus"),
        (["--inspect-data", "--workdir", folder / "workdir", "--tokenizer.kind", "bpe"], "with a different config"),
    ):
        with pytest.raises(UserError) as error:
            train([str(argument) for argument in arguments])
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert capsys.readouterr().out == ""
    assert not (tmp_path / "w").exists()
    assert contents(folder) == before


def test_ctrl_c_ends_the_command_while_sentencepiece_trains(run, tmp_path):
    """The signal is sent once SentencePiece has read all lines, after which it runs no Python code for many seconds.

    The exit status is 130 only if it is still training when the process ends, not on the main thread, which has to
    handle signals.
    """
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
