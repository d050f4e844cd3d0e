"""Who may read what is written: the umask of the user decides, and no library."""

import os
import stat

from tests.command_server import run_here

FORMATS = ("ctranslate2", "safetensors", "transformers", "html")


def test_the_umask_decides_who_may_read_what_is_written(toy, tmp_path):
    network = ("--workdir", tmp_path / "w")
    outputs = ("--output", tmp_path / "hyps.txt.gz", "--json", tmp_path / "scores.json")
    before = os.umask(0o027)  # of the modes that libraries choose, neither 600 nor 644 agrees with that
    try:
        steps = ("--training.num-steps", 2, "--training.eval-every", 2)
        done = [run_here("train", "--config", toy, *network, *steps)]
        done.append(run_here("evaluate", *network, "--beam-size", 1, *outputs))
        for name in FORMATS:
            options = ("--format", name, "--output", tmp_path / name, "--beam-size", 1)
            done.append(run_here("export", *network, *options))
    finally:
        os.umask(before)
    assert [own.returncode for own in done] == [0] * 6, done
    written = [path for path in tmp_path.rglob("*") if not path.is_symlink()]
    assert {*FORMATS, "w", "hyps.txt.gz", "scores.json"} <= {path.name for path in written}
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path
