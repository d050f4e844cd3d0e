"""Bad options and files are refused with one error line on stderr and exit status 2, and nothing is written."""

import os
import subprocess
import sys

import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_config
from lingua_flax.training.preparation import prepare
from tests.command_server import PROJECT_ON_PATH
from tests.toy import write_corpus


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (r"unknown option --json-file; did you mean --json\?", "--json-file f"),
        (r"vocab_size 60000 is larger than the corpus supports.* works is \d+$", "--tokenizer.vocab-size 60000"),
        (r"vocab_size 9 is too small.* the smallest that works is \d+$", "--tokenizer.vocab-size 9"),
        ("patience 2 has no effect", "--training.patience 2 --training.eval-every 0"),
        (
            "below the run's",
            "--training.num-epochs 1 --optimizer.schedule cosine --optimizer.warmup-steps 500",
        ),
        ("devices.platform gpu: .*none on this machine", "--devices.platform gpu"),
        ("devices.mesh data 64, fsdp 1, tensor 1 needs 64 devices; available: 1", "--devices.mesh.data 64"),
        ("unknown corpus.*did you mean .multi30k", "--data.name multi31k"),
        ("missing.model.*No such file", "--tokenizer.model-file missing.model"),
        ("not a SentencePiece model", "--tokenizer.model-file README.md"),
        ("~nosuchuser/a: there is no such home directory", "--data.train-source ~nosuchuser/a"),
    ],
)
def test_bad_options_of_training(refused, toy, tmp_path, words, options):
    train = ("train", "--config", toy, "--workdir", tmp_path / "w")
    refused(words, *train, *options.split(), process="--devices.platform" in options)


def test_bad_corpus_files(refused, tmp_path):
    config = write_corpus(tmp_path / "corpus")
    train = ("train", "--config", config, "--workdir", tmp_path / "w")
    (config.parent / "train.en").write_bytes(b"one.\ntwo.\n")
    refused(r"train.en.*\b2\b.*train.fr.*700", *train)
    (config.parent / "validation.fr").unlink()
    refused("validation.fr.*no such file", *train)


def test_workdirs_that_cannot_be_created(refused, toy, tmp_path):
    train = ("train", "--config", toy, "--workdir")
    languages = ("--source-language", "en", "--target-language", "fr")
    build = ("build", *languages, "--train", *toy.parent.glob("train.??"), "--workdir")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("not mounted")
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in ("build", "clean"):  # the second is a folder of a build
        (begun / name).write_text("")
    refused("file: not a directory", *train, tmp_path / "file" / "w")
    refused("/proc: cannot be written", *train, "/proc/w")
    refused("link: not a directory", *train, tmp_path / "link")
    refused("link: not a directory", *train, tmp_path / "link" / "w")
    refused("file: not a directory; choose another --workdir", *build, tmp_path / "file")
    refused("/proc: cannot be written .* choose another --workdir", *build, "/proc/w")
    refused("clean: File exists", *build, begun)


def test_damaged_tokenized_pairs(toy, tmp_path):
    """As after a power failure, in an incomplete copy of the cache folder, or by a single flipped bit."""
    config = read_config(toy)
    config = config.model_copy(update={"data": config.data.model_copy(update={"cache_directory": tmp_path / "cache"})})
    prepare(config, tmp_path / "w")
    for path in tmp_path.glob("cache/tokens/*/*"):
        content = path.read_bytes()
        flipped = content[:40] + bytes([content[40] ^ 1]) + content[41:]
        for damaged in (b"", content[:-8], flipped):
            path.write_bytes(damaged)
            with pytest.raises(
                UserError, match=r"this prepared corpus is damaged .* delete the folder and start again"
            ):
                prepare(config, tmp_path / "w")
        path.write_bytes(content)
    prepare(config, tmp_path / "w")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("--workdir is required", "evaluate"),
        ("none: not a workdir.*no such folder", "translate --workdir none"),
        ("not a workdir.*no config.toml", "translate --workdir ."),
        ("no checkpoint 7; saved: ", "translate --workdir W --checkpoint 7"),
        ("beam_size.* got 0", "translate --workdir W --beam-size 0"),
        ("unknown option --beam; did you mean --beam-size", "evaluate --workdir W --beam 2"),
        ("max_decoding_length 99 .*max_length 32", "translate --workdir W --max-decoding-length 99"),
        ("num_hypotheses 6 exceeds beam_size 5", "translate --workdir W --num-hypotheses 6"),
        ("bad, line 2.*not valid UTF-8", "translate --workdir W --input bad"),
        ("none: no such file", "translate --workdir W --input none"),
        ("udcff': not valid Unicode", "translate --workdir W --input two --prefix b\udcff"),
        ('no split "dev".*train, validation, test', "evaluate --workdir W --split dev"),
        ("two has 2 lines.* one has 1", "evaluate --workdir W --source two --reference one"),
        ("bad, line 2.*not valid UTF-8", "evaluate --workdir W --source two --reference bad"),
        ("no lines", "evaluate --workdir W --source empty --reference empty"),
        ("--source and --reference go together", "evaluate --workdir W --source two"),
        ("cannot be written.*no folder", "evaluate --workdir W --output no/hyps"),
        ("no such home directory", "evaluate --workdir W --data.train-source ~nosuchuser/a"),
        ("no such home directory", "distill --workdir W --output p.jsonl --data.train-source ~nosuchuser/a"),
    ],
)
def test_bad_requests_to_a_trained_network(refused, trained, tmp_path, words, command):
    for name, content in (("one", b"un !\n"), ("two", b"one.\ntwo.\n"), ("bad", b"un !\n\xff\n"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
    refused(words, *(trained[0] if word == "W" else word for word in command.split(" ")), cwd=tmp_path)


def test_translations_are_not_lost_to_a_closed_output(trained):
    command = f"{sys.executable} -m lingua_flax translate --workdir '{trained[0]}' >&-"
    done = subprocess.run(
        command, shell=True, input="one.", stderr=subprocess.PIPE, text=True, env=os.environ | PROJECT_ON_PATH
    )
    assert (done.returncode, done.stderr) == (2, "error: standard output is closed; write to a file with --output\n")
