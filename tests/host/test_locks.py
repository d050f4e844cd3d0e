"""Locks on file systems that have none: a warning, no file that stands for a lock, and nobody is blocked."""

import errno
import fcntl
import os

import pytest

from lingua_flax.data.corpora.prepared_corpus import exclusive_lock
from lingua_flax.host.locks import lock_until_exit


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks(monkeypatch, tmp_path, caplog, code):
    """The second time as after a run that was killed; the mark of a run on another host is left alone."""

    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    for _ in range(2):
        lock_until_exit(tmp_path / "training.lock", "workdir", "is training in it")
        assert "training.lock: cannot be locked" in caplog.text
        caplog.clear()
        with exclusive_lock(tmp_path / "corpus.lock"):
            assert "corpus.lock: cannot be locked" in caplog.text
        caplog.clear()
    marker = tmp_path / "training.lock"
    marker.write_text("process 7 on another host")
    lock_until_exit(marker, "workdir", "is training in it")
    assert marker.read_text() == "process 7 on another host"
