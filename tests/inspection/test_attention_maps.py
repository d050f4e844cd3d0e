"""Attention maps and masked words: compared with forward passes of the network, and the commands as users run them."""

import functools
import io
import json
import struct
import sys

import jax
import matplotlib
import numpy as np
import pytest
from flax import nnx
from matplotlib.figure import Figure

from lingua_flax.commands import main
from lingua_flax.data.batch import pad_rows
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.host.figures import FORMATS, save_figure
from lingua_flax.inspection.attention_figures import CELL, attention_figure
from lingua_flax.inspection.attention_maps import AttentionMaps, attention_maps, position_table
from lingua_flax.inspection.interventions import inspection_of
from lingua_flax.inspection.observation import source_tokens
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options.schema import DecodingOptions, ModelConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import length_limit
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translation, Translator
from lingua_flax.translation.words import group_pieces
from tests.helpers.pairs import PAIRS

GREEDY = DecodingOptions(beam_size=1)
LINE = "the old village sleeps near the water"
MAX_LENGTH = 40


@pytest.fixture(scope="module")
def translator():
    """A random network with distinct numbers of layers, heads and tokens, whose translations are not empty."""
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "embed_dim": 24, "num_heads": 3, "mlp_dim": 48}
    config = ModelConfig(**sizes, max_length=MAX_LENGTH, tied_embeddings="none", positions="learned")
    graphdef = structure(config, 60, 60).graphdef
    params = initial_params(config, 60, 60, jax.random.key(4))
    params["output_embedding"] *= 4.0  # spreads the logits, so that rounding decides no ties
    return Translator(graphdef, params, tokenizer, config)


@pytest.fixture(scope="module")
def source(translator):
    """The ids of LINE, padded."""
    (ids,) = translator.tokenizer.encode_source([LINE])
    return pad_rows([ids], 1, MAX_LENGTH // 2)


@pytest.fixture(scope="module")
def maps(translator):
    return attention_maps(inspection_of(translator, *translator.translate([LINE], GREEDY)), translator.tokenizer)


@functools.partial(jax.jit, static_argnames="graphdef")
def forward_pass(params, source, target_in, segments, graphdef):
    return nnx.merge(graphdef, params)(source, target_in, source_segments=segments)


def test_rows_sum_to_one_and_the_decoder_sees_no_later_token(maps):
    s, t = len(maps.source_tokens), len(maps.target_tokens_written)
    assert s != t
    shapes = [array.shape for array in (maps.encoder_self_attention, maps.decoder_self_attention, maps.cross_attention)]
    assert shapes == [(1, 3, s, s), (2, 3, t, t), (2, 3, t, s)]
    for array in (maps.encoder_self_attention, maps.decoder_self_attention, maps.cross_attention):
        np.testing.assert_allclose(array.sum(axis=-1), 1.0, atol=1e-5)
    assert (np.triu(maps.decoder_self_attention, 1) == 0).all()
    assert maps.target_tokens_read[0] == "<s>"
    assert maps.target_tokens_read[1:] == maps.target_tokens_written[:-1]
    assert maps.source_tokens[-1] == "</s>"


def check_json(translator, record):
    """Compares the weights with those of a forward pass without padding over the tokens that the record names."""
    pieces, target = translator.tokenizer.source, translator.tokenizer.target
    ids = np.array([[pieces.piece_to_id(piece) for piece in record["source_tokens"]]])
    read = np.array([[target.piece_to_id(piece) for piece in record["target_tokens_read"]]])
    _, weights = forward_pass(translator.params, ids, read, np.ones_like(ids), translator.graphdef)
    for name, layers in (
        ("encoder_self_attention", weights.encoder),
        ("decoder_self_attention", weights.decoder),
        ("cross_attention", weights.cross),
    ):
        np.testing.assert_allclose(np.array(record[name]), np.stack(layers)[:, 0], atol=2e-6)


def test_json_matches_a_forward_pass(translator, maps):
    record = json.loads(json.dumps(maps.as_json()))
    assert (record["text"], record["translation"]) == (LINE, translator.translate([LINE], GREEDY)[0].text)
    check_json(translator, record)


def test_lines_that_no_map_can_show_are_refused(translator):
    with pytest.raises(UserError, match="the line is empty"):
        source_tokens(translator, "  ")
    with pytest.raises(UserError, match=r"has \d+ tokens, and the model sees at most 39"):
        inspection_of(translator, Translation("the cat " * 30, ()))


def test_learned_positions_are_those_of_the_checkpoint(translator):
    np.testing.assert_array_equal(position_table(translator), translator.params["position_embedding"])


def test_pieces_are_grouped_into_words():
    pieces = ["▁I", "▁a", "cross", "▁", "l", "'", "e", "au", "...", "</s>"]
    assert group_pieces(pieces) == [
        ("I", (0,)),
        ("across", (1, 2)),
        ("l", (3, 4)),
        ("'", (5,)),
        ("eau", (6, 7)),
        ("...", (8,)),
        ("</s>", (9,)),
    ]
    assert [word.text for word in group_pieces(["▁क", "ि", "ताब", "!", "</s>"])] == ["किताब", "!", "</s>"]
    assert [word.text for word in group_pieces(["▁ca", "fe", "\u0301", "s"])] == ["cafe\u0301s"]


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


# --- Masked words ---------------------------------------------------------------------------------------------------


MASKED = (1, 4)


def mask_of(source, *positions):
    mask = np.zeros(source.shape, bool)
    mask[0, list(positions)] = True
    return mask


def greedy_tokens(translator, source, masked=()):
    """Returns the tokens of the greedy translation while no layer attends to the masked positions."""
    ids = source[source != PAD_ID].tolist()
    part = Part("", ids, limit=length_limit(len(ids), 0, GREEDY, MAX_LENGTH), masked=masked)
    ((best,),) = translator.search([part], 1, GREEDY)
    return list(best.tokens)


def test_masked_keys_get_no_weight_in_any_layer(translator, source):
    visible = ((source != PAD_ID) & ~mask_of(source, *MASKED)).astype(np.int32)
    target = pad_rows([[BOS_ID, 7]], 1, MAX_LENGTH)
    _, weights = forward_pass(translator.params, source, target, visible, translator.graphdef)
    queries = visible[0] > 0
    for layer in weights.encoder:
        assert (np.asarray(layer)[0][:, queries][..., MASKED] == 0).all()
    for layer in weights.cross:
        assert (np.asarray(layer)[0][:, :2][..., MASKED] == 0).all()  # the other queries are padding


def test_masked_words_are_masked_as_in_uncached_greedy_search(translator, source):
    masked = range(1, 12)
    visible = ((source != PAD_ID) & ~mask_of(source, *masked)).astype(np.int32)
    tokens, limit = [BOS_ID], min(MAX_LENGTH, 2 * np.count_nonzero(source) + 10)
    while tokens[-1] != EOS_ID:
        target = pad_rows([tokens], 1, MAX_LENGTH)
        logits, _ = forward_pass(translator.params, source, target, visible, translator.graphdef)
        last = np.array(logits)[0, len(tokens) - 1]
        last[[PAD_ID, BOS_ID, UNK_ID]] = -np.inf
        tokens.append(EOS_ID if len(tokens) == limit else int(last.argmax()))
    assert greedy_tokens(translator, source, masked) == tokens[1:]
    assert greedy_tokens(translator, source) != tokens[1:]


def test_another_word_in_the_masked_place_changes_nothing(translator, source):
    other = source.copy()
    other[0, MASKED] = [11, 12]
    assert greedy_tokens(translator, source) != greedy_tokens(translator, other)
    assert greedy_tokens(translator, source, MASKED) == greedy_tokens(translator, other, MASKED)


# --- Pictures -------------------------------------------------------------------------------------------------------


def test_every_head_has_a_map_with_cells_of_full_size(maps):
    """Two layers of the encoder, one of the decoder, and six heads; 30 source tokens and 26 target tokens."""
    source, target = ("▁word", "s") * 15, ("▁m$ot", "$s") * 13
    weights = (np.full(shape, 0.03) for shape in ((2, 6, 30, 30), (1, 6, 26, 26), (1, 6, 26, 30)))
    large = AttentionMaps(maps.text, maps.translation, source, target, target, *weights)
    figure = attention_figure(large)
    bar, *drawn = figure.axes
    assert bar.get_xlim() == (0.0, 1.0)
    rows = [drawn[start : start + 6] for start in range(0, len(drawn), 6)]
    for row, layer in zip(rows, (1, 2, 1, 1), strict=True):
        names = [axes.get_title(loc="left") for axes in row]
        assert names == [f"layer {layer}, head {number}" for number in range(1, 7)]
        for axes in row:
            (image,) = axes.get_images()
            assert image.get_clim() == (0.0, 1.0)
            axes.apply_aspect()
            height, width = image.get_array().shape
            assert axes.bbox.size / figure.dpi == pytest.approx([CELL * width, CELL * height], rel=0.05)
    labels = [label.get_text() for label in rows[0][0].get_yticklabels()]
    assert labels == ["word", "·s"] * 15


@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_pictures_have_the_same_bytes_every_time(maps, tmp_path, ending, begins):
    files = [tmp_path / f"{name}{ending}" for name in "ab"]
    for file in files:
        save_figure(attention_figure(maps), file)
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(begins)
    assert first == second
    assert matplotlib.__version__.encode() not in first
    assert list(FORMATS) == [".png", ".svg", ".pdf"]


def test_pictures_of_many_heads_have_a_bounded_number_of_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr("lingua_flax.host.figures.MAX_PIXELS", 20_000)
    save_figure(Figure((40, 20)), tmp_path / "large.png")
    assert struct.unpack(">2I", (tmp_path / "large.png").read_bytes()[16:24]) == (200, 100)


# --- The commands ---------------------------------------------------------------------------------------------------


def test_translate_writes_attention_as_json(run, trained, tmp_path):
    file = tmp_path / "maps.json"
    options = ["--beam-size", 1, "--attention", file]
    done = run("translate", "--workdir", trained[0], *options, input="one two three.\n")
    assert (done.returncode, done.stdout) == (0, "trois deux un !\n"), done.stderr
    record = json.loads(file.read_text(encoding="utf-8"))
    assert (record["text"], record["translation"]) == ("one two three.", "trois deux un !")
    check_json(Translator.load(trained[0]), record)
    assert f"attention: {file}\n" in done.stderr
    assert any(line.strip().startswith("</s>") and " <- " in line for line in done.stderr.splitlines())


def test_translate_draws_attention_and_positions(run, trained, tmp_path):
    (tmp_path / "in.txt").write_text("four five.\n", encoding="utf-8")
    sheet, positions = tmp_path / "sheet.png", tmp_path / "positions.png"
    options = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", "--beam-size", 1]
    done = run("translate", "--workdir", trained[0], *options, "--attention", sheet)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert len((tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()) == 1
    done = run("translate", "--workdir", trained[0], "--positions", positions)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for picture in (sheet, positions):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt", "positions.png", "sheet.png"]


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        (["--attention", "maps.gif"], "one.\n", "maps.gif: the name must end in .json or .png"),
        (["--positions", "table.json"], "", "table.json: the name must end in .png"),
        (["--attention", "maps.png"], "one.\ntwo.\n", "standard input: --attention shows a single sentence"),
        (["--attention", "none/maps.png"], "one.\n", "cannot be written"),
        (["--positions", "table.png", "--output", "out.txt"], "", "--positions translates nothing"),
        (["--attention", "out.json", "--output", "out.json"], "one.\n", "would be used twice"),
    ],
)
def test_invalid_requests_are_refused_before_the_network_is_loaded(
    trained, tmp_path, monkeypatch, capsys, options, text, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lingua-flax"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    monkeypatch.setattr(
        "lingua_flax.translation.translator.Translator.load", lambda *_: pytest.fail("the network is loaded")
    )
    assert main.run(["translate", "--workdir", str(trained[0]), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "how"), [("one " * 60, "is translated in 2 parts"), ("", "stays as it is"), ("我们", "stays as it is")]
)
def test_a_line_that_no_map_can_show_leaves_existing_files_unchanged(run, trained, tmp_path, line, how):
    out = tmp_path / "out.txt"
    out.write_text("before", encoding="utf-8")
    options = ["--attention", tmp_path / "a.png", "--output", out]
    done = run("translate", "--workdir", trained[0], *options, input=f"{line}\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--attention shows one pass of the network, but the line {how}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert out.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
