"""Files that are written atomically."""

import os
from concurrent.futures import ThreadPoolExecutor

from lingua_flax.host.files import write_atomically


def test_links_and_pipes_stay(tmp_path):
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    link.symlink_to(file)
    for content in (b"first", b"second"):  # the file does not exist yet, then it does
        write_atomically(link, content)
        assert (link.is_symlink(), file.read_bytes()) == (True, content)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_bytes)
        write_atomically(pipe, b"third")
        assert read.result() == b"third"
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [file, link, pipe]
