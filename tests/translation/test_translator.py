"""The translator with a small random network: equal to uncached decoding, independent of batches and padding."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from lingua_flax.devices import compilation
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation import decoding
from lingua_flax.translation.search import Hypotheses
from tests.helpers.translation import MAX_LENGTH, log_probabilities, logits_after, random_params, random_translator

GREEDY = DecodingOptions(beam_size=1)
BEAM = DecodingOptions(beam_size=3)
LINES = ["the cat eats fish .", "a dog sleeps", "where is it?", "", "the old village sleeps near the water", "milk"]
LINES += ["he drinks coffee", "seven geese", "a bridge"]
TWO_LENGTHS = [*LINES, *["milk"] * 3]  # four short lines, whose batch of four is padded less than the other two
FEW = 4  # lines in a batch that is never continued as a smaller one, which compiles in a third of the time


@pytest.fixture(scope="module")
def translator():
    return random_translator()


@pytest.fixture(scope="module")
def second(translator):
    """The same translator with other parameters."""
    return dataclasses.replace(translator, params=random_params(translator.config, seed=9))


@pytest.fixture(scope="module")
def beam_translations(translator):
    """The translations of LINES in one batch, with all hypotheses of a beam search."""
    return translator.translate(LINES, BEAM, num_hypotheses=3)


def uncached_greedy(translators, line):
    """Returns the tokens that are likeliest on average, one after another, and their log-probability."""
    (source,) = translators[0].tokenizer.encode_source([line])
    tokens, log_probability, limit = [BOS_ID], 0.0, min(MAX_LENGTH, 2 * len(source) + 10)
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


def test_keywords_are_decoding_options_and_few_lines_make_a_small_batch(translator, monkeypatch):
    used = []

    def search(networks, request, how):
        rows = len(request.source)
        used.append((rows, how.program.width, float(how.alpha)))
        return Hypotheses(np.full((rows, 1, 2), EOS_ID), np.zeros((rows, 1)))

    monkeypatch.setattr(decoding, "decode_batch", search)
    for count, batch_size, rows in [(1, 64, 1), (3, 64, 4), (17, 64, 64), (3, 2, 2), (5, 8, 8)]:
        lines = ["a dog sleeps"] * count
        translator.translate(lines, DecodingOptions(beam_size=3, length_penalty=1.0, batch_size=batch_size))
        translator.translate(
            lines, DecodingOptions(beam_size=2, length_penalty=1.0), beam_size=3, batch_size=batch_size
        )
        assert set(used) == {(rows, 3, 1.0)}
        used.clear()


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (LINES, {"beam_sizes": 3}, "unknown option beam_sizes; did you mean beam_size"),
        (LINES, {"seed": 3}, "seed 3 has no effect without a temperature"),
        (LINES, {"min_decoding_length": 41}, "min_decoding_length 41 exceeds the model's max_length 40"),
        (LINES, {"num_hypotheses": 0}, "num_hypotheses must be at least 1"),
        (LINES, {"num_hypotheses": 3, "beam_size": 1}, "num_hypotheses 3 exceeds beam_size 1"),
        (LINES, {"prefixes": ["le"]}, "9 lines, but 1 prefixes"),
        (["milk"], {"prefixes": ["☃"]}, 'prefix "☃": the model has no token for one of its characters'),
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


def test_samples_depend_only_on_line_and_seed(translator):
    options = {"temperature": 1.0, "num_hypotheses": 2, "batch_size": FEW}
    together = translator.translate(LINES[:FEW], **options)
    assert texts(translator.translate(LINES[1:FEW], first_line=2, **options)) == texts(together)[1:]
    equal_lines = texts(translator.translate(["milk"] * FEW, **options))
    assert len({text for own in equal_lines for text in own}) == 2 * FEW  # each sample has its own random numbers
    assert texts(translator.translate(["milk"] * FEW, seed=1, **options)) != equal_lines


def test_translations_begin_with_their_prefixes(translator, beam_translations):
    prefixes = ["le chat", "", "où est", "", "la", "x", "", "un", ""]
    translations = translator.translate(LINES, BEAM, prefixes=prefixes, batch_size=FEW)
    for line, prefix, free, forced in zip(LINES, prefixes, beam_translations, translations, strict=True):
        assert forced.text.startswith(prefix) or not line
        assert prefix or forced.text == free.text


def test_lengths_are_within_the_bounds_and_translations_cut_short_are_reported(translator, beam_translations, caplog):
    bounds = {"min_decoding_length": 7, "max_decoding_length": 9, "batch_size": FEW}
    translations = translator.translate(LINES, BEAM, first_line=11, **bounds)
    lengths = [len(translation.hypotheses[0].tokens) for translation in translations]
    for line, free, length in zip(LINES, beam_translations, lengths, strict=True):
        assert not line or 7 <= length <= 9 < len(free.hypotheses[0].tokens)
    assert lengths[:4] == [9, 9, 9, 0]
    assert "may be cut short: line 11, 12, 13, " in caplog.text
    caplog.clear()
    translator.translate(LINES, BEAM, warn=False, **bounds)
    assert not caplog.text


def test_a_line_that_is_too_long_is_translated_in_parts(translator, caplog):
    """Each sentence is translated as if alone, and hypotheses of equal rank are joined."""
    sentences = ["the old cat sleeps near.", "where is it?", "a dog eats the fish."]
    line = " ".join(sentences)
    assert len(translator.tokenizer.encode_source([line])[0]) > MAX_LENGTH
    options = {"num_hypotheses": 2, "prefixes": ["", "la"]}
    joined = translator.translate(["milk", line], BEAM, **options)[1]
    assert "at a time" not in caplog.text
    assert translator.translate(["milk", line], BEAM, one_sentence_per_line=True, **options)[1] == joined
    translator.translate(["milk", "cat " * 50])
    assert re.search(r"line 2 has a sentence of more than 39 tokens, .*: cut into \d+ parts", caplog.text)
    alone = translator.translate(sentences, BEAM, num_hypotheses=2, prefixes=["la", "", ""])
    for rank, hypothesis in enumerate(joined.hypotheses):
        parts = [translation.hypotheses[rank] for translation in alone]
        assert hypothesis.text == " ".join(part.text for part in parts)
        assert hypothesis.score == pytest.approx(sum(part.score for part in parts), rel=1e-4)
        tokens = [token for part in parts for token in part.tokens if token != EOS_ID]
        assert hypothesis.tokens == (*tokens, EOS_ID)
    assert joined.source == line


@pytest.mark.parametrize("options", [GREEDY, BEAM])
def test_network_that_has_diverged_is_reported(translator, options):
    params = jax.tree.map(lambda array: np.full_like(array, np.nan), translator.params)
    with pytest.raises(RunError, match="the outputs of the network are not finite"):
        dataclasses.replace(translator, params=params).translate(LINES[:FEW], options)


def test_ensemble_averages_probabilities(translator, second):
    """Tokens and score match an uncached greedy search over the mean."""
    (translation,) = dataclasses.replace(translator, others=(second,)).translate(LINES[:1], GREEDY)
    (hypothesis,) = translation.hypotheses
    tokens, log_probability = uncached_greedy([translator, second], LINES[0])
    assert hypothesis.tokens == tokens != uncached_greedy([translator], LINES[0])[0]
    penalty = ((5 + len(tokens)) / 6) ** GREEDY.length_penalty
    assert hypothesis.score == pytest.approx(log_probability / penalty, rel=1e-4)


def test_given_translations_are_scored_as_by_forward_passes(translator, second):
    """An ensemble's score is that of the mean probability."""
    sources, targets = LINES[:3], ["le chat", "", "où est ce chat ?"]
    both = dataclasses.replace(translator, others=(second,))
    scored = [each.score(sources, targets, batch_size=2) for each in (translator, second, both)]
    source_ids = translator.tokenizer.encode_source(sources)
    target_ids = translator.tokenizer.encode_target(targets)
    for i, (source, target) in enumerate(zip(source_ids, target_ids, strict=True)):
        positions = np.arange(len(target))
        odds = [np.exp(log_probabilities(each, source, target)) for each in (translator, second)]
        for network, mean in enumerate((odds[0], odds[1], (odds[0] + odds[1]) / 2)):
            mean[:, [PAD_ID, BOS_ID]] = 0
            mean[np.array(target) != UNK_ID, UNK_ID] = 0
            expected = np.log(mean[positions, target] / mean.sum(axis=-1)).sum()
            assert scored[network][i].log_probability == pytest.approx(expected, rel=1e-4)
            assert scored[network][i].tokens == len(target)


def test_hypotheses_and_given_translations_are_scored_alike(translator, second):
    """By an ensemble, where prefix and limit leave only one hypothesis, without a length penalty."""
    ensemble = dataclasses.replace(translator, others=(second,))
    (tokens,) = ensemble.tokenizer.encode_target(["le chat"])
    (scored,) = ensemble.score(LINES[:1], ["le chat"])
    limits = {"length_penalty": 0.0, "max_decoding_length": len(tokens)}
    (translation,) = ensemble.translate(LINES[:1], BEAM, prefixes=["le chat"], **limits)
    assert translation.hypotheses[0].tokens == tuple(tokens)
    assert translation.hypotheses[0].score == pytest.approx(scored.log_probability, rel=1e-4)


def test_arguments_that_are_no_pairs_or_no_lines_are_refused(translator):
    with pytest.raises(UserError, match=r"line 2 has .* tokens; the model can score at most 40"):
        translator.score(["milk", "milk"], ["lait", "le chat " * 30])
    with pytest.raises(UserError, match="1 sources, but 2 translations"):
        translator.score(["milk"], ["lait", "lait"])
    with pytest.raises(TypeError, match="a list of lines"):
        translator.translate("milk")
