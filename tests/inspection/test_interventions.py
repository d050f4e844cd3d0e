"""What is changed before a sentence is translated; tests/export/test_html.py compares all numbers of inspections."""

import numpy as np
import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.inspection.explanation import Place
from lingua_flax.inspection.interventions import Head, Intervention, inspect
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.helpers.networks import LINE
from tests.helpers.translation import translator

__all__ = ["translator"]  # a fixture

BEAMS = 4
GREEDY, OPTIONS = DecodingOptions(beam_size=1), DecodingOptions(beam_size=BEAMS)
PREFIX = (7, 30, 9)
MASKED = (1, 4)
HEADS = (Head("encoder", 0, 1), Head("decoder", 1, 0), Head("cross", 1, 2))
INTERVENTIONS = {
    "none": Intervention(),
    "heads": Intervention(heads_off=HEADS),
    "masked": Intervention(masked=MASKED, heads_off=HEADS),
    "all": Intervention(PREFIX, MASKED, HEADS),
}


@pytest.fixture(scope="module")
def inspections(translator):
    """An inspection with each intervention, and the beam."""
    return {name: inspect(translator, LINE, OPTIONS, each, record_beam=True) for name, each in INTERVENTIONS.items()}


def test_recorded_beam_ends_with_the_hypotheses(translator, inspections):
    for inspection in inspections.values():
        assert len(inspection.hypotheses) == BEAMS
        plain = inspect(translator, LINE, OPTIONS, inspection.intervention)
        assert [own.tokens for own in inspection.hypotheses] == [own.tokens for own in plain.hypotheses]
        finished = sorted((c.score for step in inspection.beam for c in step if c.outcome == "finished"), reverse=True)
        np.testing.assert_allclose(finished[:BEAMS], [own.score for own in plain.hypotheses], atol=1e-4)
    assert len({each.hypotheses for each in inspections.values()}) == len(inspections)  # each changes something
    greedy = inspect(translator, LINE, GREEDY, record_beam=True)
    chosen = [next(c for c in step if c.outcome != "dropped") for step in greedy.beam]
    assert tuple(candidate.token for candidate in chosen) == greedy.hypotheses[0].tokens


def test_prefix_begins_every_hypothesis(translator, inspections):
    inspection = inspections["all"]
    assert all(hypothesis.tokens[: len(PREFIX)] == PREFIX for hypothesis in inspection.hypotheses)
    begun = inspection.beam[: len(PREFIX)]
    assert [[candidate.token for candidate in step] for step in begun] == [[token] for token in PREFIX]
    for prefix in ((*PREFIX, EOS_ID), (7,) * 39):  # whole translations, the longest of 40 tokens
        inspection = inspect(translator, LINE, OPTIONS, Intervention(prefix=prefix), record_beam=True)
        tokens = inspection.hypotheses[0].tokens
        assert tokens == (*prefix, *[EOS_ID] * (prefix[-1] != EOS_ID))
        assert [own.tokens for own in inspection.hypotheses] == [tokens]
        assert len(inspection.observation.target) == len(tokens) == len(inspection.beam)


def test_masked_tokens_get_no_weight(translator, inspections):
    observation = inspections["all"].observation
    assert (observation.cross[..., MASKED] == 0).all()
    assert (observation.encoder[..., MASKED] == 0).all()
    assert (observation.encoder[:, :, MASKED] == 0).all()
    np.testing.assert_allclose(observation.cross.sum(axis=-1), 1.0, atol=1e-5)
    assert (inspections["none"].observation.cross[..., MASKED] > 0).all()


def test_impossible_inspections_are_refused(translator, inspections):
    everything = tuple(range(len(inspections["none"].observation.source)))
    for intervention, message in (
        *[(Intervention(prefix=(5, token)), "an id from 1 to 59") for token in (-1, PAD_ID, BOS_ID, UNK_ID, 60)],
        (Intervention(prefix=(EOS_ID, 5)), "the end of the sentence can only be the last"),
        (Intervention(prefix=(5,) * 40), "40 tokens are prescribed; the translation has at most 40"),
        *[(Intervention(masked=(0, place)), "a masked position must be from 0 to") for place in (-1, 99)],
        (Intervention(masked=everything), "at least one source token must remain visible"),
        (Intervention(heads_off=(Head("encoder", 1, 0),)), "in layer 1 of encoder attention: it has 1 "),
        (Intervention(heads_off=(Head("decoder", 0, 3),)), "no head 3 in"),
    ):
        with pytest.raises(UserError, match=message):
            inspect(translator, LINE, OPTIONS, intervention)
    for place in (Place("cross", 2, 0, 0), Place("decoder", 0, 0, 99), Place("encoder", 0, 0, -1)):
        with pytest.raises(UserError, match=r"no head 0 in layer 2|a query must be from 0 to"):
            inspect(translator, LINE, OPTIONS, explained=place)
    with pytest.raises(UserError, match="the line is empty"):
        inspect(translator, "  ", OPTIONS)
    with pytest.raises(UserError, match="the model sees at most 39 plus the end token"):
        inspect(translator, "the cat " * 30, OPTIONS)
