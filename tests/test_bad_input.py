"""What bad input gets from the commands: one or two plain lines on stderr, exit status 2, nothing written."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from host.errors import UserError
from runs.workdir import Workdir
from tests.toy import write_corpus


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A folder with a fresh toy corpus and its config toy.toml."""
    return write_corpus(tmp_path / "corpus").parent


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Every path below a folder, with the bytes of files."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(run, tmp_path):
    """Runs a command that must be refused with words that the regular expressions find; returns its stderr."""

    def run_refused(*arguments: object, words: list[str], **options) -> str:
        before = contents(tmp_path)
        done = run(*arguments, **options)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert done.returncode == 2, (done.stdout, done.stderr)
        assert len(errors) == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert all(re.search(word, errors[0]) for word in words), errors[0]
        assert contents(tmp_path) == before
        return errors[0]

    return run_refused


@pytest.fixture
def train(corpus, refused, tmp_path):
    """train("...", words) runs train.py on the toy corpus in a new workdir and expects it refused."""

    def train_refused(*options: object, words: list[str], **more) -> str:
        workdir = tmp_path / "workdir"
        error = refused(
            "train.py", "--config", corpus / "toy.toml", "--workdir", workdir, *options, words=words, **more
        )
        assert not workdir.exists()
        return error

    return train_refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.num-heds", 4], ["unknown option --model.num-heds; did you mean --model.num-heads"]),
        (["--model.num-heads", 5], ["num_heads must divide embed_dim, got 5 heads for a width of 32"]),
        (["--model.dropout-rate", 1.5], [r"model.dropout_rate: .*less than 1, got 1.5"]),
        (["--training.num-steps", "many"], ["--training.num-steps", "'many'"]),
        (["--tokenizer.vocab-size", 60000], ["vocab_size 60000 is larger than the corpus supports", r"works is \d+$"]),
        (["--tokenizer.vocab-size", 9], ["vocab_size 9 is too small", r"the smallest that works is \d+$"]),
        (
            ["--tokenizer.character-coverage", 0.97],
            ["tokenizer.character_coverage", "greater than or equal to 0.98, got 0.97"],
        ),
        (["--training.seed", 2**32], ["training.seed", "less than 4294967296"]),
        (["--training.patience", 2, "--training.eval-every", 0], ["patience 2 has no effect"]),
        (
            ["--training.num-epochs", 1, "--optimizer.schedule", "cosine", "--optimizer.warmup-steps", 500],
            ["below the run's"],
        ),
        (["--devices.platform", "tpu"], ["devices.platform tpu", "none on this machine"]),
        (["--devices.platform", "gpu"], ["devices.platform gpu", "none on this machine"]),
        (
            ["--devices.mesh.data", 64],
            ["devices.mesh data 64, fsdp 1, tensor 1 needs 64 devices; available: 1"],
        ),
        (["--data.name", "multi31k"], ["unknown corpus", "did you mean .multi30k"]),
        (["--tokenizer.model-file", "missing.model"], ["missing.model", "No such file"]),
        (["--tokenizer.model-file", "README.md"], ["not a SentencePiece model"]),
    ],
)
def test_bad_options(train, options, words):
    train(*options, words=words)


def test_bad_config_files(refused, corpus, tmp_path):
    config = tmp_path / "c.toml"
    for text, words in (
        (b"[model]\nnum_heds = 4", ["did you mean model.num_heads"]),
        (b"# \n\xe9", ["line 2", "not valid UTF-8"]),
    ):
        config.write_bytes(text)
        refused("train.py", "--config", config, "--workdir", tmp_path / "w", words=[str(config), *words])
    refused(
        "train.py", "--config", tmp_path / "none.toml", "--workdir", tmp_path / "w", words=["none.toml", "No such file"]
    )


def damaged(name: str, content: bytes):
    return lambda corpus: (corpus / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "options", "words"),
    [
        (damaged("train.en", b"one.\ntwo.\n"), [], ["train.en", r"\b2\b", "train.fr", "700"]),
        (damaged("train.en", b"one.\n\xff\xfe\n"), [], ["train.en, line 2", "not valid UTF-8"]),
        (damaged("train.en", b""), [], ["train.en"]),
        (
            lambda corpus: [(corpus / f"train.{side}").write_bytes(b"") for side in ("en", "fr")],
            [],
            ["train", "no pairs|empty"],
        ),
        (lambda corpus: (corpus / "validation.fr").unlink(), [], ["validation.fr", "no such file"]),
        (damaged("t.tsv", b"one.\tun !\ntwo. deux !\n"), ["t.tsv"], ["t.tsv, line 2", "column"]),
        (damaged("t.jsonl", b'{"en": "one.", "fr": "un !"}\n{"en": "two."\n'), ["t.jsonl"], ["t.jsonl, line 2"]),
        (
            damaged("t.tsv.gz", gzip.compress(b"one.\tun !\n" * 99)[:-9]),
            ["t.tsv.gz"],
            ["t.tsv.gz", "truncated|damaged"],
        ),
    ],
    ids=["lengths", "utf8", "empty side", "empty", "missing", "tsv", "jsonl", "gzip"],
)
def test_bad_corpus_files(train, corpus, damage, options, words):
    damage(corpus)
    if options:
        config = corpus / "toy.toml"
        config.write_text(
            "\n".join(line for line in config.read_text().splitlines() if not line.startswith("train_target"))
        )
        options = ["--data.train-source", corpus / options[0]]
    train(*options, words=words)


def test_a_workdir_that_cannot_be_made(refused, corpus, tmp_path):
    (tmp_path / "file").write_text("")
    refused(
        "train.py",
        "--config",
        corpus / "toy.toml",
        "--workdir",
        tmp_path / "file" / "w",
        words=["file: not a directory"],
    )
    refused("train.py", "--config", corpus / "toy.toml", "--workdir", "/proc/w", words=["/proc: cannot be written"])


def test_languages_checksums_and_the_network(refused, tmp_path):
    """Multi30k without its files: a language it lacks, a file that is not the published one, a download offline."""
    train = ["train.py", "--config", "configs/multi30k_en_de.toml", "--workdir", tmp_path / "w"]
    refused(*train, "--data.target-language", "es", words=["es", "de", "fr", "cs"])
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for side in ("en", "de"):
            (folder / f"{name}.{side}.gz").write_bytes(gzip.compress(b"one\n"))
    refused(*train, "--data.directory", folder, words=[r"\.gz", "SHA-256|published"])
    refused(*train, "--data.directory", tmp_path / "nowhere", words=["nowhere"])


def test_the_phrasebook_has_one_direction(refused, tmp_path):
    refused(
        "train.py",
        "--config",
        "configs/tiny.toml",
        "--workdir",
        tmp_path / "w",
        "--data.target-language",
        "de",
        words=["de", "fr"],
    )


@pytest.fixture(scope="module")
def workdir(run, tmp_path_factory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("short")
    config = write_corpus(folder / "corpus")
    done = run(
        "train.py", "--config", config, "--workdir", folder / "w", "--training.num-steps", 2, "--training.eval-every", 0
    )
    assert done.returncode == 0, done.stderr
    return folder / "w"


@pytest.mark.parametrize("program", [pytest.param("evaluate.py", marks=pytest.mark.slow), "translate.py"])
def test_workdirs_and_checkpoints_that_are_not_there(refused, workdir, tmp_path, program):
    refused(program, words=["--workdir is required"])
    refused(program, "--workdir", tmp_path / "none", words=["not a workdir", "no such folder"])
    refused(program, "--workdir", tmp_path, words=["not a workdir", "no config.toml"])
    refused(program, "--workdir", workdir, "--checkpoint", 7, words=["no checkpoint 7; saved: 2"])
    refused(program, "--workdir", workdir, "--checkpoint", "newest", words=["the number of a step or average:N"])
    refused(program, "--workdir", workdir, "--beam-size", 0, words=["beam_size", "got 0"])
    refused(program, "--workdir", workdir, "--beam", 2, words=["unknown option --beam; did you mean --beam-size"])
    refused(
        program, "--workdir", workdir, "--max-decoding-length", 99, words=["max_decoding_length 99", "max_length 32"]
    )


def test_a_workdir_without_a_checkpoint(refused, workdir, tmp_path):
    (tmp_path / "w").mkdir()
    for name in ("config.toml", "tokenizer.model"):
        (tmp_path / "w" / name).write_bytes((workdir / name).read_bytes())
    refused("evaluate.py", "--workdir", tmp_path / "w", words=["no checkpoint; saved: none"])
    (tmp_path / "w" / "tokenizer.model").unlink()
    refused("translate.py", "--workdir", tmp_path / "w", words=["tokenizer.model", "cannot read the tokenizer"])


def test_evaluations_that_cannot_be(refused, workdir, tmp_path):
    for name, content in (("a", b"one.\ntwo.\n"), ("b", b"un !\n"), ("c", b"un !\n\xff\n"), ("d", b"")):
        (tmp_path / name).write_bytes(content)
    a, b, c, d = (tmp_path / name for name in "abcd")
    refused("evaluate.py", "--workdir", workdir, "--split", "dev", words=['no split "dev"', "train, validation, test"])
    refused("evaluate.py", "--workdir", workdir, "--source", a, "--reference", b, words=["a has 2 lines", "b has 1"])
    refused(
        "evaluate.py", "--workdir", workdir, "--source", a, "--reference", c, words=["c, line 2", "not valid UTF-8"]
    )
    refused("evaluate.py", "--workdir", workdir, "--source", d, "--reference", d, words=["no lines"])
    refused("evaluate.py", "--workdir", workdir, "--source", a, words=["--source and --reference go together"])
    refused(
        "evaluate.py", "--workdir", workdir, "--output", tmp_path / "no" / "h", words=["cannot be written", "no folder"]
    )
    refused(
        "evaluate.py",
        "--workdir",
        workdir,
        "--source",
        a,
        "--reference",
        b,
        "--output",
        b,
        words=["would be used twice"],
    )


def test_translations_that_cannot_be(refused, workdir, tmp_path):
    (tmp_path / "bad").write_bytes(b"one.\n\xff\n")
    refused("translate.py", "--workdir", workdir, "--input", tmp_path / "bad", words=["bad, line 2", "not valid UTF-8"])
    refused("translate.py", "--workdir", workdir, "--input", tmp_path / "none", words=["none: no such file"])
    refused("translate.py", "--workdir", workdir, "--num-hypotheses", 6, words=["num_hypotheses 6 exceeds beam_size 5"])


def test_a_tokenizer_that_is_not_the_checkpoints(refused, workdir, run, tmp_path):
    shutil.copytree(workdir, tmp_path / "w")
    other = tmp_path / "other"
    config = write_corpus(tmp_path / "corpus")
    options = ["--tokenizer.kind", "bpe", "--training.num-steps", 1, "--training.eval-every", 0]
    assert run("train.py", "--config", config, "--workdir", other, *options).returncode == 0
    shutil.copy(other / "tokenizer.model", tmp_path / "w")
    refused(
        "translate.py",
        "--workdir",
        tmp_path / "w",
        words=["its tokenizer is not the one that checkpoint 2 was trained with"],
    )


@pytest.mark.parametrize(
    "line",
    ["[1]", "\0\0", '{"step": true}', '{"step": 3, "loss": "x"}', '{"step": 3, "loss": []}', '{"step":' + "[" * 9999],
)
def test_metrics_of_the_wrong_kind(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": null, "batch": "ab"}}\n{line}\n{{"step"')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2: not the metrics of a step; repair or remove it"):
        Workdir(tmp_path).read_metrics()


def another_line(path: Path) -> None:
    with open(path, "a") as file:
        file.write("[1]\n")


@pytest.fixture
def train_on(refused, workdir, tmp_path):
    """train_on(words) expects that the run, a copy of which is train_on.workdir, is refused to go on."""

    def train(*, words: list[str]) -> str:
        return refused("train.py", "--workdir", tmp_path / "w", "--training.num-steps", 9, words=words)

    train.workdir = shutil.copytree(workdir, tmp_path / "w")
    return train


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def hostile_records(path: Path) -> None:
    for record in path.glob("*/record/*"):
        record.write_text("[" * 100_000)


@pytest.mark.parametrize(
    ("name", "damage", "train_says", "translate_says"),
    [
        ("metrics.jsonl", another_line, "metrics.jsonl, line 3: not the metrics of a step", None),
        ("metrics.jsonl", folder_instead, "metrics.jsonl: not a file", None),
        (
            "tokenizer.model",
            lambda path: path.write_bytes(path.read_bytes()[:999]),
            "not a SentencePiece model",
            "same",
        ),
        ("tokenizer.model", lambda path: path.write_bytes(b"\x80\x04K\x01."), "not a SentencePiece model", "same"),
        ("tokenizer.model", folder_instead, "cannot read the tokenizer", "same"),
        (
            "config.toml",
            lambda path: path.write_bytes(b"\x80\x04K\x01."),
            "config.toml, line 1: not valid UTF-8",
            "same",
        ),
        ("config.toml", lambda path: path.write_text("model = " + "[" * 9999), "config.toml: n", "same"),
        ("config.toml", lambda path: path.write_text(""), "data.name: text in checkpoint 2, now phrasebook", None),
        ("checkpoints", hostile_records, "none of its checkpoints is intact; nothing was deleted", "cannot be used"),
    ],
)
def test_files_of_a_workdir_that_are_not_what_they_should_be(
    train_on, refused, name, damage, train_says, translate_says
):
    damage(train_on.workdir / name)
    train_on(words=[train_says])
    if translate_says:
        words = [train_says if translate_says == "same" else translate_says]
        refused("translate.py", "--workdir", train_on.workdir, words=words, input="one.\n")
