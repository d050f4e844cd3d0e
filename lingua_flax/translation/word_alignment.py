"""Word alignments from cross-attention: which words of a sentence each word of its translation comes from.

A target token is aligned with the source token to which the decoder attends most, either at the step that predicts the
target token or at the step that reads it. Chen et al. (2020, "Accurate Word Alignment Induction from Neural Machine
Translation") found the latter better, in lower layers of post-norm networks of 6 + 6 layers; in the pre-norm networks
here, every layer already looks for the next token, and the former is far better (measured: docs/results/index.md).

What is aligned are the characters of tokens, which `word_links` turns into words: what spaces separate.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.data.batch import Batch, cut
from lingua_flax.data.placeholders import Protected
from lingua_flax.data.tokenizer import Characters, Tokenizer
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import AlignmentOptions
from lingua_flax.options.special_ids import EOS_ID, PAD_ID
from lingua_flax.translation.decoding import Network
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.loading import SCORING_BATCH_SIZE, TrainedNetwork
from lingua_flax.translation.words import is_part_of_word, split_words, word_at

WEAK_LINK = 0.75  # chosen from 0.3 to 0.9 by hand-aligned sentences (docs/results/index.md): articles link to articles
WordLinks = list[tuple[int, int]]  # word i of the source and word j of the translation, counted from 0


class Link(NamedTuple):
    """The characters of a token of the translation, and those of the token of the source that it comes from."""

    source: Characters
    target: Characters


def align_translations(
    network: TrainedNetwork,
    translations: Sequence[Translation],
    options: AlignmentOptions = AlignmentOptions(),
    wanted: Sequence[bool] | None = None,
) -> list[list[Link]]:
    """Aligns each source line with its best translation, part by part, or only those whose links are wanted.

    What is too long is ignored.

    Every token of the translation has at most one link, in order; one that attends to the end of the sentence has none.
    Neither has punctuation that is attached to a word, nor what attends to it. Raises UserError if a network has no
    such layer or head.
    """
    check_alignment(network, options)
    chosen = wanted or [True] * len(translations)
    divided = [list(_parts(own)) if is_wanted else [] for own, is_wanted in zip(translations, chosen, strict=True)]
    parts = list(itertools.chain(*divided))
    encoded = network.tokenizer.encode_protected([source for source, *_ in parts])
    source_ids = [cut(ids, network.max_length) for ids in encoded]
    target_ids = [cut([*(i for i in ids if i != EOS_ID), EOS_ID], network.max_length) for _, ids, *_ in parts]
    layer, head = options.alignment_layer, options.alignment_head
    found: dict[int, list[Link]] = {}
    for group, batch in network.pair_batches(source_ids, target_ids, SCORING_BATCH_SIZE):
        attended = gather_to_host(_attended(network.networks, batch, layer=layer, head=head))
        for i, row in zip(group, attended, strict=False):  # the last rows of the batch may be empty
            steps = row[1:] if options.alignment_step == "read" else row
            found[i] = _links(network.tokenizer, parts[i][0], target_ids[i], steps)
    links = (found[i] for i in range(len(parts)))
    return [[moved(link, *starts) for _, _, *starts in own for link in next(links)] for own in divided]


def _parts(translation: Translation) -> Iterator[tuple[Protected, Sequence[int], int, int]]:
    """Yields the parts in which a line was translated: source, tokens, and where both begin; only those with tokens."""
    source, hypothesis = translation.source, translation.hypotheses[0]
    start = target_start = 0
    for text, part in hypothesis.parts or ((source.strip(), hypothesis),):
        start, target_start = source.index(text, start), hypothesis.text.index(part.text, target_start)
        if part.protected:
            yield part.protected, part.tokens, start, target_start
        start, target_start = start + len(text), target_start + len(part.text)


def moved(link: Link, source: int, target: int) -> Link:
    """Returns the link between characters that are so much further from the beginning."""
    return Link(
        Characters(link.source.begin + source, link.source.end + source),
        Characters(link.target.begin + target, link.target.end + target),
    )


def word_links(links: Sequence[Link], source: str, target: str) -> WordLinks:
    """Returns the pairs of words of a line and its translation that are linked, sorted."""
    sides = split_words(source), split_words(target)
    return sorted({(word_at(sides[0], link.source), word_at(sides[1], link.target)) for link in links})


def pharaoh(links: WordLinks) -> str:
    """Returns links in Pharaoh format: "0-0 1-2"."""
    return " ".join(f"{i}-{j}" for i, j in links)


def check_alignment(network: TrainedNetwork, options: AlignmentOptions) -> None:
    """Raises UserError unless every network has the layer and the head."""
    for member in network.members:
        layers, heads = member.config.num_decoder_layers, member.config.num_heads
        if (options.alignment_layer or 1) > layers:
            raise UserError(f"alignment_layer {options.alignment_layer}: the network has {layers} decoder layers")
        if (options.alignment_head or 1) > heads:
            raise UserError(f"alignment_head {options.alignment_head}: the network has {heads} heads")


@functools.partial(jax.jit, static_argnames=("layer", "head"))
def _attended(networks: Sequence[Network], batch: Batch, *, layer: int | None, head: int | None) -> jax.Array:
    """Returns the source position that each decoder position comes from, int32 [B, T], or -1 where none does.

    The weights of all networks are averaged, and those of all layers or heads where none is given. Some source tokens
    are attended to at many steps, such as a noun by its article, for its gender. So weights are compared after they
    were divided by the root of the largest weight of their source token; a link of less than WEAK_LINK of that is none.
    """
    layers, heads = (slice(None) if number is None else slice(number - 1, number) for number in (layer, head))
    models = [nnx.merge(network.graphdef, network.params) for network in networks]
    sublayers = [model(batch.source, batch.target_in)[1].cross[layers] for model in models]
    weights = [
        jnp.mean(jnp.stack([sublayer.attention.weights for sublayer in chosen])[:, :, heads], (0, 2))
        for chosen in sublayers
    ]
    attended = jnp.where((batch.target_in != PAD_ID)[:, :, None], sum(weights), 0.0)
    strongest = jnp.max(attended, axis=1, keepdims=True)
    origins = jnp.argmax(attended / jnp.sqrt(strongest + jnp.finfo(jnp.float32).tiny), axis=-1)
    own, best = (jnp.take_along_axis(each, origins[:, :, None], axis=2)[..., 0] for each in (attended, strongest))
    return jnp.where(own < WEAK_LINK * best, -1, origins).astype(jnp.int32)


def _links(tokenizer: Tokenizer, source: Protected, target_ids: Sequence[int], attended: np.ndarray) -> list[Link]:
    """Returns the links of a pair, given the source position that belongs to each target token."""
    sources = tokenizer.source_characters(source)
    translation, targets = tokenizer.target_characters(source, target_ids[:-1])
    source_words, target_words = split_words(source.source), split_words(translation)
    return [
        Link(sources[position], target)
        for target, position in zip(targets, attended - len(tokenizer.source_tags), strict=False)
        if 0 <= position < len(sources)
        and is_part_of_word(source.source, source_words, sources[position])
        and is_part_of_word(translation, target_words, target)
    ]
