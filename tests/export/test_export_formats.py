"""Exports of networks with random parameters: CTranslate2 and the NumPy network compute what the network here does."""

import dataclasses
import functools

import ctranslate2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.data import tokenizer as data_tokenizer
from lingua_flax.data.batch import pad_rows
from lingua_flax.data.known_words import known_words
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.export import numpy_translator
from lingua_flax.export.ctranslate2_model import write_ctranslate2
from lingua_flax.export.numpy_translator import Network
from lingua_flax.export.safetensors_model import write_safetensors
from lingua_flax.host.errors import UserError
from lingua_flax.model.transformer import structure
from lingua_flax.options.schema import DataConfig, ModelConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.translator import Translator
from tests.helpers.pairs import PAIRS

LINES = ["the cat eats fish .", "a dog sleeps", "where is it?", "milk"]
TRANSLATIONS = ["le chat mange du poisson .", "un chien", "dort où ?", "lait"]
SIZES = {"embed_dim": 16, "num_heads": 2, "mlp_dim": 24, "max_length": 64}
SMALL = SIZES | {"num_encoder_layers": 2, "num_decoder_layers": 1, "dropout_rate": 0.0}


def test_the_exported_program_replaces_the_line_breaks_that_this_repository_replaces():
    """It imports nothing from it. U+2028 is a line break for str.splitlines, but not for readers of lines."""
    text = "a\nb\r\nc\u2028d"
    assert text.translate(numpy_translator.LINE_BREAKS) == text.translate(data_tokenizer.LINE_BREAKS) == "a b  c\u2028d"


@functools.cache
def tokenizer(*, joint: bool):
    words = known_words(source for source, _ in PAIRS)
    models = train_tokenizer(PAIRS, TokenizerConfig(vocab_size=50, joint=joint))
    return dataclasses.replace(parse_tokenizers(models), words=words)


def random_translator(joint=True, **options) -> Translator:
    """Returns a translator with random parameters, norms included."""
    config = ModelConfig(**{**SMALL, **options})
    pieces = tokenizer(joint=joint)
    network = structure(config, pieces.source_vocab_size, pieces.target_vocab_size)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.float32(0.3 * draw.normal(size=leaf.shape)), network.params)
    return Translator(network.graphdef, params, pieces, config)


def encoded(translator):
    """Returns the ids of the sentences and of the translations."""
    return translator.tokenizer.encode_source(LINES), translator.tokenizer.encode_target(TRANSLATIONS)


@functools.partial(jax.jit, static_argnames="graphdef")
def forward_pass(params, source, target_in, graphdef):
    return nnx.merge(graphdef, params)(source, target_in)[0]


def log_probabilities(translator):
    """Returns the log-probability of each translation that the network computes."""
    sources, targets = encoded(translator)
    inputs = [[BOS_ID, *target[:-1]] for target in targets]
    rows = (pad_rows(ids, len(ids), max(map(len, ids))) for ids in (sources, inputs))
    logits = forward_pass(translator.params, *rows, translator.graphdef)
    return [log_probability_of(row[: len(target)], target) for row, target in zip(logits, targets, strict=True)]


def log_probability_of(logits, target):
    """Returns the log-probability of a target among those without padding, start and unknown."""
    odds = np.exp(np.float64(logits))
    odds[:, [PAD_ID, BOS_ID, UNK_ID]] = 0.0
    return np.log(odds[range(len(target)), target] / odds.sum(axis=-1)).sum()


PLAIN = [
    (True, {}),
    (True, {"norm": "post", "activation": "gelu"}),
    (True, {"positions": "learned", "tied_embeddings": "decoder"}),
    (False, {"tied_embeddings": "none"}),
    (True, {"qk_norm": True, "num_heads": 1, "position_base": 100.0}),
    (True, {"positions": "rotary", "rotary_cross_attention": False, "position_base": 50.0}),
    (True, {"positions": "rotary", "rotary_cross_attention": False, "qk_norm": "self", "norm": "post"}),
]


@pytest.mark.parametrize(("joint", "options"), PLAIN)
def test_ctranslate2_computes_the_same_probabilities(tmp_path, joint, options):
    translator = random_translator(joint, **options)
    write_ctranslate2(translator, tmp_path)
    engine = ctranslate2.Translator(str(tmp_path))
    sources, targets = encoded(translator)
    results = engine.score_batch(
        [translator.tokenizer.source_pieces(ids) for ids in sources],
        [translator.tokenizer.target_pieces(ids[:-1]) for ids in targets],
    )
    scores = [sum(result.log_probs) for result in results]
    assert scores == pytest.approx(log_probabilities(translator), abs=1e-3)


@pytest.mark.parametrize(
    ("joint", "options"), [*PLAIN, (True, {"positions": "rotary", "qk_norm": True, "norm": "post"})]
)
def test_numpy_network_computes_the_same_probabilities(tmp_path, joint, options):
    translator = random_translator(joint, **options)
    write_safetensors(translator, DataConfig(), tmp_path)
    network = Network(tmp_path)
    scores = []
    for source, target in zip(*encoded(translator), strict=True):
        memory = network.encode(source)
        logits = [network.logits(memory, [BOS_ID, *target[:length]]) for length in range(len(target))]
        scores.append(log_probability_of(logits, target))
    assert scores == pytest.approx(log_probabilities(translator), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"positions": "rotary"}, "--model.rotary-cross-attention False"),
        ({"qk_norm": True}, "--model.qk-norm self"),
        (
            {"positions": "rotary", "qk_norm": True},
            r"--model.rotary-cross-attention False\) and .*--model.qk-norm self",
        ),
    ],
)
def test_what_ctranslate2_cannot_represent_is_refused(tmp_path, options, remedy):
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
