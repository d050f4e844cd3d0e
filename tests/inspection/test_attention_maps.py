"""Attention maps: worked by hand, drawn, and written by translate; tests/export/test_html.py compares the weights."""

import json
import struct

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from lingua_flax.host.figures import FORMATS, save_figure
from lingua_flax.inspection.attention_figures import CELL, attention_figure
from lingua_flax.inspection.attention_maps import AttentionMaps, position_table
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import group_pieces
from tests.helpers.networks import translator

__all__ = ["translator"]  # a fixture


def test_learned_positions_are_those_of_the_checkpoint(translator):
    np.testing.assert_array_equal(position_table(translator), translator.params["position_embedding"])


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


def test_every_head_has_a_map_with_cells_of_full_size():
    """Two layers of the encoder, one of the decoder, and six heads; 30 source tokens and 26 target tokens."""
    source, target = ("▁word", "s") * 15, ("▁m$ot", "$s") * 13
    weights = (np.full(shape, 0.03) for shape in ((2, 6, 30, 30), (1, 6, 26, 26), (1, 6, 26, 30)))
    figure = attention_figure(AttentionMaps("", "", source, target, target, *weights))
    bar, *drawn = figure.axes
    assert bar.get_xlim() == (0.0, 1.0)
    names = [f"layer {layer}, head {number}" for layer in (1, 2, 1, 1) for number in range(1, 7)]
    for axes, name in zip(drawn, names, strict=True):
        assert axes.get_title(loc="left") == name
        (image,) = axes.get_images()
        assert image.get_clim() == (0.0, 1.0)
        axes.apply_aspect()
        height, width = image.get_array().shape
        assert axes.bbox.size / figure.dpi == pytest.approx([CELL * width, CELL * height], rel=0.05)
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == ["word", "·s"] * 15


def test_pictures_have_the_same_bytes_every_time_and_a_bounded_size(tmp_path, monkeypatch):
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert list(FORMATS) == list(begins)
    for ending in FORMATS:
        files = [tmp_path / f"{name}{ending}" for name in "ab"]
        for file in files:
            save_figure(Figure((4, 2)), file)
        first, second = (file.read_bytes() for file in files)
        assert first.startswith(begins[ending])
        assert first == second
        assert matplotlib.__version__.encode() not in first
    monkeypatch.setattr("lingua_flax.host.figures.MAX_PIXELS", 20_000)
    save_figure(Figure((40, 20)), tmp_path / "large.png")
    assert struct.unpack(">2I", (tmp_path / "large.png").read_bytes()[16:24]) == (200, 100)


def test_translate_writes_attention_and_draws_it_and_positions(run, trained, tmp_path):
    for options in (["--attention", "maps.json"], ["--attention", "sheet.png"], ["--positions", "positions.png"]):
        options = ["--beam-size", 1, *options] if options[0] == "--attention" else options
        done = run("translate", "--workdir", trained[0], *options, input="one two three.\n", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ("trois deux un !\n" if "--attention" in options else "")
        assert f": {options[-1]}\n" in done.stderr
        if "--attention" in options:
            assert any(line.strip().startswith("</s>") and " <- " in line for line in done.stderr.splitlines())
    record = json.loads((tmp_path / "maps.json").read_text(encoding="utf-8"))
    assert (record["text"], record["translation"]) == ("one two three.", "trois deux un !")
    s, t = len(record["source_tokens"]), len(record["target_tokens_written"])
    assert s != t
    assert record["target_tokens_read"] == ["<s>", *record["target_tokens_written"][:-1]]
    for name, shape in (("encoder_self", (s, s)), ("decoder_self", (t, t)), ("cross", (t, s))):
        weights = np.array(record[f"{name}_attention"])
        assert weights.shape == (1, 2, *shape)
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    for picture in ("sheet.png", "positions.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 3


def test_invalid_requests_are_refused_before_the_network_is_loaded(run, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "load", lambda *_: pytest.fail("the network is loaded"))
    for options, text, message in (
        (["--attention", "maps.gif"], "one.\n", "maps.gif: the name must end in .json or .png"),
        (["--positions", "table.json"], "", "table.json: the name must end in .png"),
        (["--attention", "maps.png"], "one.\ntwo.\n", "standard input: --attention shows a single sentence"),
        (["--attention", "none/maps.png"], "one.\n", "cannot be written"),
        (["--positions", "table.png", "--output", "out.txt"], "", "--positions translates nothing"),
        (["--attention", "out.json", "--output", "out.json"], "one.\n", "would be used twice"),
    ):
        done = run("translate", "--workdir", trained[0], *options, input=text, cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert message in line
    assert not list(tmp_path.iterdir())


def test_a_line_that_no_map_can_show_leaves_existing_files_unchanged(run, trained, tmp_path):
    out = tmp_path / "out.txt"
    out.write_text("before", encoding="utf-8")
    options = ["--attention", tmp_path / "a.png", "--output", out]
    for line, how in (("one " * 60, "is translated in 2 parts"), ("", "stays as it is"), ("我们", "stays as it is")):
        done = run("translate", "--workdir", trained[0], *options, input=f"{line}\n")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"--attention shows one pass of the network, but the line {how}: " in done.stderr
        assert out.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
