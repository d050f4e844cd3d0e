"""Bad input is refused by the commands with one error line on stderr and exit status 2, and nothing is written."""

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.tokenizer import train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.runs.workdir import Workdir
from tests.command_server import PROJECT_ON_PATH
from tests.toy import write_corpus


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Returns a folder with a new toy corpus and its config toy.toml."""
    return write_corpus(tmp_path / "corpus").parent


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Returns every path below a folder, with the bytes of files."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(run, tmp_path):
    """Runs a command that must be refused with an error that matches all regular expressions. Returns the error."""

    def run_refused(*arguments: object, words: list[str], **options) -> str:
        before = contents(tmp_path)
        result = run(*arguments, **options)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert result.returncode == 2, (result.stdout, result.stderr)
        assert len(errors) == 1, result.stderr
        assert "Traceback" not in result.stderr
        assert all(re.search(word, errors[0]) for word in words), errors[0]
        assert contents(tmp_path) == before
        return errors[0]

    return run_refused


def test_translations_are_not_lost_to_a_closed_output(trained):
    command = f"{sys.executable} -m lingua_flax translate --workdir '{trained[0]}' >&-"
    done = subprocess.run(
        command, shell=True, input="one.", stderr=subprocess.PIPE, text=True, env=os.environ | PROJECT_ON_PATH
    )
    assert (done.returncode, done.stderr) == (2, "error: standard output is closed; write to a file with --output\n")


@pytest.fixture
def train(corpus, refused, tmp_path):
    """Runs lingua-flax train on the toy corpus in a new workdir, like `refused`."""

    def train_refused(*options: object, words: list[str], **more) -> str:
        workdir = tmp_path / "workdir"
        error = refused("train", "--config", corpus / "toy.toml", "--workdir", workdir, *options, words=words, **more)
        assert not workdir.exists()
        return error

    return train_refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.num-heds", 4], ["unknown option --model.num-heds; did you mean --model.num-heads"]),
        (["--json-file", "f"], ["unknown option --json-file; did you mean --json?"]),
        (["--model.num-heads", 5], ["num_heads must divide embed_dim, got 5 heads for a width of 32"]),
        (["--model.dropout-rate", 1.5], [r"model.dropout_rate: .*less than 1, got 1.5"]),
        (["--training.num-steps", "many"], ['training.num_steps: must be a whole number, got "many"$']),
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
        refused("train", "--config", config, "--workdir", tmp_path / "w", words=[str(config), *words])
    refused(
        "train", "--config", tmp_path / "none.toml", "--workdir", tmp_path / "w", words=["none.toml", "No such file"]
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


def test_workdir_that_cannot_be_created(refused, corpus, tmp_path):
    (tmp_path / "file").write_text("")
    refused(
        "train",
        "--config",
        corpus / "toy.toml",
        "--workdir",
        tmp_path / "file" / "w",
        words=["file: not a directory"],
    )
    refused("train", "--config", corpus / "toy.toml", "--workdir", "/proc/w", words=["/proc: cannot be written"])
    build = ["build", "--source-language", "en", "--target-language", "fr", "--train", *corpus.glob("train.??")]
    refused(*build, "--workdir", tmp_path / "file", words=["file: not a directory; choose another --workdir"])
    refused(*build, "--workdir", "/proc/w", words=["/proc: cannot be written .* choose another --workdir"])
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in ("build", "clean"):  # the second is a folder of a build
        (begun / name).write_text("")
    refused(*build, "--workdir", begun, words=["clean: File exists"])
    (tmp_path / "link").symlink_to("not mounted")
    for workdir in (tmp_path / "link", tmp_path / "link" / "w"):
        refused("train", "--config", corpus / "toy.toml", "--workdir", workdir, words=["link: not a directory"])


def test_home_directory_that_does_not_exist(train):
    train(
        "--data.train-source", "~nosuchuser/train.en", words=["~nosuchuser/train.en: there is no such home directory"]
    )


@pytest.mark.parametrize("command", [("evaluate",), ("distill", "--output", "pairs.jsonl")])
def test_home_directory_that_does_not_exist_of_a_trained_run(trained, refused, command):
    source = ("--data.train-source", "~nosuchuser/train.en")
    words = ["~nosuchuser/train.en: there is no such home directory"]
    refused(*command, "--workdir", trained[0], *source, words=words)


def test_damaged_tokenized_pairs(refused, run, corpus, tmp_path):
    """As after a power failure, in an incomplete copy of the cache folder, or by a single flipped bit."""
    cache = tmp_path / "cache"
    train = ["train", "--config", corpus / "toy.toml", "--data.cache-directory", cache, "--training.num-steps", 1]
    assert run(*train, "--training.eval-every", 0, "--workdir", tmp_path / "w").returncode == 0
    for path in cache.glob("tokens/*/*"):
        content = path.read_bytes()
        flipped = content[:40] + bytes([content[40] ^ 1]) + content[41:]
        for damaged in (b"", content[:-8], flipped):
            path.write_bytes(damaged)
            words = ["this prepared corpus is damaged", "delete the folder and start again"]
            tokenizer = ("--tokenizer.model-file", tmp_path / "w/tokenizer.model")
            refused(*train, "--workdir", tmp_path / "w2", *tokenizer, words=words)
        path.write_bytes(content)


def test_bad_multi30k_language_files_and_folder(refused, tmp_path):
    """A language that Multi30k lacks, a file that differs from the published one, and a missing folder."""
    train = ["train", "--config", "configs/multi30k_en_de.toml", "--workdir", tmp_path / "w"]
    refused(*train, "--data.target-language", "es", words=["es", "de", "fr", "cs"])
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for side in ("en", "de"):
            (folder / f"{name}.{side}.gz").write_bytes(gzip.compress(b"one\n"))
    refused(*train, "--data.directory", folder, words=[r"\.gz", "SHA-256|published"])
    refused(*train, "--data.directory", tmp_path / "nowhere", words=["nowhere"])


def test_phrasebook_has_only_one_direction(refused, tmp_path):
    refused(
        "train",
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
    """Returns the workdir of a run of two steps."""
    folder = tmp_path_factory.mktemp("short")
    config = write_corpus(folder / "corpus")
    done = run(
        "train", "--config", config, "--workdir", folder / "w", "--training.num-steps", 2, "--training.eval-every", 0
    )
    assert done.returncode == 0, done.stderr
    return folder / "w"


@pytest.mark.parametrize("program", [pytest.param("evaluate", marks=pytest.mark.slow), "translate"])
def test_missing_workdirs_and_checkpoints(refused, workdir, tmp_path, program):
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


def test_workdir_without_checkpoint(refused, workdir, tmp_path):
    (tmp_path / "w").mkdir()
    for name in ("config.toml", "tokenizer.model"):
        (tmp_path / "w" / name).write_bytes((workdir / name).read_bytes())
    refused("evaluate", "--workdir", tmp_path / "w", words=["no checkpoint; saved: none"])
    (tmp_path / "w" / "tokenizer.model").unlink()
    refused("translate", "--workdir", tmp_path / "w", words=["tokenizer.model", "cannot read the tokenizer"])


def test_invalid_evaluations(refused, workdir, tmp_path):
    for name, content in (("a", b"one.\ntwo.\n"), ("b", b"un !\n"), ("c", b"un !\n\xff\n"), ("d", b"")):
        (tmp_path / name).write_bytes(content)
    a, b, c, d = (tmp_path / name for name in "abcd")
    refused("evaluate", "--workdir", workdir, "--split", "dev", words=['no split "dev"', "train, validation, test"])
    refused("evaluate", "--workdir", workdir, "--source", a, "--reference", b, words=["a has 2 lines", "b has 1"])
    refused("evaluate", "--workdir", workdir, "--source", a, "--reference", c, words=["c, line 2", "not valid UTF-8"])
    refused("evaluate", "--workdir", workdir, "--source", d, "--reference", d, words=["no lines"])
    refused("evaluate", "--workdir", workdir, "--source", a, words=["--source and --reference go together"])
    refused(
        "evaluate", "--workdir", workdir, "--output", tmp_path / "no" / "h", words=["cannot be written", "no folder"]
    )
    refused(
        "evaluate",
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


def test_invalid_translations(refused, workdir, tmp_path):
    (tmp_path / "bad").write_bytes(b"one.\n\xff\n")
    refused("translate", "--workdir", workdir, "--input", tmp_path / "bad", words=["bad, line 2", "not valid UTF-8"])
    refused("translate", "--workdir", workdir, "--input", tmp_path / "none", words=["none: no such file"])
    (tmp_path / "good").write_text("one.\n")
    prefixed = ("--input", tmp_path / "good", "--prefix", "b\udcff")
    refused("translate", "--workdir", workdir, *prefixed, words=["udcff': not valid Unicode"])
    refused("translate", "--workdir", workdir, "--num-hypotheses", 6, words=["num_hypotheses 6 exceeds beam_size 5"])


def test_tokenizer_that_differs_from_the_checkpoint(refused, workdir, corpus, tmp_path):
    shutil.copytree(workdir, tmp_path / "w")
    sides = [(corpus / f"train.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "fr")]
    pairs = [Pair(*pair) for pair in zip(*sides, strict=True)]
    (model,) = train_tokenizer(pairs, TokenizerConfig(kind="bpe", vocab_size=45))
    (tmp_path / "w" / "tokenizer.model").write_bytes(model)
    words = ["its tokenizer is not the one that checkpoint 2 was trained with"]
    refused("translate", "--workdir", tmp_path / "w", words=words)


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        "\0\0",
        '{"step": true}',
        '{"step": 3, "loss": "x"}',
        '{"step": 3, "loss": []}',
        '{"step": 3, "samples": "x"}',
        '{"step":' + "[" * 9999,
    ],
)
def test_invalid_metrics_are_refused(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": null, "batch": "ab"}}\n{line}\n{{"step"')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2: not the metrics of a step; repair or remove it"):
        Workdir(tmp_path).read_metrics()


def append_line(path: Path) -> None:
    with open(path, "a") as file:
        file.write("[1]\n")


@pytest.fixture
def resume_copy(refused, workdir, tmp_path):
    """Tries to resume a copy of the run, in resume_copy.workdir; like `refused`."""

    def resume(*, words: list[str]) -> str:
        return refused("train", "--workdir", tmp_path / "w", "--training.num-steps", 9, words=words)

    resume.workdir = shutil.copytree(workdir, tmp_path / "w")
    return resume


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def nest_records_deeply(path: Path) -> None:
    for record in path.glob("*/metadata/*"):
        record.write_text("[" * 100_000)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:999])


def write_pickle(path: Path) -> None:
    path.write_bytes(b"\x80\x04K\x01.")


def nest_deeply(path: Path) -> None:
    path.write_text("model = " + "[" * 9999)


def keep_data_section(path: Path) -> None:
    (section,) = re.findall(r"^\[data\]\n.*?(?=^\[)", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    path.write_text(section, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "damage", "train_error", "translate_error"),
    [
        ("metrics.jsonl", append_line, "metrics.jsonl, line 3: not the metrics of a step", None),
        ("metrics.jsonl", replace_by_folder, "metrics.jsonl: not a file", None),
        ("tokenizer.model", truncate, "not a SentencePiece model", "same"),
        ("tokenizer.model", write_pickle, "not a SentencePiece model", "same"),
        ("tokenizer.model", replace_by_folder, "cannot read the tokenizer", "same"),
        ("config.toml", write_pickle, "config.toml, line 1: not valid UTF-8", "same"),
        ("config.toml", nest_deeply, "config.toml: n", "same"),
        ("config.toml", keep_data_section, "model.embed_dim: 32 in checkpoint 2, now 256", "same"),
        ("checkpoints", nest_records_deeply, "none of its checkpoints is intact; nothing was deleted", "be used"),
    ],
)
def test_damaged_workdir_files_are_refused(resume_copy, refused, name, damage, train_error, translate_error):
    damage(resume_copy.workdir / name)
    resume_copy(words=[train_error])
    if translate_error:
        words = [train_error if translate_error == "same" else translate_error]
        refused("translate", "--workdir", resume_copy.workdir, words=words, input="one.\n")
