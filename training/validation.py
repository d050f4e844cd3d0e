"""Validation: loss, greedy BLEU and a few translations to read."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import nnx

from data.batch import Batch, cut
from data.tokenizer import Tokenizer
from devices.compilation import compile_concurrently, compiled_program
from devices.processes import gather_to_host
from evaluation.bleu import corpus_bleu
from evaluation.evaluate import sample_indices
from options.schema import DecodingOptions
from training.loss import cross_entropy
from translation.translator import Translator

SAMPLES = 3
LOSS_BLOCK = 8192  # positions whose logits are computed at a time: 1.2 GB with 37,000 pieces
GREEDY = DecodingOptions(beam_size=1)


@dataclasses.dataclass(frozen=True)
class Sample:
    """A validation sentence, its reference and its translation."""

    source: str
    reference: str
    translation: str


@dataclasses.dataclass(frozen=True)
class Validation:
    """loss: cross-entropy in nats a token, without label smoothing or dropout; shuffled_loss: the same with another
    sentence's source for each, None where all sources are the same; bleu: 13a, as `bleu_description` says."""

    loss: float
    shuffled_loss: float | None
    bleu: float
    samples: tuple[Sample, ...]


@dataclasses.dataclass(frozen=True)
class ValidationSet:
    """What is validated on, tokenized once for all validations: texts and ids of each pair, and the ids of another
    pair's source for each, None where all sources are the same."""

    sources: Sequence[str]
    references: Sequence[str]
    source_ids: Sequence[list[int]]
    target_ids: Sequence[list[int]]
    shuffled_source_ids: Sequence[list[int]] | None

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> ValidationSet:
        """Tokenizes (source, reference) pairs."""
        sources, references = [source for source, _ in pairs], [target for _, target in pairs]
        source_ids, target_ids = tokenizer.encode_source(sources), tokenizer.encode_target(references)
        ids_of = dict(zip(sources, source_ids, strict=True))
        shuffled = shuffled_sources(sources)
        others = [ids_of[source] for source in shuffled] if shuffled else None
        return cls(sources, references, source_ids, target_ids, others)

    def __len__(self) -> int:
        return len(self.sources)


def validate(
    translator: Translator, data: ValidationSet, after_batch: Callable[[int], None] = lambda sentences: None
) -> Validation:
    """Loss and BLEU over all pairs. after_batch is called now and then and may raise to stop."""
    loss = _mean_loss(translator, data.source_ids, data.target_ids, after_batch)
    shuffled_loss = None
    if data.shuffled_source_ids:
        shuffled_loss = _mean_loss(translator, data.shuffled_source_ids, data.target_ids, after_batch)
    sources, references = data.sources, data.references
    found = translator.translate(sources, GREEDY, source_ids=data.source_ids, first_line=None, after_batch=after_batch)
    translations = [translation.text for translation in found]
    samples = [Sample(sources[i], references[i], translations[i]) for i in sample_indices(len(data), SAMPLES)]
    bleu = corpus_bleu(translations, references, lowercase=translator.tokenizer.lowercase)
    return Validation(loss, shuffled_loss, bleu, tuple(samples))


def bleu_description(tokenizer: Tokenizer) -> str:
    """How a validation's BLEU is computed, for people: without case where the model writes lower case."""
    return "greedy, lower case" if tokenizer.lowercase else "greedy"


def shuffled_sources(sources: Sequence[str]) -> list[str] | None:
    """Another sentence's source for each, always the same ones, never one with the same text; None where all are alike.

    A network that translates does far worse with them; one that has learned only what sentences look like does as well.
    """
    different = list(dict.fromkeys(sources))
    if len(different) < 2:
        return None
    random.Random(0).shuffle(different)
    other = dict(zip(different, [*different[1:], different[0]], strict=True))
    return [other[source] for source in sources]


def warm_up(translator: Translator, data: ValidationSet) -> None:
    """Compiles the programs that `validate` runs, side by side; of the parameters their shapes and places will do."""

    def loss() -> None:
        for batch in _loss_batches(translator, data.source_ids, data.target_ids):
            compiled_program(loss_sum, translator.params, batch, graphdef=translator.graphdef)

    compile_concurrently(loss, lambda: translator.warm_up(data.sources, GREEDY, data.source_ids))


def _mean_loss(
    translator: Translator,
    source_ids: Sequence[list[int]],
    target_ids: Sequence[list[int]],
    after_batch: Callable[[int], None],
) -> float:
    total = count = 0.0
    for batch in _loss_batches(translator, source_ids, target_ids):
        program = compiled_program(loss_sum, translator.params, batch, graphdef=translator.graphdef)
        part = gather_to_host(program(translator.params, batch))
        total, count = total + float(part[0]), count + float(part[1])
        after_batch(0)
    return total / count


def _loss_batches(
    translator: Translator, source_ids: Sequence[list[int]], target_ids: Sequence[list[int]]
) -> Iterator[Batch]:
    """Batches of pairs whose sides are cut where they are longer than the network takes."""
    source_ids, target_ids = ([cut(ids, translator.max_length) for ids in side] for side in (source_ids, target_ids))
    lengths = [max(len(s), len(t)) for s, t in zip(source_ids, target_ids, strict=True)]
    rows = translator.batch_size
    for group, length in translator.length_batches(lengths, rows):
        yield translator.batch([source_ids[i] for i in group], [target_ids[i] for i in group], rows, length)


@functools.partial(jax.jit, static_argnames="graphdef")
def loss_sum(params: Any, batch: Batch, *, graphdef: nnx.GraphDef) -> tuple[jax.Array, jax.Array]:
    """The sum of the batch's losses, and of how many tokens."""
    model = nnx.merge(graphdef, params)
    x, _ = model.hidden_states(batch.source, batch.target_in)
    return cross_entropy(x, model.output_table, batch.target_out, block_size=LOSS_BLOCK)
