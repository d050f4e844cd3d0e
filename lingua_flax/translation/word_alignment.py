"""Word alignments from cross-attention: which words of a sentence each word of its translation comes from.

A target token is aligned with the source token to which the decoder attends most, either at the step that predicts the
target token or at the step that reads it. Chen et al. (2020, "Accurate Word Alignment Induction from Neural Machine
Translation") found the latter better, in lower layers of post-norm networks of 6 + 6 layers; in the pre-norm networks
here, every layer already looks for the next token, and the former is far better (measured: docs/results/index.md).

Words are what spaces separate. A link (i, j) joins word i of the source with word j of the translation, both counted
from 0; in Pharaoh format, links are written as "0-0 1-2".

B sentence pairs, T target tokens, S source tokens, N heads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.data.batch import Batch, cut
from lingua_flax.data.tokenizer import SPACE, Tokenizer
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import AlignmentOptions
from lingua_flax.options.special_ids import EOS_ID
from lingua_flax.translation.decoding import Network
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.translator import SCORING_BATCH_SIZE, Translator
from lingua_flax.translation.words import is_part_of_word, split_words, word_indices

Links = list[tuple[int, int]]


def align(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[Sequence[int]],
    options: AlignmentOptions = AlignmentOptions(),
) -> list[Links]:
    """Aligns the words of each source line with those of its translation, given as in `Hypothesis.tokens`.

    The network must be able to read a source line in one pass; the rest of a longer one is ignored. The attention of
    all networks of an ensemble is averaged.

    The links of each pair are sorted. Every target word has at most as many as it has tokens; a word that attends to
    none of the source's words, but to the end of the sentence, has none.

    Raises UserError if a network has no such layer or head.
    """
    check_alignment(translator, options)
    source_ids = [cut(ids, translator.max_length) for ids in translator.tokenizer.encode_source(sources)]
    target_ids = [cut([*(token for token in ids if token != EOS_ID), EOS_ID], translator.max_length) for ids in targets]
    layer, head = options.alignment_layer, options.alignment_head
    links: dict[int, Links] = {}
    for group, batch in translator.pair_batches(source_ids, target_ids, SCORING_BATCH_SIZE):
        attended = gather_to_host(_attended(translator.networks, batch, layer=layer, head=head))
        for i, row in zip(group, attended, strict=False):  # the last rows of the batch may be empty
            steps = row[1:] if options.alignment_step == "read" else row
            links[i] = _links(translator.tokenizer, sources[i], source_ids[i], target_ids[i], steps)
    return [links[i] for i in range(len(sources))]


def align_translations(
    translator: Translator, translations: Sequence[Translation], options: AlignmentOptions = AlignmentOptions()
) -> list[Links]:
    """Aligns each source line with its best translation, as `align` does; also lines that were translated in parts.

    Raises UserError if a network has no such layer or head.
    """
    parts = [part for number, translation in enumerate(translations) for part in _parts(number, translation)]
    aligned = align(translator, [part.source for part in parts], [part.tokens for part in parts], options)
    results: list[Links] = [[] for _ in translations]
    for part, links in zip(parts, aligned, strict=True):
        results[part.number] += [(i + part.first_source_word, j + part.first_target_word) for i, j in links]
    return results


class _Part(NamedTuple):
    """A line, or a part of a line, and its translation.

    `number` is the index of the line; the first words are counted within the line and within its translation.
    """

    number: int
    source: str
    tokens: Sequence[int]
    first_source_word: int
    first_target_word: int


def _parts(number: int, translation: Translation) -> Iterator[_Part]:
    """Yields the parts in which a line was translated; none if it has no tokens."""
    source, hypothesis = translation.source, translation.hypotheses[0]
    start = target_start = 0
    for text, part in hypothesis.parts or ((source.strip(), hypothesis),):
        start, target_start = source.index(text, start), hypothesis.text.index(part.text, target_start)
        if part.tokens:
            # A word may be split between two parts; what follows belongs to the word in which the first part ends.
            sides = (source[: start + 1], hypothesis.text[: target_start + 1])
            yield _Part(number, text, part.tokens, *(max(0, len(split_words(side)) - 1) for side in sides))
        start, target_start = start + len(text), target_start + len(part.text)


def pharaoh(links: Links) -> str:
    """Returns links in Pharaoh format: "0-0 1-2"."""
    return " ".join(f"{i}-{j}" for i, j in links)


def check_alignment(translator: Translator, options: AlignmentOptions) -> None:
    """Raises UserError unless every network has the layer and the head."""
    for member in (translator, *translator.others):
        layers, heads = member.config.num_decoder_layers, member.config.num_heads
        if (options.alignment_layer or 1) > layers:
            raise UserError(f"alignment_layer {options.alignment_layer}: the network has {layers} decoder layers")
        if (options.alignment_head or 1) > heads:
            raise UserError(f"alignment_head {options.alignment_head}: the network has {heads} heads")


@functools.partial(jax.jit, static_argnames=("layer", "head"))
def _attended(networks: Sequence[Network], batch: Batch, *, layer: int | None, head: int | None) -> jax.Array:
    """Returns the source position that each decoder position attends to most, int32 [B, T].

    The weights of all networks are averaged, and those of all layers or heads where none is given.
    """
    layers, heads = (slice(None) if number is None else slice(number - 1, number) for number in (layer, head))
    models = [nnx.merge(network.graphdef, network.params) for network in networks]
    weights = [
        jnp.mean(jnp.stack(model(batch.source, batch.target_in)[1].cross[layers])[:, :, heads], (0, 2))
        for model in models
    ]
    return jnp.argmax(sum(weights), axis=-1).astype(jnp.int32)


def _links(
    tokenizer: Tokenizer, source: str, source_ids: Sequence[int], target_ids: Sequence[int], attended: np.ndarray
) -> Links:
    """Returns the links of a pair, given the source position that belongs to each target token."""
    first = len(tokenizer.source_tags)
    source_pieces = tokenizer.source_pieces(source_ids[first:-1])
    target_pieces = tokenizer.target_pieces(target_ids[:-1])
    origins = _origins(source, tokenizer)
    source_words, target_words = word_indices(source_pieces), word_indices(target_pieces)
    source_part, target_part = is_part_of_word(source_pieces), is_part_of_word(target_pieces)
    links = set()
    for j, position in enumerate(attended[: len(target_pieces)] - first):
        if 0 <= position < len(source_pieces) and target_part[j] and source_part[position]:
            links.add((origins[source_words[position]], target_words[j]))
    return sorted(links)


def _origins(line: str, tokenizer: Tokenizer) -> list[int]:
    """Returns the word of the line from which each word of the normalized line comes.

    SentencePiece normalizes text before it splits it; a word such as a spacing accent becomes two.
    """
    normalized = (tokenizer.source.normalize(word).replace(SPACE, " ") for word in split_words(line))
    return [index for index, words in enumerate(normalized) for _ in split_words(words)]
