"""Validation: loss, chrF and BLEU of greedy translations, and a few samples."""

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, Self

import jax
from flax import nnx

from lingua_flax.data.batch import Batch, cut
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.devices.compilation import compile_concurrently, compiled_program
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.evaluation.bleu import corpus_bleu, corpus_chrf
from lingua_flax.evaluation.evaluate import sample_indices
from lingua_flax.host.digests import json_digest
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.training.loss import cross_entropy
from lingua_flax.translation.translator import Translator

NUM_SAMPLES = 3
LOSS_BLOCK = 8192  # positions whose logits are computed at a time: 1.2 GB for a vocabulary of 37,000
GREEDY = DecodingOptions(beam_size=1)
Ids = Sequence[list[int]]


class Sample(NamedTuple):
    """A validation sentence."""

    source: str
    reference: str
    translation: str


class Validation(NamedTuple):
    """The result of a validation."""

    loss: float  # cross-entropy in nats per token, without label smoothing or dropout
    shuffled_loss: float | None  # the same with `shuffled_sources`
    chrf: float  # in percent, as BLEU
    bleu: float  # computed as `ValidationSet.bleu_description` says
    samples: tuple[Sample, ...]
    chrf_by_direction: Mapping[str, float] = {}  # such as en-de; of a network with several, the others are their means


@dataclass(frozen=True)
class ValidationSet:
    """The validation split, tokenized once for all validations; `tokenize` is sacreBLEU's tokenizer."""

    sources: Sequence[str]
    references: Sequence[str]
    source_ids: Ids
    target_ids: Ids
    shuffled_source_ids: Ids | None
    tokenize: str
    lowercase: bool
    languages: tuple[str, str]

    @classmethod
    def of(
        cls,
        pairs: Sequence[tuple[str, str]],
        tokenizer: Tokenizer,
        tokenize: str = "13a",
        languages: tuple[str, str] = ("", ""),
    ) -> Self:
        """Tokenizes (source, reference) pairs."""
        sources, references = [source for source, _ in pairs], [target for _, target in pairs]
        source_ids, target_ids = tokenizer.encode_pairs(pairs)
        ids_of = dict(zip(sources, source_ids, strict=True))
        shuffled = shuffled_sources(sources)
        shuffled_ids = [ids_of[source] for source in shuffled] if shuffled else None
        return cls(sources, references, source_ids, target_ids, shuffled_ids, tokenize, tokenizer.lowercase, languages)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of all that a validation's scores depend on besides the network."""
        return json_digest([self.sources, self.references, self.tokenize, self.lowercase])

    @property
    def bleu_description(self) -> str:
        """How validation BLEU is computed, in words; case is ignored if the model writes lower case."""
        tokens = {"13a": "", "char": ", characters"}.get(self.tokenize, f", tokenizer {self.tokenize}")
        return "greedy" + tokens + (", lower case" if self.lowercase else "")


def validate(
    translator: Translator, data: ValidationSet, after_batch: Callable[[int], None] = lambda sentences: None
) -> Validation:
    """Computes loss and scores; `after_batch` is given the sentences translated, and may raise to stop."""
    loss = _mean_loss(translator, data.source_ids, data.target_ids, after_batch)
    shuffled = data.shuffled_source_ids
    shuffled_loss = _mean_loss(translator, shuffled, data.target_ids, after_batch) if shuffled else None
    sources, references = data.sources, data.references
    lines = translator.translate_sentences(sources, GREEDY, warn=False, after_batch=after_batch)
    translations = [line.text for line in lines]
    samples = [Sample(sources[i], references[i], translations[i]) for i in sample_indices(len(data), NUM_SAMPLES)]
    chrf = corpus_chrf(translations, references, lowercase=data.lowercase)
    bleu = corpus_bleu(translations, references, tokenize=data.tokenize, lowercase=data.lowercase)
    return Validation(loss, shuffled_loss, chrf, bleu, tuple(samples))


def validate_directions(
    translator: Translator, sets: Sequence[ValidationSet], after_batch: Callable[[int], None] = lambda sentences: None
) -> Validation:
    """Validates each direction of a network that has several, and returns the means over them."""
    if len(sets) == 1:
        return validate(translator, sets[0], after_batch)
    results = [validate(translator.into(*each.languages), each, after_batch) for each in sets]
    shuffled = [result.shuffled_loss for result in results if result.shuffled_loss is not None]
    return Validation(
        loss=fmean(result.loss for result in results),
        shuffled_loss=fmean(shuffled) if len(shuffled) == len(results) else None,
        chrf=fmean(result.chrf for result in results),
        bleu=fmean(result.bleu for result in results),
        samples=tuple(result.samples[0] for result in results),
        chrf_by_direction={"-".join(each.languages): result.chrf for each, result in zip(sets, results, strict=True)},
    )


def shuffled_sources(sources: Sequence[str]) -> list[str] | None:
    """Replaces each source by a different one, the same in every call; returns None if all sources are equal.

    The loss of a model that translates rises sharply with these sources; that of a model that has only learned what
    target sentences look like hardly changes.
    """
    distinct = list(dict.fromkeys(sources))
    if len(distinct) < 2:
        return None
    random.Random(0).shuffle(distinct)
    replacements = dict(zip(distinct, [*distinct[1:], distinct[0]], strict=True))
    return [replacements[source] for source in sources]


def warm_up(translator: Translator, sets: Sequence[ValidationSet]) -> None:
    """Compiles the programs that `validate` runs; params may be shapes with shardings. `validate` reports errors."""

    def compile_loss() -> None:
        for data in sets:
            for batch in _loss_batches(translator, data.source_ids, data.target_ids):
                compiled_program(loss_sum, translator.params, batch, graphdef=translator.graphdef)

    sources = [source for data in sets for source in data.sources]
    # Of JAX, or of Python when it ends after an interruption: it starts no threads any more.
    with contextlib.suppress(RuntimeError):
        compile_concurrently(compile_loss, lambda: translator.warm_up(sources, GREEDY))


def _mean_loss(translator: Translator, source_ids: Ids, target_ids: Ids, after_batch: Callable[[int], None]) -> float:
    total = count = 0.0
    for batch in _loss_batches(translator, source_ids, target_ids):
        program = compiled_program(loss_sum, translator.params, batch, graphdef=translator.graphdef)
        batch_loss, batch_tokens = gather_to_host(program(translator.params, batch))
        total, count = total + float(batch_loss), count + float(batch_tokens)
        after_batch(0)
    return total / count


def _loss_batches(translator: Translator, source_ids: Ids, target_ids: Ids) -> Iterator[Batch]:
    """Yields batches of pairs, each side truncated to the maximum length of the network."""
    source_ids, target_ids = ([cut(ids, translator.max_length) for ids in side] for side in (source_ids, target_ids))
    yield from (batch for _, batch in translator.pair_batches(source_ids, target_ids, translator.batch_size))


@functools.partial(jax.jit, static_argnames="graphdef")
def loss_sum(params: Any, batch: Batch, *, graphdef: nnx.GraphDef) -> tuple[jax.Array, jax.Array]:
    """Returns the summed cross-entropy of a batch, in nats, and its number of target tokens."""
    model = nnx.merge(graphdef, params)
    x, _ = model.hidden_states(batch.source, batch.target_in)
    return cross_entropy(x, model.output_table, batch.target_out, block_size=LOSS_BLOCK, bias=model.logit_bias)
