"""How many programs are compiled, and what padding all sentences alike changes: nothing but time."""

import dataclasses
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.batch import length_batches
from devices.compilation import compiled_program
from options.schema import ComputeConfig, DecodingOptions
from tests.processes import read_lines, start, wait_for
from tests.toy import ENGLISH, FRENCH
from translation.translator import Translator


def compiled(stderr: str) -> int:
    """What the log says at the end of a command."""
    (count,) = re.findall(r"^compiled (\d+) programs?,", stderr, re.MULTILINE)
    return int(count)


@pytest.fixture(scope="module")
def many_lengths(tmp_path_factory) -> tuple[Path, Path]:
    """Three batches of 64 pairs, each of another length: a few words, many, and many more."""
    folder = tmp_path_factory.mktemp("lengths")
    numbers = [[(line + word) % 10 for word in range(words)] for line in range(60) for words in (1, 4, 8)]
    lines = {
        "en": [" ".join(ENGLISH[n] for n in line) + "." for line in numbers],
        "fr": [" ".join(FRENCH[n] for n in reversed(line)) + " !" for line in numbers],
    }
    for language, own in lines.items():
        (folder / f"lines.{language}").write_text("".join(f"{line}\n" for line in own), encoding="utf-8")
    return folder / "lines.en", folder / "lines.fr"


@pytest.fixture(scope="module")
def runs(toy, run, many_lengths, tmp_path_factory):
    """The same run with sentences padded to one of four lengths, and all to the longest's as on accelerators."""
    files = ["--data.validation-source", many_lengths[0], "--data.validation-target", many_lengths[1]]
    options = [*files, "--training.num-steps", 60, "--training.eval-every", 30]
    found = {}
    for padding in ("lengths", "longest"):
        workdir = tmp_path_factory.mktemp("runs") / padding
        found[padding] = (
            workdir,
            run("train.py", "--config", toy, "--workdir", workdir, "--devices.padding", padding, *options),
        )
    return found


def test_a_run_compiles_four_programs(runs):
    """The initial state, the step, and of a validation the loss and the search."""
    workdir, done = runs["longest"]
    assert done.returncode == 0, done.stderr
    assert compiled(done.stderr) == 4
    assert [line["programs_compiled"] for line in read_lines(workdir) if "loss" in line][-1] == 4
    assert compiled(runs["lengths"][1].stderr) == 6


def test_an_evaluation_compiles_one_program_and_finds_the_same(runs, run, many_lengths, tmp_path):
    workdir, _ = runs["longest"]
    programs, found = {}, {}
    for padding in ("lengths", "longest"):
        options = ["--source", many_lengths[0], "--reference", many_lengths[1], "--devices.padding", padding]
        done = run("evaluate.py", "--workdir", workdir, *options, "--output", tmp_path / padding)
        assert done.returncode == 0, done.stderr
        programs[padding], found[padding] = compiled(done.stderr), (tmp_path / padding).read_text()
    assert programs["longest"] == 1
    assert programs["lengths"] == 2
    assert found["lengths"] == found["longest"]


def test_validation_finds_the_same_too(runs):
    longest, lengths = (
        [line for line in read_lines(runs[padding][0]) if "validation_loss" in line]
        for padding in ("longest", "lengths")
    )
    assert len(longest) == 2
    assert [line["validation_bleu"] for line in longest] == [line["validation_bleu"] for line in lengths]
    for name in ("validation_loss", "validation_loss_shuffled"):
        assert [line[name] for line in longest] == pytest.approx([line[name] for line in lengths], rel=1e-5)


def test_a_run_that_is_stopped_while_validation_is_compiled_is_saved(toy, tmp_path):
    workdir = tmp_path / "w"
    process = start(toy, workdir, "--devices.padding", "longest", "--training.log-every", 1)
    wait_for(process, lambda: (workdir / "metrics.jsonl").exists() and read_lines(workdir))
    process.terminate()
    _, stderr = process.communicate()
    assert process.returncode == 143
    assert re.search(r"step \d+ is saved; run the same command again to continue", stderr)


def test_one_length_for_all_batches():
    lengths = [3, 90, 7, 2, 60, 4]
    assert [length for _, length in length_batches(lengths, 2, 100)] == [13, 13, 100]
    assert [length for _, length in length_batches(lengths, 2, 100, same_length=True)] == [100] * 3
    assert [length for _, length in length_batches(lengths[:1], 2, 100, same_length=True)] == [13]


def test_lines_alone_and_together_are_translated_alike(trained):
    """Those that are padded to the longest beside those that stand alone."""
    translator = Translator.load(trained[0], devices=ComputeConfig(platform="cpu", padding="longest"))
    assert translator.pads_to_longest
    options = DecodingOptions(beam_size=2)
    lines = ["one.", "three four.", "nine eight seven six five four three two one zero."]
    alone = [translator.translate([line], options)[0].text for line in lines]
    assert alone == [found.text for found in translator.translate(lines, options)]


def test_threads_that_ask_for_one_program_wait_for_it():
    traced = []

    @jax.jit
    def double(x):
        traced.append(x.shape)
        return 2 * x

    programs = []
    threads = [
        threading.Thread(target=lambda: programs.append(compiled_program(double, jnp.ones(3)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traced == [(3,)]
    assert len(set(map(id, programs))) == 1
    assert compiled_program(double, jax.ShapeDtypeStruct((4,), jnp.float32))(jnp.ones(4)).tolist() == [2.0] * 4
    assert traced == [(3,), (4,)]


def test_a_program_that_cannot_be_compiled_fails_for_all_who_ask():
    @jax.jit
    def wrong(x):
        raise ValueError("of its own")

    for _ in range(2):
        with pytest.raises(ValueError, match="of its own"):
            compiled_program(wrong, jnp.ones(3))


@pytest.mark.parametrize(
    ("platform", "layers", "width", "longest", "beams", "rows"),
    [
        ("cpu", 6, 512, 64, 5, 64),
        ("gpu", 3, 128, 64, 5, 512),  # 512 sentences, 5 beams, 138 positions, 2 * 3 * 128 numbers: 271 million
        ("tpu", 6, 512, 64, 5, 256),  # 256, 5, 138 and 2 * 6 * 512: 1.1 billion of at most 2.1
        ("tpu", 6, 512, 64, 1, 512),
        ("tpu", 6, 1024, 128, 10, 64),  # never fewer, for none would fit: 2.0 billion, with a max_length of 256
    ],
)
def test_as_many_sentences_together_as_their_caches_have_room(trained, platform, layers, width, longest, beams, rows):
    translator = Translator.load(trained[0], devices=ComputeConfig(platform="cpu"))
    config = translator.config.model_copy(update={"num_decoder_layers": layers, "embed_dim": width, "max_length": 256})
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    translator = dataclasses.replace(translator, config=config, mesh=mesh)
    assert translator.decoding_batch_size(longest, beams) == rows
