"""Translating and scoring lines of text.

The translator tokenizes the lines, sorts them into batches of a few padded lengths, decodes the batches on the devices
and returns the results in the original order.

    from lingua_flax import Translator

    translator = Translator.load("checkpoints/tiny")
    for translation in translator.translate(["I swam across the river."], beam_size=5):
        print(translation.text, translation.hypotheses[0].score)

B sentences, S padded source length, K beams or samples.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from lingua_flax.data.batch import Batch, bucket_lengths, length_batches, unpacked_batch
from lingua_flax.data.tokenizer import Tokenizer, language_tag
from lingua_flax.devices.compilation import compile_concurrently
from lingua_flax.devices.mesh import make_mesh, round_up_to_row_shards
from lingua_flax.devices.sharding import put_on_devices, row_sharding
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.messages import validated
from lingua_flax.options.schema import ComputeConfig, DecodingOptions, MeshConfig, ModelConfig
from lingua_flax.options.special_ids import PAD_ID
from lingua_flax.translation import decoding
from lingua_flax.translation.hypotheses import Hypothesis, ScoredTranslation, Translation, join_parts
from lingua_flax.translation.parallel import map_concurrently, num_concurrent_programs
from lingua_flax.translation.requests import (
    Part,
    divide,
    length_limit,
    request_of,
    warn_about_limits,
    warn_about_long_lines,
)
from lingua_flax.translation.search import IMPOSSIBLE, Hypotheses

log = logging.getLogger(__name__)

# A few sentences are padded to one of these batch sizes instead of a full batch, which is faster to run and to compile.
SMALL_BATCH_SIZES = (1, 4, 16)
BATCH_SIZE_ON_CPU, BATCH_SIZE = 64, 512
# Maximum number of elements of a batch's keys and values, 4 GB in bfloat16; beyond it, fewer sentences are decoded
# together. The base model just exceeds it with 512 sentences of 64 tokens and 5 beams, for which the compiler for a TPU
# v5e reports 9.7 GB of temporaries (docs/results/performance.md).
MAX_CACHE_ELEMENTS = 2**31
SCORING_BATCH_SIZE = 64  # sentence pairs, whose logits must all fit into memory


@dataclasses.dataclass(frozen=True)
class Translator:
    """A trained network with its tokenizer, or an ensemble of networks that share a tokenizer.

    Replacing `params` (dataclasses.replace) does not require recompilation.

    Attributes:
      graphdef: the structure of the network.
      params: its parameters.
      tokenizer: the tokenizer of both sides.
      config: the configuration of the network.
      step: step of the checkpoint; of averaged checkpoints, the newest step.
      mesh: devices across which the sentences of a batch are sharded, by default all devices.
      others: the other networks of an ensemble; the probabilities of all networks are averaged.
      pads_to_longest: whether all lines of a call are padded to the same length, so that one program serves them all
        (see devices.padding).
    """

    graphdef: nnx.GraphDef
    params: Any
    tokenizer: Tokenizer
    config: ModelConfig
    step: int = 0
    mesh: Mesh = dataclasses.field(default_factory=lambda: make_mesh(MeshConfig()))
    others: tuple[Translator, ...] = ()
    pads_to_longest: bool = False

    @classmethod
    def load(
        cls,
        workdir: str | Path,
        checkpoint: str = "best",
        devices: ComputeConfig | None = None,
        target_language: str | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> Translator:
        """Loads the tokenizer of a run and the parameters of a checkpoint.

        Args:
          workdir: folder of the run.
          checkpoint: best, last, the number of a step, or average:N for the mean of the newest N checkpoints.
          devices: platform, precision and padding to use. By default they follow the config of the run: CPUs if it
            specifies them, otherwise the best devices available, regardless of which ones the run was trained on.
          target_language: for a model trained with data.tag_target, the language to translate into; by default
            data.target_language.
          ensemble: workdirs of further runs with the same tokenizer; the same `checkpoint` is loaded from each.

        Raises:
          UserError: a workdir, its tokenizer or the checkpoint is missing or damaged; the model cannot translate into
            `target_language`; the tokenizers or the languages of an ensemble differ; or no device of the requested
            platform exists.
        """
        from lingua_flax.translation.loading import load_translator  # which imports this module

        return load_translator(Path(workdir), checkpoint, devices, target_language, [Path(path) for path in ensemble])

    def into(self, language: str) -> Translator:
        """Returns the translator into another language, of a network that was trained with data.tag_target.

        Raises:
          UserError: the network has no tag for the language.
        """
        untagged = dataclasses.replace(self.tokenizer, source_tags=())
        return dataclasses.replace(self, tokenizer=untagged.with_source_tag(language_tag(language)))

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a sentence, on either side, that every network of the ensemble accepts."""
        return min(member.config.max_length for member in (self, *self.others))

    @property
    def networks(self) -> list[decoding.Network]:
        """All networks of the ensemble, this one first."""
        return [decoding.Network(member.graphdef, member.params) for member in (self, *self.others)]

    @property
    def batch_size(self) -> int:
        """The number of sentences that are validated together, large enough to keep the kind of device busy."""
        return BATCH_SIZE_ON_CPU if self.mesh.devices.flat[0].platform == "cpu" else BATCH_SIZE

    def decoding_batch_size(self, longest: int, beams: int) -> int:
        """Returns the default number of sentences that are translated together if the longest has `longest` tokens.

        It is halved from `batch_size` until the caches have at most MAX_CACHE_ELEMENTS elements, but not below
        BATCH_SIZE_ON_CPU.
        """
        rows = self.batch_size
        positions = min(decoding.default_max_length(longest), self.max_length)
        members = (self, *self.others)
        per_position = 2 * sum(member.config.num_decoder_layers * member.config.embed_dim for member in members)
        while rows > BATCH_SIZE_ON_CPU and rows * beams * positions * per_position > MAX_CACHE_ELEMENTS:
            rows //= 2
        return rows

    def length_batches(self, lengths: Sequence[int], rows: int) -> list[tuple[list[int], int]]:
        """Groups sentences of these lengths into batches of `rows`: (their indices, the padded length) of each."""
        return list(length_batches(lengths, rows, self.max_length, same_length=self.pads_to_longest))

    def translate(
        self,
        lines: Sequence[str],
        options: DecodingOptions = DecodingOptions(),
        *,
        num_hypotheses: int = 1,
        prefixes: Sequence[str] | None = None,
        source_ids: Sequence[list[int]] | None = None,
        first_line: int = 1,
        warn: bool = True,
        after_batch: Callable[[int], None] = lambda sentences: None,
        **overrides: Any,
    ) -> list[Translation]:
        """Translates each line and returns the translations in order; a line without tokens becomes an empty line.

        A line longer than max_length is split at every sentence end (see `split_line`), translated in parts and joined.

        Args:
          lines: detokenized text.
          options: how to decode.
          num_hypotheses: number of hypotheses to return for each line; for a search, at most its beam_size.
          prefixes: text that the translation of each line must begin with, "" for none.
          source_ids: the token ids of the lines as returned by tokenizer.encode_source, if already known.
          first_line: number of lines[0], used in messages and to seed sampling.
          warn: whether to log the lines that are translated in parts, and those whose translation reaches its limit.
          after_batch: called with the number of lines without a token, then after each batch with the number of lines
            whose first part was in it; may raise to stop.
          **overrides: fields of DecodingOptions that replace those of `options`, such as beam_size=5.

        Raises:
          UserError: an option or a prefix is invalid, or not possible with this model.
          TypeError: `lines` is a single string.
        """
        options = _apply_overrides(options, overrides)
        self.check(options, num_hypotheses)
        _check_lines(lines, prefixes)
        source_ids = source_ids or self.tokenizer.encode_source(lines)
        parts = self._divide(lines, source_ids, prefixes, options, first_line)
        if warn:
            warn_about_long_lines(parts, source_ids, first_line, self.max_length)
        options, batches = self._batches(parts, options, num_hypotheses)
        hypotheses: dict[int, tuple[Hypothesis, ...]] = {}  # by index into `parts`

        def search(batch: tuple[list[int], int]) -> Hypotheses:
            request = self._request([parts[i] for i in batch[0]], options, batch[1])
            return decoding.decode_batch(self.networks, request, self._decoding(options, request, num_hypotheses))

        after_batch(len(lines) - sum(part.part == 0 for part in parts))  # lines without a token
        for (group, _), decoded in map_concurrently(search, batches, num_concurrent_programs(self.mesh)):
            hypotheses.update(zip(group, self.detokenized(decoded, len(group), num_hypotheses), strict=True))
            after_batch(sum(parts[i].part == 0 for i in group))
        if warn:
            warn_about_limits({part.line for i, part in enumerate(parts) if len(hypotheses[i][0].tokens) >= part.limit})
        by_line: list[list[tuple[str, tuple[Hypothesis, ...]]]] = [[] for _ in lines]
        for i, part in enumerate(parts):
            by_line[part.line - first_line].append((part.text, hypotheses[i]))
        return [Translation(line, join_parts(joined)) for line, joined in zip(lines, by_line, strict=True)]

    def warm_up(
        self, lines: Sequence[str], options: DecodingOptions, source_ids: Sequence[list[int]] | None = None
    ) -> None:
        """Compiles the programs that translate(lines, options) runs, concurrently and without running them."""
        parts = self._divide(lines, source_ids or self.tokenizer.encode_source(lines), None, options)
        options, batches = self._batches(parts, options, num_hypotheses=1)
        self._compile([(options, length) for length in sorted({length for _, length in batches})])

    def warm_up_all(self, options: DecodingOptions) -> None:
        """Compiles the programs for every number and length of lines without prefixes, as `warm_up` does."""
        full = options.batch_size or self.decoding_batch_size(self.max_length, options.beam_size)
        sizes = [*(size for size in SMALL_BATCH_SIZES if size < full), full]
        self._compile(
            [
                (options.model_copy(update={"batch_size": rows}), length)
                for rows in sizes
                for length in bucket_lengths(self.max_length)
            ]
        )

    def _compile(self, programs: Sequence[tuple[DecodingOptions, int]]) -> None:
        """Compiles the programs for these options, which include a batch size, and these padded lengths."""
        part = Part(line=1, part=0, text="", source=[], prefix=[], limit=1)

        def compile_decode_batch(options: DecodingOptions, length: int) -> None:
            request = self._request([part], options, length)
            decoding.compile_decode_batch(self.networks, request, self._decoding(options, request))

        compile_concurrently(*(functools.partial(compile_decode_batch, *program) for program in programs))

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        batch_size: int = SCORING_BATCH_SIZE,
        after_batch: Callable[[int], None] = lambda sentences: None,
    ) -> list[ScoredTranslation]:
        """Returns the log-probability of each target as the translation of its source, in order.

        Args:
          sources: detokenized source lines.
          targets: a translation of each source line.
          batch_size: number of pairs that are scored together.
          after_batch: called after each batch with its number of pairs; may raise to stop.

        Raises:
          UserError: one side of a pair is longer than max_length, or the numbers of lines differ.
        """
        if len(sources) != len(targets):
            raise UserError(f"{len(sources):,} sources, but {len(targets):,} translations; they must be aligned")
        source_ids, target_ids = self.tokenizer.encode_source(sources), self.tokenizer.encode_target(targets)
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        for number, length in enumerate(lengths, 1):
            if length > self.max_length:
                raise UserError(f"line {number} has {length} tokens; the model can score at most {self.max_length}")
        scored: dict[int, ScoredTranslation] = {}
        for group, length in self.length_batches(lengths, batch_size):
            scores = decoding.score_batch(
                self.networks,
                self.batch([source_ids[i] for i in group], [target_ids[i] for i in group], batch_size, length),
            )
            for i, score in zip(group, scores, strict=False):  # the last rows of the batch may be empty
                scored[i] = ScoredTranslation(float(score), len(target_ids[i]))
            after_batch(len(group))
        return [scored[i] for i in range(len(sources))]

    def decode_ids(
        self,
        source: np.ndarray,
        options: DecodingOptions,
        masked: np.ndarray | None = None,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        num_hypotheses: int = 1,
    ) -> Hypotheses:
        """Decodes padded source ids [B, S] on the devices; options.batch_size is ignored.

        No layer attends to positions at which `masked` [B, S] is True, as with padding. The hypotheses of each
        sentence begin with the ids in `prefixes`, and the `num_hypotheses` best are returned.
        """
        rows = [ids[ids != PAD_ID].tolist() for ids in source]
        parts = [
            Part(i, 0, "", ids, list(prefix), self.length_limit(len(ids), len(prefix), options) if ids else 1)
            for i, (ids, prefix) in enumerate(zip(rows, prefixes or [()] * len(rows), strict=True), 1)
        ]
        options = options.model_copy(update={"batch_size": len(source)})
        request = self._request(parts, options, source.shape[1], masked)
        decoded = decoding.decode_batch(self.networks, request, self._decoding(options, request, num_hypotheses))
        return Hypotheses(*(array[: len(source)] for array in decoded))

    def batch(self, sources: Sequence[list[int]], targets: Sequence[list[int]], rows: int, length: int) -> Batch:
        """Returns a batch with one pair a row, sharded across the devices.

        Missing rows are padding; `rows` is rounded up to a multiple of the number of row shards.
        """
        return put_on_devices(
            unpacked_batch(sources, targets, round_up_to_row_shards(self.mesh, rows), length),
            row_sharding(self.mesh),
        )

    def check(self, options: DecodingOptions, num_hypotheses: int = 1) -> None:
        """Raises UserError if this model cannot decode with these options."""
        options.check_num_hypotheses(num_hypotheses)
        for name in ("min_decoding_length", "max_decoding_length"):
            length = getattr(options, name)
            if length and length > self.max_length:
                raise UserError(f"{name} {length} exceeds the model's max_length {self.max_length}")

    def check_prefixes(self, lines: Sequence[str], prefixes: Sequence[str], options: DecodingOptions) -> None:
        """Raises UserError if a prefix has a character without a token, or is as long as its translation may be."""
        self._divide(lines, self.tokenizer.encode_source(lines), prefixes, options)

    def length_limit(self, source_tokens: int, prefix_tokens: int, options: DecodingOptions) -> int:
        """Returns the maximum number of tokens of a translation, its prefix and end token included."""
        return length_limit(source_tokens, prefix_tokens, options, self.max_length)

    def _divide(
        self,
        lines: Sequence[str],
        source_ids: Sequence[list[int]],
        prefixes: Sequence[str] | None,
        options: DecodingOptions,
        first_line: int = 1,
    ) -> list[Part]:
        prefixes = prefixes or [""] * len(lines)
        return divide(lines, source_ids, prefixes, self.tokenizer, options, self.max_length, first_line)

    def _request(
        self, parts: Sequence[Part], options: DecodingOptions, length: int, masked: np.ndarray | None = None
    ) -> decoding.DecodingRequest:
        """Returns the parts as a batch on the devices.

        It has options.batch_size rows, rounded up to a multiple of the number of row shards.
        """
        assert options.batch_size
        rows = round_up_to_row_shards(self.mesh, options.batch_size)
        return put_on_devices(request_of(parts, options, rows, length, masked), row_sharding(self.mesh))

    def _decoding(
        self, options: DecodingOptions, request: decoding.DecodingRequest, num_hypotheses: int = 1
    ) -> decoding.Decoding:
        return decoding.Decoding.of(options, request, self.max_length, num_hypotheses, self.pads_to_longest)

    def _batches(
        self, parts: Sequence[Part], options: DecodingOptions, num_hypotheses: int
    ) -> tuple[DecodingOptions, list[tuple[list[int], int]]]:
        """Groups the parts into batches: the indices of the parts of each, and their padded length.

        Also returns the options with the batch size to use: one of SMALL_BATCH_SIZES if that is enough for all parts.
        """
        lengths = [len(part.source) for part in parts]
        width = num_hypotheses if options.temperature else options.beam_size
        full = options.batch_size or self.decoding_batch_size(max(lengths, default=1), width)
        rows = min([size for size in SMALL_BATCH_SIZES if len(parts) <= size < full], default=full)
        return options.model_copy(update={"batch_size": rows}), self.length_batches(lengths, rows)

    def detokenized(self, hypotheses: Hypotheses, rows: int, count: int) -> list[tuple[Hypothesis, ...]]:
        """Returns the `count` best hypotheses of each of the first `rows` sentences, as text.

        Raises RunError if the network computes NaN or infinity, so that a sentence has no hypothesis with a score.
        """
        tokens, scores = (array[:rows, :count] for array in hypotheses)
        if not (scores[:, 0] > IMPOSSIBLE / 2).all():
            raise RunError(
                "the outputs of the network are not finite: its training has diverged. Use an earlier --checkpoint, or "
                "train again with a lower optimizer.peak_lr"
            )
        return [
            tuple(
                Hypothesis(text, float(score), tuple(int(token) for token in ids[ids != PAD_ID]))
                for text, score, ids in zip(self.tokenizer.decode_target(beams), row, beams, strict=True)
                if score > IMPOSSIBLE / 2
            )
            for beams, row in zip(tokens, scores, strict=True)
        ]


def _apply_overrides(options: DecodingOptions, overrides: dict[str, Any]) -> DecodingOptions:
    if not overrides:
        return options
    return validated(
        DecodingOptions, {name: getattr(options, name) for name in DecodingOptions.model_fields} | overrides
    )


def _check_lines(lines: Sequence[str], prefixes: Sequence[str] | None) -> None:
    if isinstance(lines, str):
        raise TypeError("translate takes a list of lines, not a single string")
    if prefixes is not None and len(prefixes) != len(lines):
        raise UserError(f"{len(lines):,} lines, but {len(prefixes):,} prefixes; there must be one for each line")
