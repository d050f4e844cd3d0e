"""Attention maps and hidden words: against direct passes of the network, and the commands as users run them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from data.batch import pad_rows
from data.tokenizer import parse_tokenizers, train_tokenizer
from host.errors import UserError
from model.transformer import initial_params, structure
from options.schema import DecodingOptions, ModelConfig, TokenizerConfig
from options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.test_data import PAIRS
from tests.toy import write_corpus
from translation.attention_figures import CELL, TALLEST, WIDEST, attention_figures
from translation.attention_maps import AttentionMaps, attention_maps, source_tokens
from translation.translator import Translation, Translator
from translation.words import group_pieces

GREEDY = DecodingOptions(beam_size=1)
LINE = "the old village sleeps near the water"
ROOM = 40


@pytest.fixture(scope="module")
def translator():
    """A random network with distinct numbers of layers, heads and tokens, which writes something of every sentence."""
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    config = ModelConfig(
        num_encoder_layers=2, num_decoder_layers=3, embed_dim=40, num_heads=5, mlp_dim=48, max_length=ROOM,
        tied_embeddings="none",
    )  # fmt: skip
    graphdef = structure(config, 60, 60).graphdef
    params = initial_params(config, 60, 60, jax.random.key(4))
    params["output_embedding"] *= 4.0  # far apart logits: no ties to be broken by rounding
    return Translator(graphdef, params, tokenizer, config)


@pytest.fixture(scope="module")
def maps(translator):
    return attention_maps(translator, translator.translate([LINE], GREEDY)[0])


def test_rows_sum_to_one_and_nobody_looks_ahead(maps):
    s, t = len(maps.source_tokens), len(maps.target_written)
    assert s != t
    shapes = [array.shape for array in (maps.encoder, maps.decoder, maps.cross)]
    assert shapes == [(2, 5, s, s), (3, 5, t, t), (3, 5, t, s)]
    for array in (maps.encoder, maps.decoder, maps.cross):
        np.testing.assert_allclose(array.sum(axis=-1), 1.0, atol=1e-5)
    assert (np.triu(maps.decoder, 1) == 0).all()
    assert maps.target_read[0] == "<s>"
    assert maps.target_read[1:] == maps.target_written[:-1]
    assert maps.source_tokens[-1] == "</s>"


def direct_weights(translator, maps):
    """The weights of a pass over rows without padding, from the tokens that the maps name."""
    source, target = translator.tokenizer.source, translator.tokenizer.target
    ids = [[source.piece_to_id(piece) for piece in maps["source_tokens"]]]
    read = [[target.piece_to_id(piece) for piece in maps["target_tokens_read"]]]
    return jax.jit(nnx.merge(translator.graphdef, translator.params).__call__)(jnp.array(ids), jnp.array(read))[1]


def test_the_json_is_a_direct_pass_of_the_network(translator, maps):
    found = json.loads(json.dumps(maps.as_json()))
    direct = direct_weights(translator, found)
    assert (found["text"], found["translation"]) == (LINE, translator.translate([LINE], GREEDY)[0].text)
    for name, layers in (
        ("encoder_self_attention", direct.encoder),
        ("decoder_self_attention", direct.decoder),
        ("cross_attention", direct.cross),
    ):
        np.testing.assert_allclose(np.array(found[name]), np.stack(layers)[:, 0], atol=2e-6)


def test_what_no_map_can_show_is_refused(translator):
    with pytest.raises(UserError, match="the line is empty"):
        source_tokens(translator, "  ")
    with pytest.raises(UserError, match=r"has \d+ tokens, and the model sees at most 39"):
        attention_maps(translator, Translation("the cat " * 30, ()))


def test_words_are_put_together_from_pieces():
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


def test_what_a_word_looked_at_by_hand():
    """Two layers of one head; the word "ab" has two tokens, the source word "xy" too."""
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


# --- Hidden words ---------------------------------------------------------------------------------------------------


def hide(source, *positions):
    mask = np.zeros(source.shape, bool)
    mask[0, list(positions)] = True
    return mask


def test_hidden_keys_get_no_weight_in_any_layer(translator):
    source = pad_rows(translator.tokenizer.encode_source([LINE]), 1, ROOM)
    visible = ((source != PAD_ID) & ~hide(source, 1, 4)).astype(np.int32)
    model = nnx.merge(translator.graphdef, translator.params)
    whole_pass = jax.jit(lambda segments: model(jnp.array(source), jnp.array([[BOS_ID, 7]]), source_segments=segments))
    _, weights = whole_pass(visible)
    looking = visible[0] > 0
    for layer in weights.encoder:
        assert (np.asarray(layer)[0][:, looking][..., [1, 4]] == 0).all()
    for layer in weights.cross:
        assert (np.asarray(layer)[0][..., [1, 4]] == 0).all()


def test_a_translation_with_a_hidden_word_is_that_of_whole_passes_with_the_mask(translator):
    source = pad_rows(translator.tokenizer.encode_source([LINE]), 1, ROOM)
    mask = hide(source, *range(1, 12))
    found = np.asarray(translator.decode_ids(source, GREEDY, mask).tokens)[0, 0]
    model, tokens = nnx.merge(translator.graphdef, translator.params), [BOS_ID]
    whole_pass = jax.jit(lambda target, segments: model(jnp.array(source), target, source_segments=segments)[0])
    limit = min(ROOM, 2 * np.count_nonzero(source) + 10)
    while tokens[-1] != EOS_ID:
        segments = ((source != PAD_ID) & ~mask).astype(np.int32)
        last = np.array(whole_pass(pad_rows([tokens], 1, ROOM), segments)[0, len(tokens) - 1])
        last[[PAD_ID, BOS_ID, UNK_ID]] = -np.inf
        tokens.append(EOS_ID if len(tokens) == limit else int(last.argmax()))
    assert [int(token) for token in found if token] == tokens[1:]
    assert [int(token) for token in np.asarray(translator.decode_ids(source, GREEDY).tokens)[0, 0] if token] != tokens[
        1:
    ]


def test_what_is_hidden_is_out_of_reach(translator):
    """Another word in the hidden place changes nothing."""
    source = pad_rows(translator.tokenizer.encode_source([LINE]), 1, ROOM)
    other = source.copy()
    other[0, [1, 4]] = [11, 12]
    options = DecodingOptions(beam_size=3)
    plain, hidden = (
        [np.asarray(translator.decode_ids(ids, options, mask).tokens) for ids in (source, other)]
        for mask in (None, hide(source, 1, 4))
    )
    assert not (plain[0] == plain[1]).all()
    assert (hidden[0] == hidden[1]).all()


# --- Pictures -------------------------------------------------------------------------------------------------------


def test_a_large_network_gets_pages_with_a_legible_map_for_each_head(maps):
    """Six layers of eight heads; a sentence of 14 tokens is one of 12 in the other language."""
    source, target = ("▁word", "s") * 7, ("▁m$ot", "$s") * 6
    large = dataclasses.replace(
        maps, source_tokens=source, target_read=target, target_written=target,
        encoder=np.full((6, 8, 14, 14), 0.07), decoder=np.full((6, 8, 12, 12), 0.08),
        cross=np.full((6, 8, 12, 14), 0.07),
    )  # fmt: skip
    pages = attention_figures(large)
    assert len(pages) > 1
    names = []
    for page in pages:
        width, height = page.get_size_inches()
        assert width <= WIDEST + 1
        assert height <= TALLEST + 3
        *maps_of_page, bar = sorted(page.axes, key=lambda axes: axes.get_position().height, reverse=True)
        assert bar.get_xlim() == (0.0, 1.0)
        for axes in maps_of_page:
            names.append(axes.get_title(loc="left"))
            (image,) = axes.get_images()
            assert image.get_clim() == (0.0, 1.0)
            assert axes.get_position().width * width == pytest.approx(CELL * image.get_array().shape[1])
    expected = [f"layer {layer}, head {head}" for layer in range(1, 7) for head in range(1, 9)]
    assert sorted(names) == sorted(3 * expected)
    labels = [label.get_text() for label in pages[0].axes[1].get_yticklabels()]
    assert labels == ["word", "·s"] * 7


# --- The commands ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workdir(run, tmp_path_factory):
    """A toy run with learned positions, trained a little."""
    folder = tmp_path_factory.mktemp("attention")
    config = write_corpus(folder)
    options = ["--training.num-steps", 40, "--training.eval-every", 0, "--model.positions", "learned"]
    done = run("train.py", "--config", config, "--workdir", folder / "w", *options)
    assert done.returncode == 0, done.stderr
    return folder / "w"


def test_attention_as_json_of_the_command(run, workdir, tmp_path):
    file = tmp_path / "maps.json"
    done = run("translate.py", "--workdir", workdir, "--attention", file, input="one two three.\n")
    assert done.returncode == 0, done.stderr
    translator = Translator.load(workdir)
    assert done.stdout == translator.translate(["one two three."])[0].text + "\n"
    found = json.loads(file.read_text(encoding="utf-8"))
    assert (found["text"], found["translation"] + "\n") == ("one two three.", done.stdout)
    direct = direct_weights(translator, found)
    np.testing.assert_allclose(found["cross_attention"][0], direct.cross[0][0], atol=2e-6)
    np.testing.assert_allclose(found["decoder_self_attention"][0], direct.decoder[0][0], atol=2e-6)
    assert f"attention: {file}\n" in done.stderr
    assert any(line.strip().startswith("</s>") and " <- " in line for line in done.stderr.splitlines())


def test_pictures_of_the_command(run, workdir, tmp_path):
    (tmp_path / "in.txt").write_text("four five.\n", encoding="utf-8")
    sheet, positions = tmp_path / "sheet.png", tmp_path / "positions.png"
    done = run("translate.py", "--workdir", workdir, "--input", tmp_path / "in.txt", "--attention", sheet,
               "--output", tmp_path / "out.txt")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert len((tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()) == 1
    drawn = run("translate.py", "--workdir", workdir, "--positions", positions)
    assert (drawn.returncode, drawn.stdout) == (0, ""), drawn.stderr
    for picture in (sheet, positions):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt", "positions.png", "sheet.png"]


def test_learned_positions_are_those_of_the_checkpoint(workdir):
    from translation.attention_maps import position_table

    translator = Translator.load(workdir)
    np.testing.assert_array_equal(position_table(translator), translator.params["position_embedding"])


@pytest.mark.parametrize(
    ("options", "text", "words"),
    [
        (["--attention", "maps.gif"], "one.\n", "maps.gif: the name must end in .json or .png"),
        (["--positions", "table.json"], "", "table.json: the name must end in .png"),
        (["--attention", "maps.png"], "one.\ntwo.\n", "standard input: --attention shows a single sentence"),
        (["--attention", "none/maps.png"], "one.\n", "cannot be written"),
        (["--positions", "table.png", "--output", "out.txt"], "", "--positions translates nothing"),
        (["--attention", "out.json", "--output", "out.json"], "one.\n", "would be used twice"),
    ],
)
def test_refused_before_anything_is_computed(workdir, tmp_path, monkeypatch, capsys, options, text, words):
    import io
    import sys

    from commands.main import main
    from commands.translate import translate

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["translate.py", "--workdir", str(workdir), *options])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    monkeypatch.setattr("translation.translator.Translator.load", lambda *_: pytest.fail("it began to compute"))
    assert main(translate) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_no_map_can_show_leaves_old_files_as_they_were(run, workdir, tmp_path):
    out = tmp_path / "out.txt"
    out.write_text("before", encoding="utf-8")
    done = run("translate.py", "--workdir", workdir, "--attention", tmp_path / "a.png", "--output", out,
               input="one " * 60 + "\n")  # fmt: skip
    assert done.returncode == 2
    assert "an attention map shows one pass of the network" in done.stderr
    assert "Traceback" not in done.stderr
    assert out.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
