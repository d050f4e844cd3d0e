"""Inspections of a sentence: compared with translations, with forward passes of the network, and worked in numpy."""

import base64
import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.host.errors import UserError
from lingua_flax.inspection.interventions import Head, Intervention, inspect, inspection_of, without_heads
from lingua_flax.inspection.observation import NUM_ALTERNATIVES, observe, source_tokens
from lingua_flax.model.parameters import params_by_name
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import length_limit
from lingua_flax.translation.requests import Part
from tests.inspection.test_attention_maps import LINE, MAX_LENGTH, forward_pass, translator

__all__ = ["translator"]  # a fixture

BEAMS = 4
OPTIONS = DecodingOptions(beam_size=BEAMS)
OTHER = "the water sleeps near the old village"  # as many tokens as LINE
PREFIX = (7, 30, 9)
MASKED = (1, 4)
ALL_CROSS = tuple(Head("cross", layer, head) for layer in range(2) for head in range(3))
INTERVENTIONS = {
    "none": Intervention(),
    "prefix": Intervention(prefix=PREFIX),
    "masked": Intervention(masked=MASKED),
    "heads": Intervention(heads_off=(Head("encoder", 0, 1), Head("decoder", 1, 0), Head("cross", 1, 2))),
}
INTERVENTIONS["all"] = Intervention(PREFIX, MASKED, INTERVENTIONS["heads"].heads_off)


@pytest.fixture(scope="module")
def inspections(translator):
    """An inspection with each intervention, and the beam."""
    return {name: inspect(translator, LINE, OPTIONS, each, record_beam=True) for name, each in INTERVENTIONS.items()}


def check_same(actual, expected):
    """Checks that two lists of hypotheses are the same up to rounding."""
    assert [(each.text, each.tokens) for each in actual] == [(each.text, each.tokens) for each in expected]
    np.testing.assert_allclose([each.score for each in actual], [each.score for each in expected], atol=1e-5)


@pytest.mark.parametrize("beams", [1, BEAMS])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_hypotheses_and_probabilities_are_those_of_the_translation(translator, beams, alpha):
    options = DecodingOptions(beam_size=beams, length_penalty=alpha)
    inspection = inspect(translator, LINE, options)
    (translation,) = translator.translate([LINE], options, num_hypotheses=beams)
    check_same(inspection.hypotheses, translation.hypotheses)
    target = inspection.observation.target
    assert tuple(prediction.token for prediction in target) == translation.hypotheses[0].tokens
    score = np.log([prediction.probability for prediction in target]).sum() / ((5 + len(target)) / 6) ** alpha
    assert score == pytest.approx(translation.hypotheses[0].score, abs=1e-4)
    assert (inspection.text, inspection.intervention, inspection.beam) == (LINE, Intervention(), None)


def test_inspection_of_a_translation_is_that_of_its_line(translator, inspections):
    (translation,) = translator.translate([LINE], OPTIONS)
    inspection, expected = inspection_of(translator, translation), inspections["none"]
    check_same(inspection.hypotheses, expected.hypotheses[:1])
    assert inspection.observation.target == expected.observation.target
    np.testing.assert_array_equal(inspection.observation.cross, expected.observation.cross)


@pytest.mark.parametrize("name", INTERVENTIONS)
def test_recorded_beam_ends_with_the_hypotheses(inspections, name):
    inspection = inspections[name]
    expected = [(hypothesis.score, list(hypothesis.tokens)) for hypothesis in inspection.hypotheses]
    assert len(expected) == BEAMS
    assert [tokens for _, tokens in inspection.beam.finished] == [tokens for _, tokens in expected]
    np.testing.assert_allclose(
        [score for score, _ in inspection.beam.finished], [score for score, _ in expected], atol=1e-4
    )
    assert all(len(step) <= 2 * BEAMS for step in inspection.beam.steps)
    assert len({each.hypotheses for each in inspections.values()}) == len(inspections)  # each changes something


def test_one_beam_is_recorded_as_the_greedy_choices(translator):
    inspection = inspect(translator, LINE, DecodingOptions(beam_size=1), record_beam=True)
    chosen = [next(c for c in step if c.outcome != "dropped") for step in inspection.beam.steps]
    assert tuple(candidate.token for candidate in chosen) == inspection.hypotheses[0].tokens


# --- Prefixes -------------------------------------------------------------------------------------------------------


def test_prefix_begins_every_hypothesis(inspections):
    inspection = inspections["prefix"]
    assert all(hypothesis.tokens[: len(PREFIX)] == PREFIX for hypothesis in inspection.hypotheses)
    assert tuple(prediction.token for prediction in inspection.observation.target)[: len(PREFIX)] == PREFIX
    assert [[candidate.token for candidate in step] for step in inspection.beam.steps[: len(PREFIX)]] == [
        [token] for token in PREFIX
    ]


def test_prefix_of_text_translates_as_with_that_text(translator):
    text = "l'eau"
    ids = tuple(translator.tokenizer.encode_target([text])[0][:-1])
    assert UNK_ID not in ids
    inspection = inspect(translator, LINE, OPTIONS, Intervention(prefix=ids))
    (translation,) = translator.translate([LINE], OPTIONS, num_hypotheses=BEAMS, prefixes=[text])
    check_same(inspection.hypotheses, translation.hypotheses)


def test_prefix_may_be_the_whole_translation(translator):
    inspection = inspect(translator, LINE, OPTIONS, Intervention(prefix=(*PREFIX, EOS_ID)), record_beam=True)
    (hypothesis,) = inspection.hypotheses
    assert hypothesis.tokens == (*PREFIX, EOS_ID)
    assert [tokens for _, tokens in inspection.beam.finished] == [list(hypothesis.tokens)]


@pytest.mark.parametrize("end", [(), (EOS_ID,)])
def test_longest_prefix(translator, end):
    prefix = (7,) * (MAX_LENGTH - 1)
    inspection = inspect(translator, LINE, OPTIONS, Intervention(prefix=prefix + end), record_beam=True)
    assert inspection.hypotheses[0].tokens == (*prefix, EOS_ID)
    assert len(inspection.observation.target) == MAX_LENGTH == len(inspection.beam.steps)


# --- Masked tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["masked", "all"])
def test_masked_tokens_get_no_weight(inspections, name):
    observation = inspections[name].observation
    visible = np.delete(np.arange(len(observation.source)), MASKED)
    assert (observation.cross[..., MASKED] == 0).all()
    assert (observation.encoder[..., MASKED] == 0).all()
    assert (observation.encoder[:, :, MASKED] == 0).all()
    np.testing.assert_allclose(observation.cross.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(observation.encoder[:, :, visible].sum(axis=-1), 1.0, atol=1e-5)
    assert (inspections["none"].observation.cross[..., MASKED] > 0).all()


def test_hypotheses_with_masked_tokens_are_those_of_the_masked_search(translator, inspections):
    source = source_tokens(translator, LINE)
    for masked, name in ((MASKED, "masked"), ((), "none")):
        part = Part(LINE, source, limit=length_limit(len(source), 0, OPTIONS, MAX_LENGTH), masked=masked)
        (hypotheses,) = translator.search([part], BEAMS, OPTIONS)
        check_same(inspections[name].hypotheses, hypotheses)


def test_another_token_in_the_masked_place_changes_nothing(translator, inspections):
    expected = inspections["masked"]
    source = list(expected.observation.source)
    source[MASKED[0]], source[MASKED[1]] = 11, 12
    observation = observe(translator, source, expected.hypotheses[0].tokens, MASKED)
    visible = np.delete(np.arange(len(source)), MASKED)
    assert observation.target == expected.observation.target
    np.testing.assert_array_equal(observation.cross, expected.observation.cross)
    np.testing.assert_array_equal(observation.encoder[:, :, visible], expected.observation.encoder[:, :, visible])


# --- Heads that are switched off ------------------------------------------------------------------------------------


def attention_by_hand(kernels, name, x, memory, off, num_heads=3):
    """Returns multi-head attention without the heads that are off, one head after the other."""
    query, key, value, output = (
        np.asarray(kernels[f"{name}.{part}.kernel"], np.float64) for part in ("query", "key", "value", "output")
    )
    width = query.shape[1] // num_heads
    total = np.zeros_like(x)
    for head in range(num_heads):
        own = slice(head * width, (head + 1) * width)
        scores = (x @ query[:, own]) @ (memory @ key[:, own]).T / np.sqrt(width)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        total += 0.0 if head in off else weights @ (memory @ value[:, own]) @ output[own]
    return total


MODULES = {
    ("encoder", 0): "encoder.0.self_attention",
    ("decoder", 0): "decoder.0.self_attention",
    ("decoder", 1): "decoder.1.self_attention",
    ("cross", 0): "decoder.0.cross_attention",
    ("cross", 1): "decoder.1.cross_attention",
}


@pytest.mark.parametrize(("attention", "layer"), MODULES)
@pytest.mark.parametrize("off", [{1}, {0, 2}, {0, 1, 2}])
def test_heads_that_are_off_add_nothing(translator, attention, layer, off):
    """Computed in numpy from the original weights; no other parameter changes."""
    name = MODULES[attention, layer]
    params = without_heads(translator, [Head(attention, layer, head) for head in off])
    model = nnx.merge(translator.graphdef, params)
    stack, number, part = name.split(".")
    module = getattr(getattr(model, stack)[int(number)], part)
    x, memory = np.random.default_rng(0).normal(size=(2, 5, 24))
    memory = memory if attention == "cross" else x
    actual, _ = module(*(jnp.asarray(each, jnp.float32)[None] for each in (x, memory)))
    np.testing.assert_allclose(
        actual[0], attention_by_hand(params_by_name(translator.params), name, x, memory, off), atol=2e-5
    )
    before, after = params_by_name(translator.params), params_by_name(params)
    assert [key for key in before if not np.array_equal(before[key], after[key])] == [f"{name}.output.kernel"]


@pytest.mark.parametrize(
    ("head", "same"),
    [
        (Head("encoder", 0, 1), {"encoder 0", "decoder 0"}),
        (Head("decoder", 0, 0), {"encoder 0", "decoder 0"}),
        (Head("cross", 0, 2), {"encoder 0", "decoder 0", "cross 0"}),
        (Head("decoder", 1, 1), {"encoder 0", "decoder 0", "cross 0", "decoder 1"}),
        (Head("cross", 1, 0), {"encoder 0", "decoder 0", "cross 0", "decoder 1", "cross 1"}),
    ],
)
def test_head_that_is_off_changes_only_what_comes_after_it(translator, inspections, head, same):
    before = inspections["none"]
    changed = dataclasses.replace(translator, params=without_heads(translator, [head]))
    after = observe(changed, before.observation.source, before.hypotheses[0].tokens)
    maps = [(name, layer) for name in ("encoder", "decoder", "cross") for layer in range(1 + (name != "encoder"))]
    unchanged = {
        f"{name} {layer}"
        for name, layer in maps
        if np.array_equal(getattr(before.observation, name)[layer], getattr(after, name)[layer])
    }
    assert unchanged == same
    pairs = zip(before.observation.target, after.target, strict=True)
    assert all(abs(one.probability - other.probability) > 1e-6 for one, other in pairs)


def test_without_cross_attention_the_source_does_not_matter(translator, inspections):
    blind = Intervention(heads_off=ALL_CROSS)
    first, second = (inspect(translator, line, OPTIONS, blind, record_beam=True) for line in (LINE, OTHER))
    assert first.observation.source != second.observation.source
    assert len(first.observation.source) == len(second.observation.source)  # and so is the limit
    assert first.hypotheses == second.hypotheses
    assert first.observation.target == second.observation.target
    assert first.beam == second.beam
    assert first.hypotheses != inspections["none"].hypotheses
    assert not np.array_equal(first.observation.cross, second.observation.cross)
    for heads in (ALL_CROSS[1:], ALL_CROSS[:-1]):  # one head is enough
        first, second = (
            inspect(translator, line, OPTIONS, Intervention(heads_off=heads)).observation for line in (LINE, OTHER)
        )
        assert first.target[0].probability != second.target[0].probability


def test_hypotheses_without_heads_are_those_of_the_changed_network(translator, inspections):
    changed = dataclasses.replace(translator, params=without_heads(translator, INTERVENTIONS["heads"].heads_off))
    (translation,) = changed.translate([LINE], OPTIONS, num_hypotheses=BEAMS)
    check_same(inspections["heads"].hypotheses, translation.hypotheses)
    again = inspect(translator, LINE, OPTIONS)  # the translator itself is not changed
    check_same(again.hypotheses, inspections["none"].hypotheses)


# --- Alternatives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "masked", "prefix"])
def test_alternatives_are_the_likeliest_tokens_of_a_forward_pass(translator, inspections, name):
    observation = inspections[name].observation
    written = [prediction.token for prediction in observation.target]
    source = np.array([observation.source])
    visible = np.ones_like(source)
    visible[0, list(inspections[name].intervention.masked)] = 0
    logits, _ = forward_pass(
        translator.params, source, np.array([[BOS_ID, *written[:-1]]]), visible, translator.graphdef
    )
    weights = np.exp(np.asarray(logits, np.float64)[0])
    weights[:, [PAD_ID, BOS_ID, UNK_ID]] = 0
    expected = weights / weights.sum(axis=1, keepdims=True)
    for prediction, row in zip(observation.target, expected, strict=True):
        assert prediction.probability == pytest.approx(row[prediction.token], abs=1e-5)
        tokens = [token for token, _ in prediction.alternatives]
        probabilities = [probability for _, probability in prediction.alternatives]
        assert len(set(tokens)) == NUM_ALTERNATIVES
        assert tokens[0] == row.argmax()
        assert probabilities == sorted(probabilities, reverse=True)
        np.testing.assert_allclose(probabilities, row[tokens], atol=1e-5)
        np.testing.assert_allclose(probabilities, np.sort(row)[::-1][:NUM_ALTERNATIVES], atol=1e-5)


# --- Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "intervention", "message"),
    [
        ("  ", Intervention(), "the line is empty"),
        ("the cat " * 30, Intervention(), "the model sees at most 39 plus the end token; shorten the line"),
        (LINE, Intervention(prefix=(PAD_ID,)), "a prescribed token must be an id from 1 to 59, except"),
        (LINE, Intervention(prefix=(5, BOS_ID)), "a prescribed token must be an id"),
        (LINE, Intervention(prefix=(UNK_ID,)), "a prescribed token must be an id"),  # no translation contains it
        (LINE, Intervention(prefix=(60,)), "a prescribed token must be an id"),
        (LINE, Intervention(prefix=(-1,)), "a prescribed token must be an id"),
        (LINE, Intervention(prefix=(EOS_ID, 5)), "the end of the sentence can only be the last"),
        (LINE, Intervention(prefix=(5,) * 40), "40 tokens are prescribed; the translation has at most 40"),
        (LINE, Intervention(prefix=(5,) * 40 + (EOS_ID,)), "41 tokens are prescribed; the translation has at most 40"),
        (LINE, Intervention(masked=(-1,)), "a masked position must be from 0 to"),
        (LINE, Intervention(masked=(0, 99)), "a masked position must be from 0 to"),
        (LINE, Intervention(masked=tuple(range(20)) * 2), "at least one source token must remain visible"),
        (
            LINE,
            Intervention(heads_off=(Head("encoder", 1, 0),)),
            "no head 0 in layer 1 of encoder attention: it has 1 ",
        ),
        (LINE, Intervention(heads_off=(Head("cross", 2, 0),)), "no head 0 in layer 2 of cross attention: it has 2 "),
        (LINE, Intervention(heads_off=(Head("decoder", 0, 3),)), "no head 3 in layer 0 of decoder attention"),
        (LINE, Intervention(heads_off=(Head("cross", -1, 0),)), "no head 0 in layer -1 of cross attention"),
        (LINE, Intervention(heads_off=(Head("cross", 0, -1),)), "no head -1 in layer 0 of cross attention"),
    ],
)
def test_impossible_inspections_are_refused_in_one_sentence(translator, text, intervention, message):
    if len(intervention.masked) > 2:
        intervention = Intervention(masked=tuple(range(len(source_tokens(translator, text)))))
    with pytest.raises(UserError) as error:
        inspect(translator, text, OPTIONS, intervention)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# --- JSON -----------------------------------------------------------------------------------------------------------


def test_json_has_the_same_numbers(translator, inspections):
    inspection = inspections["all"]
    observation = inspection.observation
    tokenizer = translator.tokenizer
    record = json.loads(json.dumps(inspection.as_json(tokenizer)))
    assert (record["text"], record["translation"]) == (LINE, inspection.hypotheses[0].text)
    pieces = [tokenizer.source.id_to_piece(token) for token in observation.source]
    words = [sum(piece.startswith("▁") for piece in pieces[1 : position + 1]) for position in range(len(pieces))]
    words[-1] += 1  # </s>
    assert record["source"] == [
        {"id": token, "piece": pieces[position], "word": words[position], "masked": position in MASKED}
        for position, token in enumerate(observation.source)
    ]
    for entry, prediction in zip(record["target"], observation.target, strict=True):
        assert (entry["id"], entry["probability"]) == (prediction.token, prediction.probability)
        assert entry["piece"] == tokenizer.target.id_to_piece(prediction.token)
        assert [(each["id"], each["probability"]) for each in entry["alternatives"]] == prediction.alternatives
        assert all(each["piece"] == tokenizer.target.id_to_piece(each["id"]) for each in entry["alternatives"])
    assert record["hypotheses"] == [{"text": each.text, "score": each.score} for each in inspection.hypotheses]
    assert [Head(**head) for head in record["heads_off"]] == list(inspection.intervention.heads_off)
    for name, encoded in record["attention"].items():
        weights = np.frombuffer(base64.b64decode(encoded["weights"]), "<u2").reshape(encoded["shape"]) / 65535
        np.testing.assert_allclose(weights, getattr(observation, name), rtol=0, atol=1 / 65535)
    assert record["attention"].keys() == {"encoder", "decoder", "cross"}
    assert [[tuple(candidate.values()) for candidate in step] for step in record["beam"]] == [
        [(each.parent, each.token, tokenizer.target.id_to_piece(each.token), each.score, each.outcome) for each in step]
        for step in inspection.beam.steps
    ]
    assert inspect(translator, LINE, OPTIONS).as_json(tokenizer)["beam"] is None
