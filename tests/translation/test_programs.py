"""The number of compiled programs; padding all sentences to the same length changes nothing else."""

import dataclasses
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.data.batch import length_batches
from lingua_flax.devices.compilation import compiled_program
from tests.helpers.translation import random_translator
from tests.processes import read_lines
from tests.toy import ENGLISH, FRENCH


def programs_compiled(stderr: str) -> int:
    """Returns the number in the last line of a command's log."""
    (count,) = re.findall(r"^compiled (\d+) programs?,", stderr, re.MULTILINE)
    return int(count)


@pytest.fixture(scope="module")
def two_lengths(tmp_path_factory) -> tuple[Path, Path]:
    """Returns the files of a batch of 64 short pairs and a few long ones, which are padded to another length."""
    folder = tmp_path_factory.mktemp("lengths")
    numbers = [[(line + word) % 10 for word in range(1 if line < 64 else 8)] for line in range(68)]
    sources = [" ".join(ENGLISH[n] for n in line) + "." for line in numbers]
    targets = [" ".join(FRENCH[n] for n in reversed(line)) + " !" for line in numbers]
    for name, lines in (("lines.en", sources), ("lines.fr", targets)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / "lines.en", folder / "lines.fr"


@pytest.fixture(scope="module")
def runs(toy, run, trained, two_lengths, tmp_path_factory):
    """Returns the workdir and the completed command of two runs that differ in padding: "longest" as on accelerators.

    Their model is already trained, so that its translations have a score.
    """
    files = ["--data.validation-source", two_lengths[0], "--data.validation-target", two_lengths[1]]
    model = ["--training.init-from", trained[0], "--tokenizer.model-file", trained[0] / "tokenizer.model"]
    options = [*files, *model, "--training.num-steps", 2, "--training.eval-every", 1]
    results = {}
    for padding in ("lengths", "longest"):
        workdir = tmp_path_factory.mktemp("runs") / padding
        command = ["train", "--config", toy, "--workdir", workdir, "--devices.padding", padding]
        results[padding] = workdir, run(*command, *options, process=True)
        assert results[padding][1].returncode == 0, results[padding][1].stderr
    return results


def test_run_compiles_four_programs(runs):
    """The initial state, the step, and the loss and the search of a validation."""
    workdir, done = runs["longest"]
    assert programs_compiled(done.stderr) == 4
    assert [line["programs_compiled"] for line in read_lines(workdir) if "loss" in line][-1] == 4
    assert programs_compiled(runs["lengths"][1].stderr) == 6


def test_padding_does_not_change_validation(runs):
    longest, lengths = (
        [line for line in read_lines(runs[padding][0]) if "validation_loss" in line]
        for padding in ("longest", "lengths")
    )
    assert len(longest) == 2
    assert longest[0]["validation_bleu"] > 0
    assert [line["validation_bleu"] for line in longest] == [line["validation_bleu"] for line in lengths]
    for name in ("validation_loss", "validation_loss_shuffled"):
        assert [line[name] for line in longest] == pytest.approx([line[name] for line in lengths], rel=1e-5)


def test_run_stopped_while_validation_is_compiled_is_saved(toy, run, tmp_path):
    """The thread that compiles the validation sends the signal after the first step and then compiles."""
    script, workdir = Path(__file__).parent / "scripts" / "stopped_while_compiling.py", tmp_path / "w"
    options = ["--config", toy, "--workdir", workdir, "--devices.padding", "longest", "--training.log-every", 1]
    done = run(script, workdir, "train", *options)
    assert done.returncode == 143
    assert re.search(r"step \d+ is saved; run the same command again to continue", done.stderr)
    assert "Traceback" not in done.stderr
    assert not [line for line in read_lines(workdir) if "validation_loss" in line]


def test_all_batches_can_have_the_same_length():
    lengths = [3, 90, 7, 2, 60, 4]
    assert [length for _, length in length_batches(lengths, 2, 100)] == [13, 13, 100]
    assert [length for _, length in length_batches(lengths, 2, 100, same_length=True)] == [100] * 3


def test_threads_that_request_the_same_program_share_it():
    traced, programs = [], []

    @jax.jit
    def double(x):
        traced.append(x.shape)
        return 2 * x

    def request():
        programs.append(compiled_program(double, jnp.ones(3)))

    threads = [threading.Thread(target=request) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traced == [(3,)]
    assert len(set(map(id, programs))) == 1
    assert compiled_program(double, jax.ShapeDtypeStruct((4,), jnp.float32))(jnp.ones(4)).tolist() == [2.0] * 4
    assert traced == [(3,), (4,)]


def test_compilation_error_is_raised_at_every_request():
    @jax.jit
    def wrong(x):
        raise ValueError("cannot be traced")

    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be traced"):
            compiled_program(wrong, jnp.ones(3))


@pytest.mark.parametrize(
    ("platform", "layers", "width", "longest", "beams", "rows"),
    [
        ("cpu", 6, 512, 64, 5, 64),
        ("tpu", 6, 512, 64, 5, 256),  # 256, 5, 138 and 2 * 6 * 512: 1.1 billion of at most 2.1
        ("tpu", 6, 512, 64, 1, 512),
        ("tpu", 6, 1024, 128, 10, 64),  # never fewer: 2.0 billion, with a max_length of 256
    ],
)
def test_batch_size_is_limited_by_the_size_of_the_caches(platform, layers, width, longest, beams, rows):
    sizes = {"num_decoder_layers": layers, "embed_dim": width, "max_length": 256}
    config = random_translator().config.model_copy(update=sizes)
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    translator = dataclasses.replace(random_translator(), config=config, mesh=mesh)
    assert translator.decoding_batch_size(longest, beams) == rows
