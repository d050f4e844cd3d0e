"""The translator with a small random network: equal to uncached decoding, independent of batches and padding."""

import dataclasses
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from lingua_flax.devices import compilation
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation import batched_search
from lingua_flax.translation.hypotheses import Hypothesis
from tests.helpers.translation import decisive_translator, log_probabilities, logits_after

GREEDY = DecodingOptions(beam_size=1)
BEAM = DecodingOptions(beam_size=3)
LINES = ["the cat eats fish .", "a dog sleeps", "where is it?", "", "the old village sleeps near the water", "milk"]
LINES += ["he drinks coffee", "seven geese", "a bridge"]
TWO_LENGTHS = [*LINES, *["milk"] * 3]  # four short lines, whose batch of four is padded less than the other two
FEW = 4  # lines in a batch that is never continued as a smaller one, which compiles in a third of the time


@pytest.fixture(scope="module")
def translator():
    return decisive_translator()


@pytest.fixture(scope="module")
def ensemble(translator):
    """The translator with a second network, which has other parameters and takes fewer tokens."""
    return dataclasses.replace(translator, others=(decisive_translator(seed=9, max_length=36),))


@pytest.fixture(scope="module")
def beam_translations(translator):
    """The translations of LINES in one batch, with all hypotheses of a beam search."""
    return translator.translate(LINES, BEAM, num_hypotheses=3)


def uncached_greedy(translators, line):
    """Returns the tokens that are likeliest on average, one after another, and their log-probability."""
    (source,) = translators[0].tokenizer.encode_source([line])
    limit = min(2 * len(source) + 10, *(each.config.max_length for each in translators))
    tokens, log_probability = [BOS_ID], 0.0
    while tokens[-1] != EOS_ID:
        probabilities = np.exp([logits_after(each, source, tokens)[-1] for each in translators])
        mean = (probabilities / probabilities.sum(axis=-1, keepdims=True)).mean(axis=0)
        mean[[PAD_ID, BOS_ID, UNK_ID]] = 0
        tokens.append(EOS_ID if len(tokens) == limit else int(mean.argmax()))
        log_probability += np.log(mean[tokens[-1]] / mean.sum())
    return tuple(tokens[1:]), log_probability


def texts(translations):
    return [[hypothesis.text for hypothesis in translation.hypotheses] for translation in translations]


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (TWO_LENGTHS, DecodingOptions(beam_size=3, batch_size=FEW)),
        ([*LINES, "where is it? " * 4], DecodingOptions(temperature=1.0, batch_size=FEW)),  # the last in parts
    ],
)
def test_nothing_is_compiled_after_warm_up(translator, lines, options):
    compilation._programs.clear()  # as in a new process
    compilations = compilation.set_up_compilation()
    translator.warm_up(lines, options)
    compiled = compilations.programs
    assert compiled
    translator.translate(lines, options)
    assert compilations.programs == compiled


def test_cached_greedy_matches_uncached_greedy(translator):
    translations = translator.translate(LINES, GREEDY, batch_size=FEW)
    for line, translation in zip(LINES, translations, strict=True):
        assert not line or translation.hypotheses[0].tokens == uncached_greedy([translator], line)[0]
    assert len({translation.text for translation in translations}) > 3


def test_translations_do_not_depend_on_batches_and_padding(translator, beam_translations):
    small = translator.translate(TWO_LENGTHS, BEAM, num_hypotheses=3, batch_size=FEW)[: len(LINES)]
    assert texts(small) == texts(beam_translations)
    for one, other in zip(beam_translations, small, strict=True):
        scores = [[hypothesis.score for hypothesis in each.hypotheses] for each in (one, other)]
        np.testing.assert_allclose(*scores, rtol=1e-4)


def test_hypotheses_are_distinct_and_their_scores_match_a_forward_pass(translator, beam_translations):
    for translation in filter(lambda translation: translation.source, beam_translations):
        (source,) = translator.tokenizer.encode_source([translation.source])
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.tokens for hypothesis in translation.hypotheses}) == 3
        for hypothesis in translation.hypotheses:
            logs = log_probabilities(translator, source, hypothesis.tokens)
            possible = np.delete(np.exp(logs), [PAD_ID, BOS_ID, UNK_ID], axis=-1).sum(axis=-1)
            length = len(hypothesis.tokens)
            expected = (logs[np.arange(length), hypothesis.tokens] - np.log(possible)).sum()
            expected /= ((5 + length) / 6) ** BEAM.length_penalty
            assert hypothesis.score == pytest.approx(expected, rel=1e-4)


def test_few_lines_make_a_small_batch(translator, monkeypatch):
    used = []

    def begun(network, options, parts, rows, length, **how):
        used.append(rows)
        return Mock(finish=lambda: [(Hypothesis("", 0.0),)] * len(parts))

    monkeypatch.setattr(batched_search, "RunningBatch", begun)
    for count, batch_size in [(1, 64), (3, 64), (17, 64), (3, 2), (5, 8)]:
        translator.translate(["a dog sleeps"] * count, batch_size=batch_size)
    assert used == [1, 4, 64, 2, 2, 8]


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (LINES, {"beam_sizes": 3}, "unknown option beam_sizes; did you mean beam_size"),
        (LINES, {"min_decoding_length": 41}, "min_decoding_length 41 exceeds the model's max_length 40"),
        (LINES, {"num_hypotheses": 3, "beam_size": 1}, "num_hypotheses 3 exceeds beam_size 1"),
        (LINES, {"prefixes": ["le"]}, "9 lines, but 1 prefixes"),
        (
            ["milk"],
            {"prefixes": ["le chat est ici"], "first_line": 7, "max_decoding_length": 4},
            r"line 7: its prefix has .* tokens, but the translation is limited to 4, end token included",
        ),
    ],
)
def test_requests_that_are_impossible_are_refused(translator, lines, options, message):
    with pytest.raises(UserError, match=message):
        translator.translate(lines, **options)


def test_what_cannot_be_scored_is_refused(translator, ensemble):
    with pytest.raises(UserError, match=r"line 2 has .* tokens; the model can score at most 36"):
        ensemble.score(["milk", "milk"], ["lait", "le chat " * 30])
    with pytest.raises(UserError, match="1 sources, but 2 translations"):
        translator.score(["milk"], ["lait", "lait"])


def test_samples_depend_only_on_line_and_seed(translator):
    options = {"temperature": 1.0, "num_hypotheses": 2, "batch_size": FEW}
    together = translator.translate(LINES[:FEW], **options)
    assert texts(translator.translate(LINES[1:FEW], first_line=2, **options)) == texts(together)[1:]
    equal_lines = texts(translator.translate(["milk"] * FEW, **options))
    assert len({text for own in equal_lines for text in own}) == 2 * FEW  # each sample has its own random numbers
    assert texts(translator.translate(["milk"] * FEW, seed=1, **options)) != equal_lines


@pytest.mark.parametrize("options", [GREEDY, BEAM])
def test_network_that_has_diverged_is_reported(translator, options):
    params = jax.tree.map(lambda array: np.full_like(array, np.nan), translator.params)
    with pytest.raises(RunError, match="the outputs of the network are not finite"):
        dataclasses.replace(translator, params=params).translate(LINES[:FEW], options)


def test_ensemble_averages_probabilities(translator, ensemble):
    """Tokens and score match an uncached greedy search over the mean."""
    (translation,) = ensemble.translate(LINES[:1], GREEDY)
    (hypothesis,) = translation.hypotheses
    tokens, log_probability = uncached_greedy([translator, *ensemble.others], LINES[0])
    assert hypothesis.tokens == tokens != uncached_greedy([translator], LINES[0])[0]
    penalty = ((5 + len(tokens)) / 6) ** GREEDY.length_penalty
    assert hypothesis.score == pytest.approx(log_probability / penalty, rel=1e-4)


def test_given_translations_are_scored_as_by_forward_passes(translator, ensemble):
    """An ensemble's score is that of the mean probability."""
    sources, targets = LINES[:3], ["le chat", "", "où est ce chat ?"]
    scored = [each.score(sources, targets, batch_size=2) for each in (translator, ensemble)]
    source_ids = translator.tokenizer.encode_source(sources)
    target_ids = translator.tokenizer.encode_target(targets)
    for i, (source, target) in enumerate(zip(source_ids, target_ids, strict=True)):
        positions = np.arange(len(target))
        odds = [np.exp(log_probabilities(each, source, target)) for each in (translator, *ensemble.others)]
        for scores, mean in zip(scored, (odds[0].copy(), sum(odds) / 2), strict=True):
            mean[:, [PAD_ID, BOS_ID]] = 0
            mean[np.array(target) != UNK_ID, UNK_ID] = 0
            expected = np.log(mean[positions, target] / mean.sum(axis=-1)).sum()
            assert scores[i].log_probability == pytest.approx(expected, rel=1e-4)
            assert scores[i].tokens == len(target)
