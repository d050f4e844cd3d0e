"""The translator on a small random network: against an uncached loop, and indifferent to batches and padding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from data.batch import pad_rows
from data.tokenizer import parse_tokenizers, train_tokenizer
from devices.compilation import set_up_compilation
from host.errors import UserError
from model.transformer import initial_params, structure
from options.schema import DecodingOptions, ModelConfig, TokenizerConfig
from options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.test_data import PAIRS
from translation import decoding
from translation.search import Hypotheses
from translation.translator import Translator

GREEDY = DecodingOptions(beam_size=1)
LINES = ["the cat eats fish .", "a dog sleeps", "where is it?", "", "the old village sleeps near the water", "milk"]


@pytest.fixture(scope="module")
def translator():
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    config = ModelConfig(
        num_encoder_layers=2, num_decoder_layers=2, embed_dim=32, num_heads=2, mlp_dim=48, max_length=40,
        tied_embeddings="none",
    )  # fmt: skip
    graphdef = structure(config, 60, 60).graphdef
    params = initial_params(config, 60, 60, jax.random.key(4))
    params["output_embedding"] *= 4.0  # far apart logits: no ties to be broken by rounding
    return Translator(graphdef, params, tokenizer, config)


def uncached_greedy(translator, line):
    """The likeliest token after each prefix, by whole passes of the network."""
    source = translator.tokenizer.encode_source([line])
    tokens, limit = [BOS_ID], min(40, 2 * len(source[0]) + 10)
    while tokens[-1] != EOS_ID:
        logits = whole_pass(translator.params, pad_rows(source, 1, 40), pad_rows([tokens], 1, 40), translator.graphdef)
        last = np.array(logits[0, len(tokens) - 1])
        last[[PAD_ID, BOS_ID, UNK_ID]] = -np.inf
        tokens.append(EOS_ID if len(tokens) == limit else int(last.argmax()))
    return translator.tokenizer.decode_target([tokens[1:]])[0]


@functools.partial(jax.jit, static_argnames="graphdef")
def whole_pass(params, source, target_in, graphdef):
    return nnx.merge(graphdef, params)(source, target_in)[0]


def test_cached_greedy_equals_uncached(translator):
    found = [translation.text for translation in translator.translate(LINES, GREEDY)]
    assert found == [uncached_greedy(translator, line) if line else "" for line in LINES]
    assert len(set(found)) > 3


@pytest.mark.parametrize("options", [DecodingOptions(beam_size=3), DecodingOptions(temperature=1.0, batch_size=2)])
def test_nothing_is_compiled_after_a_warm_up(translator, options):
    """Lines of all lengths, of which one is translated in parts."""
    compilations = set_up_compilation()
    lines = [*LINES, " ".join(LINES)]
    translator.warm_up(lines, options)
    compiled = compilations.programs
    assert compiled
    translator.translate(lines, options)
    assert compilations.programs == compiled


@pytest.mark.parametrize("beams", [1, 4])
def test_translations_do_not_depend_on_batches(translator, beams):
    options = DecodingOptions(beam_size=beams, batch_size=2)
    together = translator.translate(LINES, DecodingOptions(beam_size=beams), num_hypotheses=beams)
    for other in (translator.translate(LINES, options, num_hypotheses=beams),
                  [translator.translate([line], options, num_hypotheses=beams)[0] for line in LINES]):  # fmt: skip
        for a, b in zip(together, other, strict=True):
            assert [hypothesis.text for hypothesis in a.hypotheses] == [hypothesis.text for hypothesis in b.hypotheses]
            scores = [[hypothesis.score for hypothesis in translation.hypotheses] for translation in (a, b)]
            np.testing.assert_allclose(*scores, rtol=1e-4)


def test_scores_are_the_networks_own(translator):
    """The score of a hypothesis, from a whole pass over it."""
    options = DecodingOptions(beam_size=3, length_penalty=1.0)
    model = nnx.merge(translator.graphdef, translator.params)
    source = jnp.array(translator.tokenizer.encode_source([LINES[0]]))
    hypotheses = translator.decode_ids(np.pad(np.asarray(source), ((0, 0), (0, 0))), options)
    for tokens, score in zip(np.asarray(hypotheses.tokens[0]), np.asarray(hypotheses.scores[0]), strict=True):
        length = int(np.argmax(tokens == EOS_ID)) + 1
        logits, _ = model(source, jnp.array([[BOS_ID, *tokens[: length - 1]]]))
        possible = logits[0].at[:, jnp.array([PAD_ID, BOS_ID, UNK_ID])].set(-jnp.inf)
        log_probabilities = jax.nn.log_softmax(possible)[jnp.arange(length), tokens[:length]]
        np.testing.assert_allclose(score, log_probabilities.sum() / ((5 + length) / 6), rtol=1e-4)


def test_hypotheses_come_best_first_and_differ(translator):
    for translation in translator.translate(LINES[:3], DecodingOptions(beam_size=4), num_hypotheses=4):
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert translation.text == translation.hypotheses[0].text


def test_the_decoding_length_is_kept(translator):
    short = translator.decode_ids(np.array([[5, 6, 1]]), DecodingOptions(beam_size=2, max_decoding_length=3))
    assert short.tokens.shape == (1, 1, 3)
    assert (np.asarray(short.tokens) == EOS_ID).any(axis=-1).all()


@pytest.mark.parametrize(
    ("lines", "batch_size", "rows"), [(1, 64, 1), (3, 64, 4), (10, 64, 16), (17, 64, 64), (3, 2, 2), (5, 8, 8)]
)
def test_few_lines_make_a_small_batch(translator, monkeypatch, lines, batch_size, rows):
    def search(networks, request, options, longest, num_hypotheses, keep_full_batches):
        assert len(request.source) == rows
        return Hypotheses(np.full((rows, num_hypotheses, 2), EOS_ID), np.zeros((rows, num_hypotheses)))

    monkeypatch.setattr(decoding, "decode_batch", search)
    found = translator.translate(["a dog sleeps"] * lines, batch_size=batch_size)
    assert [translation.text for translation in found] == [""] * lines


def test_keywords_are_decoding_options(translator):
    expected = translator.translate(LINES[:2], DecodingOptions(beam_size=3, length_penalty=1.0))
    assert translator.translate(LINES[:2], beam_size=3, length_penalty=1.0) == expected
    with pytest.raises(UserError, match="unknown option beam_sizes; did you mean beam_size"):
        translator.translate(LINES, beam_sizes=3)
    with pytest.raises(UserError, match="beam_size: input should be greater than or equal to 1, got 0"):
        translator.translate(LINES, beam_size=0)
    with pytest.raises(UserError, match="seed 3 has no effect without a temperature"):
        translator.translate(LINES, seed=3)
    with pytest.raises(UserError, match="min_decoding_length 9 exceeds max_decoding_length 8"):
        translator.translate(LINES, min_decoding_length=9, max_decoding_length=8)
    with pytest.raises(TypeError, match="a list of lines"):
        translator.translate("milk")


@pytest.mark.slow
def test_what_is_drawn_does_not_depend_on_batches_but_on_line_and_seed(translator):
    options = {"temperature": 1.0, "num_hypotheses": 3}
    together = translator.translate(LINES, **options)
    apart = [translator.translate([line], first_line=n, **options)[0] for n, line in enumerate(LINES, 1)]
    for other in (translator.translate(LINES, batch_size=2, **options), apart):
        assert [found.text for found in other] == [found.text for found in together]
    again = translator.translate(["milk"] * 4, temperature=1.0)
    assert len({found.text for found in again}) == 4  # each line draws for itself
    assert [found.text for found in translator.translate(["milk"] * 4, temperature=1.0, seed=1)] != [
        found.text for found in again
    ]
    # ever less random: the likeliest token each time
    greedy = [found.text for found in translator.translate(LINES, GREEDY)]
    assert [found.text for found in translator.translate(LINES, temperature=1e-6)] == greedy
    assert [found.text for found in translator.translate(LINES, temperature=9.0, top_k=1)] == greedy
    assert [found.text for found in translator.translate(LINES, temperature=9.0, top_p=1e-9)] == greedy


@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 3}, {"temperature": 1.0}])
def test_translations_begin_with_their_prefix(translator, options):
    prefixes = ["le chat", "", "où est", "", "la", "x"]
    alone = translator.translate(LINES, **options)
    found = translator.translate(LINES, prefixes=prefixes, **options)
    for line, prefix, free, forced in zip(LINES, prefixes, alone, found, strict=True):
        assert forced.text.startswith(prefix) or not line
        assert prefix or forced.text == free.text
    with pytest.raises(UserError, match="6 lines, but 1 prefixes"):
        translator.translate(LINES, prefixes=["le"])
    with pytest.raises(UserError, match='prefix "☃": the model has no token for one of its characters'):
        translator.translate(["milk"], prefixes=["☃"])
    with pytest.raises(UserError, match=r"line 7: its prefix has .* tokens, but the translation is limited to 4, end"):
        translator.translate(["milk"], prefixes=["le chat est ici"], first_line=7, max_decoding_length=4)


def test_lengths_are_between_the_bounds(translator, caplog):
    for options in ({"beam_size": 1}, {"beam_size": 3}, {"temperature": 1.0}):
        found = translator.translate(LINES, min_decoding_length=7, max_decoding_length=9, **options)
        assert all(7 <= len(each.hypotheses[0].tokens) <= 9 for each, line in zip(found, LINES, strict=True) if line)
    caplog.clear()
    found = translator.translate(LINES, GREEDY, max_decoding_length=3, first_line=11)
    cut_short = [11 + i for i, each in enumerate(found) if len(each.hypotheses[0].tokens) == 3]
    assert len(cut_short) == 5
    assert f"may be cut short: line {', '.join(map(str, cut_short))}\n" in caplog.text
    caplog.clear()
    translator.translate(LINES, GREEDY, max_decoding_length=3, first_line=None)
    assert not caplog.text


def test_a_line_that_is_too_long_is_translated_in_parts(translator, caplog):
    """Each part's translation is that of the part alone; of several hypotheses the best go together."""
    sentences = ["the old cat sleeps near.", "where is it?", "a dog eats the fish."]
    line = " ".join(sentences)
    options = DecodingOptions(beam_size=3)
    assert len(translator.tokenizer.encode_source([line])[0]) > 40
    found = translator.translate(["milk", line], options, num_hypotheses=2, prefixes=["", "la"])[1]
    assert "line 2 has" in caplog.text
    assert "in 3 parts" in caplog.text
    alone = translator.translate(sentences, options, num_hypotheses=2, prefixes=["la", "", ""])
    for rank in range(2):
        hypotheses = [each.hypotheses[rank] for each in alone]
        assert found.hypotheses[rank].text == " ".join(each.text for each in hypotheses)
        assert found.hypotheses[rank].score == pytest.approx(sum(each.score for each in hypotheses), rel=1e-4)
        assert translator.tokenizer.decode_target([found.hypotheses[rank].tokens]) == [found.hypotheses[rank].text]
    assert found.source == line


def test_an_ensemble_averages_probabilities(translator):
    """Greedy search by whole passes of both networks; its score; and two times the same network is that network."""
    params = initial_params(translator.config, 60, 60, jax.random.key(9))
    params["output_embedding"] *= 4.0
    second = dataclasses.replace(translator, params=params)
    ensemble = dataclasses.replace(translator, others=(second,))
    (found,) = ensemble.translate(LINES[:1], GREEDY, length_penalty=0.0)
    (source,) = translator.tokenizer.encode_source(LINES[:1])
    tokens, score, limit = [BOS_ID], 0.0, min(40, 2 * len(source) + 10)
    while tokens[-1] != EOS_ID:
        probabilities = []
        for each in (translator, second):
            logits = whole_pass(each.params, pad_rows([source], 1, 40), pad_rows([tokens], 1, 40), each.graphdef)
            weights = np.exp(np.array(logits[0, len(tokens) - 1], np.float64))
            probabilities.append(weights / weights.sum())
        mean = np.mean(probabilities, axis=0)
        mean[[PAD_ID, BOS_ID, UNK_ID]] = 0
        tokens.append(EOS_ID if len(tokens) == limit else int(mean.argmax()))
        score += np.log(mean[tokens[-1]] / mean.sum())
    assert found.hypotheses[0].tokens == tuple(tokens[1:])
    assert found.hypotheses[0].score == pytest.approx(score, rel=1e-4)
    assert found.text != translator.translate(LINES[:1], GREEDY)[0].text
    twice = dataclasses.replace(translator, others=(translator,)).translate(LINES, beam_size=3)
    assert [each.text for each in twice] == [each.text for each in translator.translate(LINES, beam_size=3)]


def test_scores_of_given_translations(translator):
    """Against whole passes, a sentence at a time; an ensemble's is that of the mean probability."""
    sources, targets = LINES[:3], ["le chat", "", "où est ce chat ?"]
    second = dataclasses.replace(translator, params=initial_params(translator.config, 60, 60, jax.random.key(9)))
    both = dataclasses.replace(translator, others=(second,))
    found = [each.score(sources, targets, batch_size=2) for each in (translator, second, both)]
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        source_ids, target_ids = (
            encode([text])[0]
            for encode, text in (
                (translator.tokenizer.encode_source, source),
                (translator.tokenizer.encode_target, target),
            )
        )
        rows = []
        for each in (translator, second):
            source_row, target_row = pad_rows([source_ids], 1, 40), pad_rows([[BOS_ID, *target_ids[:-1]]], 1, 40)
            logits = whole_pass(each.params, source_row, target_row, each.graphdef)
            rows.append(np.asarray(jax.nn.log_softmax(logits[0]))[np.arange(len(target_ids)), target_ids])
        expected = [rows[0].sum(), rows[1].sum(), np.log(np.exp(rows).mean(axis=0)).sum()]
        np.testing.assert_allclose([each[i].log_probability for each in found], expected, rtol=1e-4)
        assert [each[i].tokens for each in found] == [len(target_ids)] * 3
    with pytest.raises(UserError, match=r"line 2 has .* tokens; the model can score at most 40"):
        translator.score(["milk", "milk"], ["lait", "le chat " * 30])
    with pytest.raises(UserError, match="1 sources, but 2 translations"):
        translator.score(["milk"], ["lait", "lait"])


def test_what_the_model_cannot_do_is_refused(translator):
    with pytest.raises(UserError, match="min_decoding_length 41 exceeds the model's max_length 40"):
        translator.translate(["milk"], min_decoding_length=41)
    with pytest.raises(UserError, match="num_hypotheses must be at least 1"):
        translator.translate(["milk"], num_hypotheses=0)
    with pytest.raises(UserError, match="num_hypotheses 3 exceeds beam_size 1"):
        translator.translate(["milk"], GREEDY, num_hypotheses=3)
    with pytest.raises(UserError, match="max_decoding_length 41 exceeds the model's max_length 40"):
        translator.translate(["milk"], DecodingOptions(max_decoding_length=41))
