"""Who may read what is written: the umask of the user decides, and no library."""

import stat

from tests.conftest import ROOT

FORMATS = {"ctranslate2", "safetensors", "transformers", "html"}


def test_the_umask_decides_who_may_read_what_is_written(toy, run, tmp_path):
    done = run(ROOT / "tests" / "export" / "scripts" / "write_with_umask.py", toy, tmp_path, "022", "077")
    assert done.returncode == 0, done.stderr
    for umask in ("022", "077"):
        written = {
            path.relative_to(tmp_path / umask): path.stat().st_mode
            for path in (tmp_path / umask).rglob("*")
            if not path.is_symlink()
        }
        assert FORMATS | {"w", "hyps.txt.gz", "scores.json"} <= {str(path) for path in written}
        for path, mode in written.items():
            expected = (0o777 if stat.S_ISDIR(mode) else 0o666) & ~int(umask, 8)
            assert stat.S_IMODE(mode) == expected, (path, oct(mode))
