"""The whole network: causality, padding, packing, cached decoding, tying, parameter counts, precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model.dropout import Dropout
from model.transformer import Transformer, initial_params, structure
from options.schema import ModelConfig

SMALL = {"num_encoder_layers": 2, "num_decoder_layers": 3, "embed_dim": 12, "num_heads": 2, "mlp_dim": 17,
         "max_length": 32}  # fmt: skip
VARIANTS = [
    {},
    {"norm": "post"},
    {"activation": "gelu", "positions": "learned"},
    {"tied_embeddings": "decoder"},
    {"tied_embeddings": "none"},
    {"positions": "rotary"},
    {"positions": "rotary", "qk_norm": True},
]


def small_model(**options) -> Transformer:
    return Transformer(ModelConfig(**{**SMALL, **options}), 23, 23, rngs=nnx.Rngs(0))


SOURCE = jnp.array([[5, 6, 7, 8, 1, 0], [9, 10, 1, 0, 0, 0]])
TARGET = jnp.array([[2, 11, 12, 13, 14], [2, 15, 16, 0, 0]])


@pytest.mark.parametrize("options", VARIANTS)
def test_logits_never_depend_on_later_targets(options):
    """By gradient through the whole network: each target position has a position encoding of its own to vary."""
    model = small_model(**{**options, "positions": "learned"})
    graphdef, params = nnx.split(model, nnx.Param)
    table = nnx.as_pure(params)["position_embedding"]

    def logits(rows):
        pure = nnx.as_pure(params) | {"position_embedding": table.at[10:15].set(rows)}
        return nnx.merge(graphdef, pure)(SOURCE[:1], TARGET[:1], target_positions=jnp.arange(10, 15)[None])[0][0, :, 7]

    influence = np.abs(jax.jacobian(logits)(table[10:15])).sum(axis=-1)
    assert (np.triu(influence, 1) == 0).all()
    assert (influence[np.tril_indices(5)] > 0).all()


@pytest.mark.parametrize("options", VARIANTS)
def test_changing_a_later_target_token_changes_no_earlier_logits(options):
    model = small_model(**options)
    logits, _ = model(SOURCE, TARGET)
    changed, _ = model(SOURCE, TARGET.at[0, 3].set(17))
    np.testing.assert_array_equal(logits[0, :3], changed[0, :3])
    assert not np.allclose(logits[0, 3:], changed[0, 3:])


@pytest.mark.parametrize("options", VARIANTS)
def test_padding_never_changes_a_result(options):
    model = small_model(**options)
    logits, _ = model(SOURCE, TARGET)
    padded, _ = model(jnp.pad(SOURCE, ((0, 0), (0, 5))), jnp.pad(TARGET, ((0, 0), (0, 4))))
    real = np.array(TARGET != 0)
    np.testing.assert_allclose(padded[:, :5][real], logits[real], atol=5e-6)
    alone, _ = model(SOURCE[1:, :3], TARGET[1:, :3])
    np.testing.assert_allclose(alone[0], logits[1, :3], atol=2e-6)


@pytest.mark.parametrize("options", VARIANTS)
def test_packed_equals_unpacked(options):
    model = small_model(**options)
    logits, _ = model(SOURCE, TARGET)
    packed, _ = model(
        jnp.array([[5, 6, 7, 8, 1, 9, 10, 1, 0]]),
        jnp.array([[2, 11, 12, 13, 14, 2, 15, 16, 0]]),
        source_segments=jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]),
        source_positions=jnp.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]]),
        target_segments=jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]),
        target_positions=jnp.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]]),
    )
    np.testing.assert_allclose(packed[0, :5], logits[0], atol=2e-6)
    np.testing.assert_allclose(packed[0, 5:8], logits[1, :3], atol=2e-6)


@pytest.mark.parametrize("options", VARIANTS)
def test_cached_decoding_equals_the_whole_pass(options):
    """Two targets a sentence, which change places from position to position."""
    model = small_model(**options)
    targets = jnp.stack([TARGET, jnp.where(TARGET > 4, TARGET - 1, TARGET)], axis=1)
    expected = [model(SOURCE, targets[:, beam])[0] for beam in range(2)]
    assert not np.allclose(expected[0][:, 2:], expected[1][:, 2:], atol=1e-3)
    memory, caches = model.start_decoding(SOURCE, num_beams=2, length=5)
    rows = jnp.array([[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]])  # where each of the two stands at a position
    lineages = jnp.broadcast_to(rows.T, (2, 2, 5))
    for index in range(5):
        who = np.argsort(rows[index])  # stands in each row
        tokens, beam_history = targets[:, who, index], lineages[:, who].at[:, :, index + 1 :].set(7)
        step, caches = model.decode_step(tokens, jnp.int32(index), beam_history, memory, caches)
        for row, target in enumerate(who):
            real = np.array(targets[:, target, index] != 0)
            np.testing.assert_allclose(step[real, row], expected[target][real, index], atol=2e-6)


def test_the_base_of_the_positions_is_the_configs():
    for positions in ("sinusoidal", "rotary"):
        model = small_model(positions=positions)
        params = nnx.as_pure(nnx.state(model, nnx.Param))
        configs = [ModelConfig(**SMALL, positions=positions, position_base=base) for base in (10000.0, 10.0)]
        usual, other = (nnx.merge(structure(config, 23, 23).graphdef, params)(SOURCE, TARGET)[0] for config in configs)
        np.testing.assert_array_equal(usual, model(SOURCE, TARGET)[0])
        assert not np.allclose(usual, other, atol=1e-2)


def test_rotary_positions_matter_by_their_distance_alone_in_every_attention():
    """Both sides moved on by 3: the same. Words moved apart, on one side or from the other side: something else."""
    model = small_model(positions="rotary")
    source, target = jnp.arange(6)[None].repeat(2, axis=0), jnp.arange(5)[None].repeat(2, axis=0)

    def logits(source_positions, target_positions):
        return model(SOURCE, TARGET, source_positions=source_positions, target_positions=target_positions)[0]

    usual = model(SOURCE, TARGET)[0]
    np.testing.assert_allclose(logits(source + 3, target + 3), usual, atol=2e-6)
    for moved in ((source * 2, target), (source, target * 2), (source + 3, target)):
        assert not np.allclose(logits(*moved), usual, atol=1e-3)


def test_attention_weights_of_every_layer_and_head_come_back():
    _, weights = small_model()(SOURCE, TARGET)
    assert [w.shape for w in weights.encoder] == [(2, 2, 6, 6)] * 2
    assert [w.shape for w in weights.decoder] == [(2, 2, 5, 5)] * 3
    assert [w.shape for w in weights.cross] == [(2, 2, 5, 6)] * 3
    for layer in (*weights.encoder, *weights.decoder, *weights.cross):
        np.testing.assert_allclose(layer.sum(axis=-1), 1.0, atol=1e-6)
    for layer in weights.cross:
        assert (np.asarray(layer)[1, :, :3, 3:] == 0).all()  # nobody looks at the second source's padding


def count(config: ModelConfig, vocabulary: int) -> int:
    params = structure(config, vocabulary, vocabulary).params
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_parameter_count_of_a_small_model_by_hand():
    """Width 12, feed-forward 17, 2 + 3 layers, vocabulary 23.

    An attention has 4 * 12 * 12 = 576 weights, a feed-forward 12 * 17 + 17 + 17 * 12 + 12 = 437, a norm 24. An encoder
    layer: 576 + 437 + 2 * 24 = 1061; a decoder layer: 2 * 576 + 437 + 3 * 24 = 1661; embedding 23 * 12 = 276; two final
    norms 48. 2 * 1061 + 3 * 1661 + 276 + 48 = 7429.
    """
    assert count(ModelConfig(**SMALL), 23) == 7429
    assert count(ModelConfig(**SMALL, norm="post"), 23) == 7429 - 48
    assert count(ModelConfig(**SMALL, tied_embeddings="decoder"), 23) == 7429 + 276
    assert count(ModelConfig(**SMALL, tied_embeddings="none"), 23) == 7429 + 2 * 276
    assert count(ModelConfig(**SMALL, positions="learned"), 23) == 7429 + 32 * 12
    assert count(ModelConfig(**SMALL, positions="rotary"), 23) == 7429
    assert count(ModelConfig(**SMALL, qk_norm=True), 23) == 7429 + (2 + 2 * 3) * 2 * 6


@pytest.mark.parametrize(
    ("width", "heads", "hidden", "expected"), [(512, 8, 2048, 63_045_632), (1024, 16, 4096, 214_171_648)]
)
def test_parameter_counts_of_the_paper_by_hand(width, heads, hidden, expected):
    config = ModelConfig(
        num_encoder_layers=6, num_decoder_layers=6, embed_dim=width, num_heads=heads, mlp_dim=hidden, norm="post"
    )
    assert count(config, 37_000) == expected


def test_tied_embeddings_are_one_parameter_with_the_gradients_of_all_its_uses():
    model = small_model()
    graphdef, params = nnx.split(model, nnx.Param)
    grads = jax.grad(lambda p: nnx.merge(graphdef, p)(SOURCE, TARGET)[0][TARGET != 0][:, 3].sum())(params)
    table = nnx.as_pure(grads)["target_embedding"]
    used = set(np.asarray(SOURCE).ravel()) | set(np.asarray(TARGET).ravel()) | {3}
    touched = {row for row in range(23) if np.abs(table[row]).sum() > 0}
    assert touched == {int(i) for i in used} - {0}


def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_logits():
    config = ModelConfig(**SMALL)
    model = Transformer(config, 23, 23, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.as_pure(nnx.state(model, nnx.Param)))} == {jnp.dtype("float32")}
    memory, weights = model.encode(SOURCE)
    logits, _ = model(SOURCE, TARGET)
    assert memory.dtype == jnp.bfloat16
    assert weights[0].dtype == logits.dtype == jnp.float32
    exact, _ = small_model()(SOURCE, TARGET)
    real = np.array(TARGET != 0)
    np.testing.assert_allclose(logits[real], exact[real], atol=0.1)


def test_initial_params_fit_the_structure_and_depend_on_the_key():
    config = ModelConfig(**SMALL)
    template = structure(config, 23, 23).params
    first, again, other = (initial_params(config, 23, 23, jax.random.key(seed)) for seed in (1, 1, 2))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), first) == jax.tree.map(lambda x: (x.shape, x.dtype), template)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), first, again)))
    assert not (first["target_embedding"] == other["target_embedding"]).all()


def test_dropout_draws_another_mask_at_each_site_and_the_same_for_the_same_key():
    x = jnp.ones((64, 257))
    first = Dropout(jax.random.key(7))
    a, b = first(x, 0.3), first(x, 0.3)
    assert (a == Dropout(jax.random.key(7))(x, 0.3)).all()
    assert not (a == b).all()
    assert not (a == Dropout(jax.random.key(8))(x, 0.3)).all()
    for mask in (a, b):
        assert abs(float((mask == 0).mean()) - 0.3) < 0.015
        assert abs(float(mask.mean()) - 1.0) < 0.02
    both = float(((a == 0) & (b == 0)).mean())
    assert abs(both - 0.09) < 0.01  # independent between sites
    neighbours = float(((a[:, 1:] == 0) & (a[:, :-1] == 0)).mean())
    assert abs(neighbours - 0.09) < 0.01  # and between positions


def test_dropout_changes_training_only():
    model = small_model(dropout_rate=0.5, attention_dropout_rate=0.5)
    plain, _ = model(SOURCE, TARGET)
    again, _ = model(SOURCE, TARGET)
    dropped, _ = model(SOURCE, TARGET, dropout=Dropout(jax.random.key(0)))
    np.testing.assert_array_equal(plain, again)
    assert not np.allclose(plain[0], dropped[0], atol=0.1)
