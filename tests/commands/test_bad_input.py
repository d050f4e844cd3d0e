"""Bad options and files are refused with one error line on stderr and exit status 2, and nothing is written."""

import os
import re
import subprocess
import sys

import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_config
from lingua_flax.training.preparation import prepare
from tests.command_server import PROJECT_ON_PATH
from tests.toy import write_corpus


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
    file, link, begun = (tmp_path / name for name in ("file", "link", "begun"))
    file.write_text("")
    link.symlink_to("not mounted")
    begun.mkdir()
    for name in ("build", "clean"):  # the second is a folder of a build
        (begun / name).write_text("")
    for words, command, workdir in (
        ("file: not a directory", train, file / "w"),
        ("/proc: cannot be written", train, "/proc/w"),
        ("link: not a directory", train, link),
        ("link: not a directory", train, link / "w"),
        ("file: not a directory; choose another --workdir", build, file),
        (r"w\[1\]: checkpoints cannot be read from a path with \[; choose another", train, tmp_path / "w[1]"),
        (r"checkpoints cannot be read from a path with \* \\; choose another", build, tmp_path / "*" / "a\\b"),
        ("clean: File exists", build, begun),
    ):
        refused(words, *command, workdir)


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
            with pytest.raises(UserError, match="this prepared corpus is damaged"):
                prepare(config, tmp_path / "w")
        path.write_bytes(content)
    prepare(config, tmp_path / "w")


# What each command says; "W" stands for the workdir of a trained run, "TOY" for its config.
REFUSED = {
    "train --config TOY --workdir w": [
        (r"unknown option --json-file; did you mean --json\?", "--json-file f"),
        ("patience 2 has no effect", "--training.patience 2 --training.eval-every 0"),
        ("below the run's", "--training.num-epochs 1 --optimizer.schedule cosine --optimizer.warmup-steps 500"),
        ("the run's 1 step for", "--training.num-epochs 0.001 --optimizer.schedule cosine --optimizer.warmup-steps 5"),
        ("devices.mesh data 64, fsdp 1, tensor 1 needs 64 devices; available: 1", "--devices.mesh.data 64"),
        ("missing.model.*No such file", "--tokenizer.model-file missing.model"),
        ("~nosuchuser/a: there is no such home directory", "--data.train-source ~nosuchuser/a"),
    ],
    "evaluate": [
        ("two has 2 lines.* one has 1", "--workdir W --source two --reference one"),
        ("no lines", "--workdir W --source empty --reference empty"),
        ("--source and --reference go together", "--workdir W --source two"),
        ("a .tsv or .jsonl file holds both sides", "--workdir W --source pairs.tsv --reference two"),
        ("--score takes one --reference", "--workdir W --source two --reference two two --score"),
        ("evaluation.tokenize: ", "--workdir W --evaluation.tokenize zh-tw"),
        ("cannot be written.*no folder", "--workdir W --output no/hyps"),
    ],
    "translate": [
        ("not a workdir.*no config.toml", "--workdir ."),
        ("no checkpoint 7; saved: ", "--workdir W --checkpoint 7"),
        ("udcff': not valid Unicode", "--workdir W --input two --prefix b\udcff"),
        ("num_processes and process_id go together: all three, or none", "--workdir W --coordinator here:1"),
        ('such as 10.0.0.1:1234, got "a"', "--workdir W --coordinator a --num-processes 2 --process-id 0"),
        ("below num_processes, got 2 of 2", "--workdir W --coordinator a:1 --num-processes 2 --process-id 2"),
    ],
    "distill": [
        ("--output is required: file for the pairs, one JSON object per line", "--workdir W"),
        ("--output p.txt: the name must end in .jsonl or .jsonl.gz", "--workdir W --output p.txt"),
        ("/nowhere", "--workdir W --output /nowhere/p.jsonl"),
        ("--data.tag-target must remain False", "--workdir W --output p.jsonl --data.tag-target True"),
    ],
    "compare": [
        ("--baseline: expected at least one argument", "W --baseline"),
        ("is given twice; each run counts once", "W --baseline W/../uninterrupted"),
        ("--names: there must be 2, all different, got x, x", "W --baseline one --names x x"),
        ("none: no such file or folder; give workdirs", "W --baseline none"),
        ("--plot a.jpg: the name must end in .png or .svg or .pdf", "W --plot a.jpg"),
        ("--split has no effect with --source", "W --split train --source x.tsv"),
        ("one is a file of translations; one system must be the workdir", "one --baseline two"),
        ("--split must be one", "one --baseline W --split test train"),
        ("--baseline-beam-size has no effect without a run as --baseline", "W --baseline one --baseline-beam-size 1"),
        ("has 37 lines, but one has 1; they must be aligned", "W --baseline one"),
        ("would be used twice", "W --csv x --json x"),
    ],
    "clean": [
        ("the following arguments are required: PATH", ""),
        ("--output c.txt: the name must end in .jsonl or .tsv", "one two --output c.txt"),
        ("--columns must be two", "one two --output c.tsv --columns 1"),
        ("go together", "one two --output c.tsv --source-language en"),
        ('unknown encoding "latin-99"', "one two --output c.tsv --encoding latin-99"),
        ('unknown encoding "base64"', "one two --output c.tsv --encoding base64"),
        ("give two text files", "one --output c.tsv"),
        ("--rejected has no effect with --dry-run", "one two --dry-run --rejected r.jsonl"),
        ("--columns has no effect with two text files", "one two --dry-run --columns 1 2"),
        ("would not fit into .tsv", "one two --output c.tsv --whitespace False"),
        ("would be used twice", "one two --output c.jsonl --rejected c.jsonl"),
    ],
    "verify-resume": [("--config is required", "")],
    "train --config tiny": [
        ("devices.topology has no effect without --dry-run", "--devices.topology v5e:1x1 --workdir w"),
        ("no/such/folder", "--dry-run --json no/such/folder/f"),
        (r"\(v4, v5e, v5p, v6e\) and a shape, such as v5e:2x4, or", "--dry-run --devices.topology v5:1x1"),
        ('such as h100:8, got "v5e"', "--dry-run --devices.topology v5e"),
        ('such as h100:8, got "h100:0"', "--dry-run --devices.topology h100:0"),
    ],
}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_options(refused, trained, toy, tmp_path, command):
    for name, content in (("one", "un !\n"), ("two", "one.\ntwo.\n"), ("empty", "")):
        (tmp_path / name).write_text(content)
    for words, options in REFUSED[command]:
        filled = [re.sub("^W", str(trained[0]), word) for word in options.split()]
        refused(words, *command.replace("TOY", str(toy)).split(), *filled, cwd=tmp_path)


def test_translations_are_not_lost_to_a_closed_output(trained):
    command = f"{sys.executable} -m lingua_flax translate --workdir '{trained[0]}' >&-"
    done = subprocess.run(
        command, shell=True, input="one.", stderr=subprocess.PIPE, text=True, env=os.environ | PROJECT_ON_PATH
    )
    assert (done.returncode, done.stderr) == (2, "error: standard output is closed; write to a file with --output\n")
