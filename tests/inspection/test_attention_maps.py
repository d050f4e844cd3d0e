"""Attention maps: worked by hand, drawn, and written by translate; tests/export/test_html.py compares the weights."""

import json
import re
import struct

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lingua_flax.host.figures import FORMATS, save_figure
from lingua_flax.inspection.attention_maps import AttentionMaps
from lingua_flax.translation.words import group_pieces


def test_pieces_are_grouped_into_words():
    for pieces, words in (
        ("▁I ▁a cross ▁ l ' e au ... </s>", ["I", "a cross", "▁ l", "'", "e au", "...", "</s>"]),
        ("▁क ि ताब ! </s>", ["क ि ताब", "!", "</s>"]),
        ("▁ca fe \u0301 s", ["ca fe \u0301 s"]),
    ):
        grouped = group_pieces(pieces.split(" "))
        assert [word.text for word in grouped] == [word.replace("▁", "").replace(" ", "") for word in words]
        assert [len(word.positions) for word in grouped] == [len(word.split(" ")) for word in words]


def test_attended_words_by_hand():
    """Two layers of one head; the target word "ab" and the source word "xy" have two tokens each."""
    cross = np.zeros((2, 1, 3, 3), np.float32)
    cross[0, 0] = [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    cross[1, 0] = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    none = np.zeros((2, 1, 3, 3), np.float32)
    maps = AttentionMaps("", "", ("▁x", "y", "</s>"), ("<s>", "▁a", "b"), ("▁a", "b", "</s>"), none, none, cross)
    assert maps.attended_source_words() == [
        ("ab", [("xy", 0.6875), ("</s>", 0.3125)]),
        ("</s>", [("</s>", 1.0), ("xy", 0.0)]),
    ]
    assert maps.table() == ["ab    <- xy 0.69, </s> 0.31", "</s>  <- </s> 1.00, xy 0.00"]


def test_pictures_have_the_same_bytes_every_time_and_a_bounded_size(tmp_path, monkeypatch):
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert list(FORMATS) == list(begins)
    for ending, begin in begins.items():
        files = [tmp_path / f"{name}{ending}" for name in "ab"]
        for file in files:
            save_figure(Figure((4, 2)), file)
        first, second = (file.read_bytes() for file in files)
        assert first == second
        assert first.startswith(begin)
        assert matplotlib.__version__.encode() not in first
    monkeypatch.setattr("lingua_flax.host.figures.MAX_PIXELS", 20_000)
    save_figure(Figure((40, 20)), tmp_path / "large.png")
    assert struct.unpack(">2I", (tmp_path / "large.png").read_bytes()[16:24]) == (200, 100)


def test_translate_writes_attention_and_draws_it_and_positions(run, trained, tmp_path):
    files = ("maps.json", "sheet.png", "positions.png")
    for option, name in zip(("--attention", "--attention", "--positions"), files, strict=True):
        shown = (option, name, *(["--beam-size", 1] if option == "--attention" else []))
        done = run("translate", "--workdir", trained[0], *shown, input="one two three.\n", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ("trois deux un !\n" if option == "--attention" else "")
        assert f": {name}\n" in done.stderr
        assert bool(re.search("^ *</s> .* <- ", done.stderr, re.MULTILINE)) == (option == "--attention")
    record = json.loads((tmp_path / "maps.json").read_text(encoding="utf-8"))
    assert (record["text"], record["translation"]) == ("one two three.", "trois deux un !")
    s, t = len(record["source_tokens"]), len(record["target_tokens_written"])
    assert s != t
    assert record["target_tokens_read"] == ["<s>", *record["target_tokens_written"][:-1]]
    for name, shape in (("encoder_self", (s, s)), ("decoder_self", (t, t)), ("cross", (t, s))):
        weights = np.array(record[f"{name}_attention"])
        assert weights.shape == (1, 2, *shape)
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    for picture in files[1:]:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == set(files)


def test_a_line_that_no_map_can_show_leaves_existing_files_unchanged(run, trained, tmp_path):
    out = tmp_path / "out.txt"
    out.write_text("before", encoding="utf-8")
    options = ["--attention", tmp_path / "a.png", "--output", out]
    for lines, message in (
        ("one " * 60, "shows one pass of the network, but the line is translated in 2 parts: "),
        ("我们", "shows one pass of the network, but the line stays as it is: "),
        ("one.\ntwo.", "standard input: --attention shows a single sentence"),
    ):
        done = run("translate", "--workdir", trained[0], *options, input=f"{lines}\n")
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert out.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
