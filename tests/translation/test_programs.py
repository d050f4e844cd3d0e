"""The programs that are compiled, for batches of which lengths and sizes, and those that run at a time."""

import dataclasses
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.devices.compilation import compiled_program
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.options.schema import ComputeConfig, MeshConfig
from lingua_flax.training.validation import ValidationSet, validate
from lingua_flax.translation.batched_search import default_batch_size, map_concurrently, num_concurrent_programs
from lingua_flax.translation.translator import Translator
from tests.conftest import HUNG_AFTER
from tests.helpers.commands import succeed
from tests.helpers.translation import decisive_translator
from tests.processes import read_lines
from tests.toy import ENGLISH, FRENCH


def test_padding_to_the_longest_saves_programs_and_does_not_change_validation(toy, run, trained, tmp_path):
    """As on accelerators: four programs, for the initial state, the step, and the loss and the search of a validation.

    A batch of 64 short pairs is validated, and a few long ones, which "lengths" pads to another length. The model is
    already trained, so that its translations have a score.
    """
    numbers = [[(line + word) % 10 for word in range(1 if line < 64 else 8)] for line in range(68)]
    sources = [" ".join(ENGLISH[n] for n in line) + "." for line in numbers]
    targets = [" ".join(FRENCH[n] for n in reversed(line)) + " !" for line in numbers]
    for side, lines in (("source", sources), ("target", targets)):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = ["--config", toy, "--workdir", tmp_path / "w", "--devices.padding", "longest"]
    options += ["--data.validation-source", tmp_path / "source", "--data.validation-target", tmp_path / "target"]
    options += ["--training.init-from", trained[0], "--training.num-steps", 2, "--training.eval-every", 1]
    options += ["--model.dropout-rate", 0.01]  # of no other network, whose programs this process may already have
    done = succeed(run, "train", *options)
    lines = read_lines(tmp_path / "w")
    assert "\ncompiled 4 programs, " in done.stderr
    assert [line["programs_compiled"] for line in lines if "loss" in line][-1] == 4
    *_, longest = (line for line in lines if "validation_loss" in line)
    translator = Translator.load(tmp_path / "w", "last", ComputeConfig(padding="lengths"))
    lengths = validate(translator, ValidationSet.of(list(zip(sources, targets, strict=True)), translator.tokenizer))
    assert longest["validation_bleu"] == pytest.approx(lengths.bleu)
    assert longest["validation_bleu"] > 0
    assert longest["validation_loss"] == pytest.approx(lengths.loss, rel=1e-5)
    assert longest["validation_loss_shuffled"] == pytest.approx(lengths.shuffled_loss, rel=1e-5)


def test_run_stopped_while_validation_is_compiled_is_saved(toy, run, tmp_path):
    """The thread that compiles the validation sends the signal after the first step and then compiles."""
    script, workdir = Path(__file__).parent / "scripts" / "stopped_while_compiling.py", tmp_path / "w"
    options = ["--config", toy, "--workdir", workdir, "--devices.padding", "longest", "--training.log-every", 1]
    done = run(script, workdir, "train", *options)
    assert done.returncode == 143
    assert re.search(r"step \d+ is saved; run the same command again to continue", done.stderr)
    assert "Traceback" not in done.stderr
    assert not [line for line in read_lines(workdir) if "validation_loss" in line]


def test_threads_that_request_the_same_program_share_it():
    traced = []

    @jax.jit
    def double(x):
        traced.append(x.shape)
        return 2 * x

    with ThreadPoolExecutor(8) as threads:
        programs = list(threads.map(lambda _: compiled_program(double, jnp.ones(3)), range(8)))
    assert traced == [(3,)]
    assert len(set(map(id, programs))) == 1
    assert compiled_program(double, jax.ShapeDtypeStruct((4,), jnp.float32))(jnp.ones(4)).tolist() == [2.0] * 4
    assert traced == [(3,), (4,)]


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
    config = decisive_translator().config.model_copy(update=sizes)
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    translator = dataclasses.replace(decisive_translator(), config=config, mesh=mesh)
    assert default_batch_size(translator, longest, beams) == rows


def test_results_are_in_order_although_the_second_call_of_two_returns_first():
    returned = [threading.Event() for _ in range(8)]

    def square(number):
        if number % 2 == 0:
            assert returned[number + 1].wait(HUNG_AFTER)
        returned[number].set()
        return number**2

    assert list(map_concurrently(square, range(8), 2)) == [(number, number**2) for number in range(8)]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_calls_follow_an_error_or_the_last_result_that_is_taken(workers):
    called = []

    def fail_at_two(number):
        called.append(number)
        return 1 / (number - 2)

    with pytest.raises(ZeroDivisionError):
        list(map_concurrently(fail_at_two, range(50), workers))
    assert len(called) < 8
    called.clear()
    results = map_concurrently(called.append, range(50), workers)
    assert next(results) == (0, None)
    results.close()
    assert len(called) < 8


def test_several_devices_run_one_program_at_a_time():
    assert num_concurrent_programs(make_mesh(MeshConfig(), jax.devices()[:1])) == min(4, len(os.sched_getaffinity(0)))
    assert num_concurrent_programs(SimpleNamespace(size=2)) == 1
