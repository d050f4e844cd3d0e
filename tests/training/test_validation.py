"""Validation: the loss with the sources of other sentences, and the warning if it is as low as the true loss."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import sacrebleu

from lingua_flax.options.schema import Config
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.recorder import Recorder
from lingua_flax.training.validation import Validation, ValidationSet, shuffled_sources, validate
from lingua_flax.translation.translator import Translator
from tests.helpers.pairs import PAIRS
from tests.helpers.translation import decisive_translator, log_probabilities


@pytest.fixture(scope="module")
def translator() -> Translator:
    return decisive_translator()


@pytest.fixture(scope="module")
def four_pairs(translator):
    return ValidationSet.of(PAIRS[:4], translator.tokenizer)


def test_each_sentence_always_gets_the_same_other_source():
    sources = ["a", "b", "a", "c", "d", "a", "b", "e"]
    shuffled = shuffled_sources(sources)
    assert shuffled == shuffled_sources(list(sources))
    assert all(ours != theirs for ours, theirs in zip(sources, shuffled, strict=True))
    assert set(shuffled) == set(sources)
    different = [str(number) for number in range(99)]
    assert sorted(shuffled_sources(different)) == sorted(different)
    assert shuffled_sources(["a", "a"]) is shuffled_sources([]) is None


def test_losses_match_forward_passes_over_each_pair(translator, four_pairs):
    result = validate(translator, four_pairs)

    def mean_loss(sources):
        total = count = 0
        source_ids = translator.tokenizer.encode_source(sources)
        target_ids = translator.tokenizer.encode_target(four_pairs.references)
        for source, target in zip(source_ids, target_ids, strict=True):
            total -= log_probabilities(translator, source, target)[range(len(target)), target].sum()
            count += len(target)
        return total / count

    assert result.loss == pytest.approx(mean_loss(four_pairs.sources), rel=1e-5)
    assert result.shuffled_loss == pytest.approx(mean_loss(shuffled_sources(four_pairs.sources)), rel=1e-5)
    assert abs(result.shuffled_loss - result.loss) > 1e-3
    equal = ValidationSet.of([PAIRS[3]] * 4, translator.tokenizer)
    assert validate(translator, equal).shuffled_loss is None


def test_scores_are_those_of_sacrebleu_and_chrf_has_a_slope_where_bleu_has_none(translator, monkeypatch):
    references, scores = ["a b c d e f g h"] * 20, []
    pairs = ValidationSet.of([("x y", line) for line in references], translator.tokenizer)
    for line in ("u v w", "a v w", "a b w", *references[:1]):
        translations = [SimpleNamespace(text=line)] * 20
        monkeypatch.setattr(Translator, "translate_sentences", lambda *_, result=translations, **__: result)
        result = validate(translator, pairs)
        assert result.bleu == pytest.approx(sacrebleu.corpus_bleu([line] * 20, [references]).score)
        assert result.chrf == pytest.approx(sacrebleu.corpus_chrf([line] * 20, [references]).score)
        scores.append((result.chrf, result.bleu))
    assert scores == sorted(scores)
    assert scores[2][0] > scores[0][0] + 5
    assert scores[2][1] < 1


def test_validation_sets_differ_if_their_scores_cannot_be_compared(translator, four_pairs):
    first, shorter = (ValidationSet.of(PAIRS[:count], translator.tokenizer) for count in (4, 3))
    characters, chinese = (dataclasses.replace(first, tokenize=name) for name in ("char", "zh"))
    assert len({each.digest for each in (first, four_pairs, shorter, characters)}) == 3
    described = [each.bleu_description for each in (first, characters, chinese)]
    assert described == ["greedy", "greedy, characters", "greedy, tokenizer zh"]


def test_network_that_ignores_the_source_causes_a_warning(translator, four_pairs, tmp_path, caplog):
    """The parameters of its cross-attention are zero; a network whose losses differ causes no warning."""
    blind = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.zeros_like(leaf) if "cross_attention" in jax.tree_util.keystr(path) else leaf,
        translator.params,
    )
    ignoring = validate(dataclasses.replace(translator, params=blind), four_pairs)
    assert ignoring.shuffled_loss == pytest.approx(ignoring.loss, rel=1e-6)
    config = Config.model_validate({"training": {"tensorboard": False}, "optimizer": {"warmup_steps": 5}})
    recorder = Recorder(Workdir(tmp_path), "a run", config, 10)
    for step, result, warns in (
        (4, ignoring, False),  # during warm-up every network ignores the source
        (5, ignoring, True),
        (6, Validation(1.0, 1.2, 50.0, 30.0, ()), False),
        (7, Validation(1.0, None, 50.0, 30.0, ()), False),
    ):
        caplog.clear()
        recorder.validation(step, result, 1.0, best=True)
        assert ("so far the model ignores the sentences that it translates" in caplog.text) == warns
