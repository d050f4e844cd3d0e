"""The whole network: causality, padding, packing, cached decoding, tying, parameter counts, precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.model.dropout import Dropout
from lingua_flax.model.positions import sinusoidal_positions
from lingua_flax.model.transformer import AttentionWeights, Structure, Transformer, initial_params, structure
from lingua_flax.options.precision import BFLOAT16, BFLOAT16_PRODUCTS, FLOAT32
from lingua_flax.options.schema import ModelConfig

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 2, "embed_dim": 12, "num_heads": 2}
SMALL |= {"mlp_dim": 17, "max_length": 32}
VOCABULARY = 23
# Every value of every option; the fewer the networks, the less there is to compile.
DEFAULT = {}
LEARNED = {"norm": "post", "activation": "gelu", "positions": "learned", "tied_embeddings": "decoder"}
ROTARY = {"positions": "rotary", "tied_embeddings": "none"}
NORMALIZED = {"norm": "post", "positions": "rotary", "rotary_cross_attention": False, "qk_norm": True}
VARIANTS = [DEFAULT, LEARNED, ROTARY, NORMALIZED]

SOURCE = np.array([[5, 6, 7, 8, 1, 0], [9, 10, 1, 0, 0, 0]], np.int32)
TARGET = np.array([[2, 11, 12, 13, 14], [2, 15, 16, 0, 0]], np.int32)
SOURCE_POSITIONS, TARGET_POSITIONS = np.arange(6)[None].repeat(2, 0), np.arange(5)[None].repeat(2, 0)
REAL = TARGET != 0


def random_params(network: Structure) -> dict:
    """Returns parameters drawn by NumPy: JAX takes seconds to compile the initialization of a network."""
    draw = np.random.default_rng(0)

    def parameter(path, leaf):
        is_scale = path[-1].key == "scale"
        deviation = np.sqrt(2 / sum(leaf.shape)) if leaf.ndim > 1 else 0.1
        return np.float32(is_scale + deviation * draw.normal(size=leaf.shape))

    return jax.tree_util.tree_map_with_path(parameter, network.params)


@functools.cache
def network(**options) -> Structure:
    return structure(ModelConfig(**{**SMALL, **options}), VOCABULARY, VOCABULARY)


@functools.cache
def params(**options) -> dict:
    return random_params(network(**options))


def model(graphdef, params) -> Transformer:
    return nnx.merge(graphdef, params)


@functools.partial(jax.jit, static_argnums=0)
def forward(graphdef, params, source, target, packing) -> tuple[jax.Array, AttentionWeights]:
    return model(graphdef, params)(source, target, **packing)


def logits(options: dict, source=SOURCE, target=TARGET, **packing) -> np.ndarray:
    """Returns the logits of the network with these options."""
    return np.asarray(forward(network(**options).graphdef, params(**options), source, target, packing)[0])


@pytest.fixture(scope="module")
def gradients() -> dict:
    """Gradients of the logit of piece 3 at each target position, for one sentence; target positions start at 10."""
    learned = {"positions": "learned"}
    graphdef = network(**learned).graphdef
    source, target, positions = (jnp.asarray(x) for x in (SOURCE[:1], TARGET[:1], TARGET_POSITIONS[:1] + 10))

    @jax.jit
    @jax.jacrev
    def gradients(params):
        return model(graphdef, params)(source, target, target_positions=positions)[0][0, :, 3]

    return jax.device_get(gradients(params(**learned)))


def test_logits_never_depend_on_later_targets(gradients):
    """By their gradients with respect to the position encoding of each target."""
    influence = np.abs(gradients["position_embedding"][:, 10:15]).sum(axis=-1)
    assert (np.triu(influence, 1) == 0).all()
    assert (influence[np.tril_indices(5)] > 0).all()


def test_tied_embedding_receives_gradients_from_all_its_uses(gradients):
    used = set(SOURCE[0]) | set(TARGET[0]) | {3}
    with_gradient = np.flatnonzero(np.abs(gradients["target_embedding"]).sum(axis=(0, 2)))
    assert set(with_gradient) == used - {0}


@pytest.mark.parametrize("options", VARIANTS)
def test_changed_target_token_leaves_earlier_logits_unchanged(options):
    changed_target = TARGET.copy()
    changed_target[0, 3] = 17
    before, after = logits(options), logits(options, target=changed_target)
    np.testing.assert_array_equal(after[0, :3], before[0, :3])
    assert not np.allclose(after[0, 3:], before[0, 3:])


def test_padding_does_not_change_logits():
    expected = logits(DEFAULT)
    padded = logits(DEFAULT, np.pad(SOURCE, ((0, 0), (0, 5))), np.pad(TARGET, ((0, 0), (0, 4))))
    np.testing.assert_allclose(padded[:, :5][REAL], expected[REAL], atol=5e-6)
    unpadded = logits(DEFAULT, SOURCE[1:, :3], TARGET[1:, :3])
    np.testing.assert_allclose(unpadded[0], expected[1, :3], atol=2e-6)


@pytest.mark.parametrize("options", VARIANTS)
def test_packed_rows_match_padded_rows(options):
    expected = logits(options)
    segments = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]], np.int32)
    packed = logits(
        options,
        np.array([[5, 6, 7, 8, 1, 9, 10, 1, 0]], np.int32),
        np.array([[2, 11, 12, 13, 14, 2, 15, 16, 0]], np.int32),
        source_segments=segments,
        source_positions=positions,
        target_segments=segments,
        target_positions=positions,
    )
    np.testing.assert_allclose(packed[0, :5], expected[0], atol=5e-6)
    np.testing.assert_allclose(packed[0, 5:8], expected[1, :3], atol=2e-6)


@functools.partial(jax.jit, static_argnums=0)
def start_decoding(graphdef, params, source):
    return model(graphdef, params).start_decoding(source, num_beams=2, length=5)


@functools.partial(jax.jit, static_argnums=0)
def decode_step(graphdef, params, *arguments):
    return model(graphdef, params).decode_step(*arguments)


@pytest.mark.parametrize("options", VARIANTS)
def test_cached_decoding_matches_full_forward_pass(options):
    """Decodes two targets per sentence, which swap rows between positions."""
    network_and_params = network(**options).graphdef, params(**options)
    targets = np.stack([TARGET, np.where(TARGET > 4, TARGET - 1, TARGET)], axis=1)
    expected = [logits(options, target=targets[:, beam]) for beam in range(2)]
    assert not np.allclose(expected[0][:, 2:], expected[1][:, 2:], atol=1e-3)
    memory, caches = start_decoding(*network_and_params, SOURCE)
    rows = np.array([[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]], np.int32)  # the row of each target at each position
    for index in range(5):
        target_in_row = np.argsort(rows[index])
        history = np.broadcast_to(rows.T, (2, 2, 5))[:, target_in_row]
        history[:, :, index + 1 :] = 7  # ignored
        tokens = targets[:, target_in_row, index]
        actual, caches = decode_step(*network_and_params, tokens, np.int32(index), history, memory, caches)
        for row, target in enumerate(target_in_row):
            real = targets[:, target, index] != 0
            np.testing.assert_allclose(np.asarray(actual)[real, row], expected[target][real, index], atol=2e-6)


def test_position_base_is_taken_from_config():
    other_base = network(**ROTARY, position_base=10.0).graphdef
    other_logits, _ = forward(other_base, params(**ROTARY), SOURCE, TARGET, {})
    assert not np.allclose(other_logits, logits(ROTARY), atol=1e-2)
    for base in (10000.0, 10.0):
        table = model(network(position_base=base).graphdef, params()).position_table()
        np.testing.assert_array_equal(table, sinusoidal_positions(SMALL["max_length"], SMALL["embed_dim"], base))


def test_rotary_attention_depends_only_on_relative_positions():
    """A common shift of both sides changes nothing; stretching one side or shifting only one does."""

    def logits_at(source_positions, target_positions):
        return logits(ROTARY, source_positions=source_positions, target_positions=target_positions)

    source, target = SOURCE_POSITIONS, TARGET_POSITIONS
    expected = logits(ROTARY)
    np.testing.assert_allclose(logits_at(source + 3, target + 3), expected, atol=2e-6)
    for moved in ((source * 2, target), (source, target * 2), (source + 3, target)):
        assert not np.allclose(logits_at(*moved), expected, atol=1e-3)


def test_cross_attention_without_rotation_ignores_distance_between_sides():
    expected = logits(NORMALIZED)
    np.testing.assert_allclose(logits(NORMALIZED, source_positions=SOURCE_POSITIONS + 3), expected, atol=2e-6)
    assert not np.allclose(logits(NORMALIZED, source_positions=SOURCE_POSITIONS * 2), expected, atol=1e-3)


def test_attention_weights_of_all_layers_and_heads_are_returned():
    weights = jax.device_get(forward(network().graphdef, params(), SOURCE, TARGET, {})[1])
    assert [layer.shape for layer in weights.encoder] == [(2, 2, 6, 6)]
    assert [layer.shape for layer in weights.decoder] == [(2, 2, 5, 5)] * 2
    assert [layer.shape for layer in weights.cross] == [(2, 2, 5, 6)] * 2
    for layer in (*weights.encoder, *weights.decoder, *weights.cross):
        np.testing.assert_allclose(layer.sum(axis=-1), 1.0, atol=1e-6)
    for layer in weights.cross:
        assert (layer[1, :, :3, 3:] == 0).all()  # padding of the second source


def number_of_parameters(network: Structure) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(network.params))


def test_parameter_counts_match_hand_calculation():
    """Width 12, feed-forward 17, 1 + 2 layers, vocabulary 23.

    An attention has 4 * 12 * 12 = 576 weights, a feed-forward 12 * 17 + 17 + 17 * 12 + 12 = 437, a norm 24. An encoder
    layer: 576 + 437 + 2 * 24 = 1061; a decoder layer: 2 * 576 + 437 + 3 * 24 = 1661; embedding 23 * 12 = 276; two final
    norms 48. 1061 + 2 * 1661 + 276 + 48 = 4707.
    """
    final_norms, embedding, position_embedding, scales = 48, 276, 32 * 12, (1 + 2 * 2) * 2 * 6
    assert number_of_parameters(network(**DEFAULT)) == 4707
    assert number_of_parameters(network(**LEARNED)) == 4707 - final_norms + embedding + position_embedding
    assert number_of_parameters(network(**ROTARY)) == 4707 + 2 * embedding
    assert number_of_parameters(network(**NORMALIZED)) == 4707 - final_norms + scales


@pytest.mark.parametrize(
    ("width", "heads", "hidden", "expected"), [(512, 8, 2048, 63_045_632), (1024, 16, 4096, 214_171_648)]
)
def test_parameter_counts_of_the_models_of_vaswani_et_al(width, heads, hidden, expected):
    config = ModelConfig(
        num_encoder_layers=6, num_decoder_layers=6, embed_dim=width, num_heads=heads, mlp_dim=hidden, norm="post"
    )
    assert number_of_parameters(structure(config, 37_000, 37_000)) == expected


@pytest.mark.parametrize("precision", [BFLOAT16, BFLOAT16_PRODUCTS])
def test_bfloat16_with_float32_parameters_and_logits(precision):
    half = structure(ModelConfig(**SMALL), VOCABULARY, VOCABULARY, precision)
    assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {jnp.dtype("float32")}
    inputs = map(jnp.array, (SOURCE, SOURCE.clip(max=1), SOURCE_POSITIONS))
    memory, _ = jax.eval_shape(lambda params: model(half.graphdef, params).encode(*inputs), half.params)
    actual, weights = forward(half.graphdef, params(), SOURCE, TARGET, {})
    assert memory.dtype == precision.activations
    assert weights.encoder[0].dtype == actual.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(actual)[REAL], logits({})[REAL], atol=0.1)
    assert not np.allclose(np.asarray(actual)[REAL], logits({})[REAL], atol=1e-4)  # rounded at all


@pytest.mark.parametrize("precision", [BFLOAT16, BFLOAT16_PRODUCTS])
def test_logits_are_products_of_rounded_operands(precision):
    half = structure(ModelConfig(**SMALL), VOCABULARY, VOCABULARY, precision)

    @jax.jit
    def outputs(params):
        network = model(half.graphdef, params)
        inputs = jnp.array(SOURCE), jnp.array(TARGET)
        return network(*inputs)[0], network.hidden_states(*inputs)[0]

    actual, x = outputs(params())
    assert x.dtype == precision.products
    table = params()["target_embedding"].astype(precision.products)
    np.testing.assert_allclose(actual, np.float64(x) @ np.float64(table).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", ["all", "none"])
@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16, BFLOAT16_PRODUCTS])
def test_converted_matrices_give_the_same_logits(precision, tied):
    half = structure(ModelConfig(**SMALL | {"tied_embeddings": tied}), VOCABULARY, VOCABULARY, precision)

    @jax.jit
    def outputs(params):
        network = model(half.graphdef, params)
        converted = network.with_converted_matrices()
        assert converted.output_table.dtype == converted.encoder[0].feed_forward.up.kernel.dtype == precision.products
        return [each(jnp.array(SOURCE), jnp.array(TARGET))[0] for each in (network, converted)]

    np.testing.assert_array_equal(*outputs(random_params(half)))


def test_initial_params_match_structure_and_depend_on_key():
    config, vocabularies = ModelConfig(**SMALL), (VOCABULARY, VOCABULARY)
    initialize = jax.jit(initial_params, static_argnums=(0, 1, 2))
    first, again, other = (initialize(config, *vocabularies, jax.random.key(seed)) for seed in (1, 1, 2))
    shapes, expected = (jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (first, network().params))
    assert shapes == expected
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
    assert not np.array_equal(first["target_embedding"], other["target_embedding"])


def test_dropout_mask_depends_on_key_and_site():
    @jax.jit
    def masks(key):
        dropout = Dropout(key)
        return [dropout(jnp.ones((64, 257)), 0.3) for _ in range(2)]

    a, b = jax.device_get(masks(jax.random.key(7)))
    np.testing.assert_array_equal(masks(jax.random.key(7))[0], a)
    assert not np.array_equal(masks(jax.random.key(8))[0], a)
    assert not np.array_equal(a, b)
    for mask in (a, b):
        assert abs((mask == 0).mean() - 0.3) < 0.015
        assert abs(mask.mean() - 1.0) < 0.02
    both_sites = ((a == 0) & (b == 0)).mean()
    assert abs(both_sites - 0.09) < 0.01  # sites are independent
    both_neighbors = ((a[:, 1:] == 0) & (a[:, :-1] == 0)).mean()
    assert abs(both_neighbors - 0.09) < 0.01  # and so are positions


def test_dropout_applies_only_during_training():
    graphdef = network(dropout_rate=0.5, attention_dropout_rate=0.5).graphdef

    @jax.jit
    def dropped(params, key):
        return model(graphdef, params)(jnp.array(SOURCE), jnp.array(TARGET), dropout=Dropout(key))[0]

    expected = logits({})
    np.testing.assert_array_equal(forward(graphdef, params(), SOURCE, TARGET, {})[0], expected)
    assert not np.allclose(dropped(params(), jax.random.key(0))[0], expected[0], atol=0.1)
