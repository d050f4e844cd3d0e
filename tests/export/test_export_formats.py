"""Exports of networks with random parameters: CTranslate2 and the NumPy network compute what the network here does."""

import ctranslate2
import pytest

from lingua_flax.data import tokenizer as data_tokenizer
from lingua_flax.export import numpy_translator
from lingua_flax.export.ctranslate2_model import write_ctranslate2
from lingua_flax.export.numpy_translator import Network, beam_search
from lingua_flax.export.safetensors_model import write_safetensors
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig
from lingua_flax.options.special_ids import BOS_ID
from tests.helpers.networks import LINES, encoded, log_probabilities, log_probability_of, random_translator


def test_the_exported_program_replaces_the_line_breaks_that_this_repository_replaces():
    """It imports nothing from it. U+2028 is a line break for str.splitlines, but not for readers of lines."""
    text = "a\nb\r\nc\u2028d"
    assert text.translate(numpy_translator.LINE_BREAKS) == text.translate(data_tokenizer.LINE_BREAKS) == "a b  c\u2028d"


def numpy_scores(translator, folder):
    write_safetensors(translator, DataConfig(), folder)
    network = Network(folder)
    scores = []
    for source, target in zip(*encoded(translator), strict=True):
        memory = network.encode(source)
        logits = [network.logits(memory, [BOS_ID, *target[:length]]) for length in range(len(target))]
        scores.append(log_probability_of(logits, target))
    return scores


def ctranslate2_scores(translator, folder):
    write_ctranslate2(translator, folder)
    sources, targets = encoded(translator)
    results = ctranslate2.Translator(str(folder)).score_batch(
        [translator.tokenizer.source_pieces(ids) for ids in sources],
        [translator.tokenizer.target_pieces(ids[:-1]) for ids in targets],
    )
    return [sum(result.log_probs) for result in results]


@pytest.mark.parametrize(
    ("joint", "options"),
    [
        (True, {}),
        (True, {"norm": "post", "activation": "gelu", "positions": "learned", "tied_embeddings": "decoder"}),
        (False, {"tied_embeddings": "none", "qk_norm": True, "num_heads": 1, "position_base": 100.0}),
        (True, {"positions": "rotary", "rotary_cross_attention": False, "position_base": 50.0}),
        (True, {"positions": "rotary", "rotary_cross_attention": False, "qk_norm": "self", "norm": "post"}),
        (True, {"positions": "rotary", "qk_norm": True, "norm": "post"}),  # only in NumPy
    ],
)
def test_exports_compute_the_same_probabilities(tmp_path, joint, options):
    translator = random_translator(joint, **options)
    expected = pytest.approx(log_probabilities(translator), abs=1e-3)
    folders = tmp_path / "numpy", tmp_path / "ctranslate2"
    for folder in folders:
        folder.mkdir()
    assert numpy_scores(translator, folders[0]) == expected
    if options.get("positions") != "rotary" or not options.get("rotary_cross_attention", True):
        assert ctranslate2_scores(translator, folders[1]) == expected


def test_numpy_search_finds_what_the_compiled_one_finds(tmp_path):
    translator = random_translator()
    write_safetensors(translator, DataConfig(), tmp_path)
    network, sources = Network(tmp_path), encoded(translator)[0]
    found = translator.translate_sentences(LINES, beam_size=3, length_penalty=0.6, warn=False)
    for source, (best, *_) in zip(sources, (own.hypotheses for own in found), strict=True):
        tokens, score = beam_search(network, source, beams=3, alpha=0.6)
        assert tokens == list(best.tokens[: len(tokens)])
        assert score == pytest.approx(best.score, abs=1e-3)


def test_what_ctranslate2_cannot_represent_is_refused(tmp_path):
    for options, remedy in (
        ({"positions": "rotary"}, "--model.rotary-cross-attention False"),
        ({"qk_norm": True}, "--model.qk-norm self"),
        ({"positions": "rotary", "qk_norm": True}, r"cross-attention False\) and .*--model.qk-norm self"),
    ):
        with pytest.raises(UserError, match=remedy):
            write_ctranslate2(random_translator(**options), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{}, {"positions": "rotary", "rotary_cross_attention": False}])
def test_ctranslate2_runs_on_with_its_defaults(tmp_path, options):
    """It decodes up to 256 tokens and reads up to 1,024, and fails where a table of positions ends."""
    translator = random_translator(**options)
    usage = write_ctranslate2(translator, tmp_path)
    source = translator.tokenizer.source_pieces(encoded(translator)[0][0] * 100)[:1000]
    (result,) = ctranslate2.Translator(str(tmp_path)).translate_batch([source], min_decoding_length=256)
    assert len(result.hypotheses[0]) == 256
    assert "longer sentences are not refused" in usage
    assert "max_decoding_length`, which is 256" in write_ctranslate2(random_translator(positions="learned"), tmp_path)


def test_types_that_need_pytorch_are_refused_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr("lingua_flax.export.ctranslate2_model.find_spec", lambda name: None)
    for quantization in ("bfloat16", "int8_bfloat16"):
        with pytest.raises(UserError, match=rf"makes {quantization} with PyTorch: pip install torch"):
            write_ctranslate2(random_translator(), tmp_path, quantization)
    for quantization in ("float16", "int16", "int8", "int8_float32", "int8_float16"):
        write_ctranslate2(random_translator(), tmp_path, quantization)
