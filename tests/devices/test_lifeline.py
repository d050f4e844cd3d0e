"""A process of a run that is killed, whatever it is doing, ends all others with one sentence that names it."""

import re
import signal
import socket
import threading
import time

import pytest

from lingua_flax.devices import lifeline
from tests.conftest import HUNG_AFTER
from tests.processes import finish, free_port, start_together

STEPS = ["--training.num-steps", 100000, "--training.log-every", 1, "--training.eval-every", 20]
STEPS += ["--training.checkpoint-every", 30, "--training.tokens-per-batch", 24 * 32]
# What the first process logs a fifth of a second before it is in each phase; saves go on in the background.
TRAINING = r"step [3-9]/"
PHASES = {
    "preparation": "preparing a corpus|training the tokenizer",
    "compilation": "computing on",
    "training": TRAINING,
    "validation": r"step 1[789]/",
    "saving": r"step 3\d/",
}


def check_all_end(first_logs, killed, count, toy, workdir, *options, stop=False):
    """Kills one of several processes when the first one logs this, and checks how the others end.

    With `stop`, it is stopped with SIGSTOP, and killed when the others have ended.
    """
    running = start_together(count, "train", "--config", toy, "--workdir", workdir, *STEPS, *options)
    for line in running[0].stderr:
        if re.search(first_logs, line):
            break
    time.sleep(0.2)
    running[killed].send_signal(signal.SIGSTOP if stop else signal.SIGKILL)
    timer = threading.Timer(HUNG_AFTER, lambda: [process.kill() for process in running])
    timer.start()
    if stop:
        finish([process for process in running if process is not running[killed]])
        running[killed].kill()
    ended = finish(running)
    timer.cancel()
    sentence = f"error: process {killed} of this run has ended before the others or is stopped; see its error message"
    assert ended.pop(killed)[0] == -signal.SIGKILL
    for status, _, errors in ended:
        said = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert (status, len(said)) == (1, 1), errors
        assert said[0].startswith(sentence)
        assert "Traceback" not in errors


def test_killed_process_ends_the_others(toy, tmp_path):
    check_all_end(TRAINING, 1, 2, toy, tmp_path / "w")


def test_strangers_and_unreachable_hosts_do_not_end_a_run(monkeypatch, caplog):
    """A stranger connects and is silent, another one says something else; then process 2 comes, and process 1 never."""
    monkeypatch.setattr(lifeline, "CONNECT_TIMEOUT", 3.0)
    monkeypatch.setattr(lifeline, "GREETING_TIMEOUT", 0.2)
    monkeypatch.setattr(lifeline.jax, "process_count", lambda: 3)
    clients = []

    def come(message):
        token, port, _ = message.split(" ")
        for greeting in (b"", b"hello", f"{token} 2..".encode()):
            client = socket.create_connection(("127.0.0.1", int(port)))
            client.sendall(greeting)
            clients.append(client)

    monkeypatch.setattr(lifeline, "_shared", come)
    assert list(lifeline._to_others("host.invalid")) == [2]
    assert "process 1 cannot reach host.invalid" in caplog.text
    for address in ("token 1 host.invalid", f"token {free_port()} 127.0.0.1"):
        monkeypatch.setattr(lifeline, "_shared", lambda _, address=address: address)
        assert lifeline._to_first() == {}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("killed", "count"), [(1, 2), (0, 2), (3, 4)])
def test_killed_process_ends_the_others_in_every_phase(toy, tmp_path, phase, killed, count):
    cache = ("--data.cache-directory", tmp_path / "cache")  # so that there is something to prepare
    check_all_end(PHASES[phase], killed, count, toy, tmp_path / "w", *cache)


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "count"), [(1, 3), (0, 2)])
def test_stopped_process_ends_the_others(toy, tmp_path, stopped, count):
    check_all_end(TRAINING, stopped, count, toy, tmp_path / "w", stop=True)


@pytest.mark.slow
def test_killed_process_ends_the_others_while_they_resume(toy, tmp_path):
    check_all_end(r"step 5\d/", 1, 2, toy, tmp_path / "w")
    check_all_end("resuming from step", 1, 2, toy, tmp_path / "w")
