"""Lines in, translations out: tokenization, batches of a few lengths, search on the device, original order.

    from translation.translator import Translator

    translator = Translator.load("checkpoints/tiny")
    for found in translator.translate(["I swam across the river."], beam_size=5):
        print(found.text, found.hypotheses[0].score)

B sentences, S padded source length, K beams or samples.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from data.batch import Batch, cut, length_batches, pad_rows, unpacked_batch
from data.tokenizer import Tokenizer, load_tokenizer, model_paths
from devices.compilation import compile_concurrently
from devices.mesh import make_mesh, round_up_to_row_shards
from devices.platform import available_devices, compute_dtype, pads_to_longest
from devices.sharding import put_on_devices, replicated, row_sharding
from host.errors import UserError
from model.transformer import structure
from options.config_files import CONFIG_NAME, read_workdir_config, refused_changes
from options.messages import validated
from options.schema import ComputeConfig, Config, DecodingOptions, MeshConfig, ModelConfig
from options.special_ids import PAD_ID, UNK_ID
from runs.checkpoint import load_params
from runs.workdir import Workdir
from translation import decoding
from translation.hypotheses import Hypothesis, ScoredTranslation, Translation, join_parts
from translation.line_splitting import split_line
from translation.parallel import map_concurrently, num_concurrent_programs
from translation.search import IMPOSSIBLE, Hypotheses

log = logging.getLogger(__name__)

LINES_NAMED = 5  # in a warning
# What few sentences are padded to, instead of a whole batch: one alone takes 8 ms and not 52, and the program for three
# is compiled in 1 second and not in 3.
SMALL_BATCHES = (1, 4, 16)
BATCH_SIZE_ON_CPU, BATCH_SIZE = 64, 512
# That a batch's keys and values may have before a search takes fewer sentences: 4 GB in bfloat16. By the account of a
# v5e's compiler the base model needs 9.7 GB for 512 sentences of 64 tokens with 5 beams, which have twice as many.
MOST_CACHED_NUMBERS = 2**31
SCORED_TOGETHER = 64  # whose logits all have to fit into memory


class _Part(NamedTuple):
    """What is translated in one go, a line or a part of one: ids of its source, and those its translation begins with.

    line: its index among the lines; part: its number in that; limit: most tokens of its translation.
    """

    line: int
    part: int
    source: list[int]
    prefix: list[int]
    limit: int


@dataclasses.dataclass(frozen=True)
class Translator:
    """A trained network with its tokenizer, or an ensemble of several that share one.

    With `params` replaced (dataclasses.replace) nothing is compiled again.

    Attributes:
      step: of the checkpoint; of averaged ones, that of the newest.
      mesh: the devices that share out the sentences of a batch, by default all there are.
      others: the other networks of an ensemble, whose probabilities are averaged with this one's.
      pads_to_longest: whether one program serves all lines of a call (see devices.padding).
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
        """Loads a run's tokenizer and the parameters of a checkpoint.

        Args:
          checkpoint: best, last, a step's number, or average:N for the mean of the newest N.
          devices: what to compute on, by default as the config says: on CPUs where it says so, else on the best devices
            there are, whatever it was trained on.
          target_language: of a model trained with data.tag_target, the one to translate into instead of [data]'s.
          ensemble: more workdirs, trained with the same tokenizer; the same checkpoint is taken of each.

        Raises:
          UserError: a workdir, its tokenizer or the checkpoint is missing or damaged, or has no such language; or the
            tokenizers differ; or there is no device of the platform that `devices` asks for.
        """
        trained_on = read_workdir_config(Path(workdir)).devices
        devices = devices or trained_on.compute
        mesh = make_mesh(MeshConfig(), available_devices(devices.platform))
        platform = mesh.devices.flat[0].platform
        if trained_on.platform not in ("auto", platform):
            log.info("%s: trained on %s, computing on %s", workdir, trained_on.platform, platform)
        first, *others = (
            cls._load_one(Path(path), checkpoint, devices, mesh, target_language) for path in (workdir, *ensemble)
        )
        for path, other in zip(ensemble, others, strict=True):
            if other.tokenizer.fingerprint != first.tokenizer.fingerprint:
                raise UserError(
                    f"{path}: its tokenizer is not that of {workdir}; an ensemble needs runs with the same one "
                    "(tokenizer.model_file)"
                )
            if other.tokenizer.source_tag != first.tokenizer.source_tag:
                raise UserError(f"{path}: its sources have another tag than those of {workdir}; see data.tag_target")
        return dataclasses.replace(first, others=tuple(others))

    @classmethod
    def _load_one(
        cls, workdir: Path, checkpoint: str, devices: ComputeConfig, mesh: Mesh, target_language: str | None
    ) -> Translator:
        files = Workdir(workdir)
        config = read_workdir_config(files.path)
        tokenizer = load_tokenizer(model_paths(files.path, joint=config.tokenizer.joint))
        tokenizer = _with_tag(tokenizer, config, target_language)
        sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
        network = structure(config.model, *sizes, compute_dtype(devices.precision, mesh))

        def check(record: dict[str, Any]) -> None:
            step = record["step"]
            if record["fingerprints"]["tokenizer"] != tokenizer.fingerprint:
                raise UserError(f"{files.path}: its tokenizer is not the one that checkpoint {step} was trained with")
            if changed := refused_changes(record["config"], config, f"in checkpoint {step}", "model."):
                raise UserError(f"{files.path}: its {CONFIG_NAME} is not that of its checkpoints: {'; '.join(changed)}")

        step, params, _ = load_params(files.checkpoints, checkpoint, network.params, check)
        placed = put_on_devices(params, replicated(mesh))
        to_longest = pads_to_longest(devices.padding, mesh)
        return cls(network.graphdef, placed, tokenizer, config.model, step, mesh, pads_to_longest=to_longest)

    @property
    def max_length(self) -> int:
        """Most tokens of a sentence, on either side, that every network of the ensemble can take."""
        return min(each.config.max_length for each in (self, *self.others))

    @property
    def networks(self) -> list[decoding.Network]:
        """This network and the others."""
        return [decoding.Network(each.graphdef, each.params) for each in (self, *self.others)]

    @property
    def batch_size(self) -> int:
        """How many sentences are validated together: what keeps a device of this kind busy."""
        return BATCH_SIZE_ON_CPU if self.mesh.devices.flat[0].platform == "cpu" else BATCH_SIZE

    def search_batch_size(self, longest: int, beams: int) -> int:
        """How many sentences, of at most so many tokens, are translated together by default."""
        rows = self.batch_size
        room = min(decoding.default_limit(longest), self.max_length)
        cached = 2 * sum(each.config.num_decoder_layers * each.config.embed_dim for each in (self, *self.others))
        while rows > BATCH_SIZE_ON_CPU and rows * beams * room * cached > MOST_CACHED_NUMBERS:
            rows //= 2
        return rows

    def length_batches(self, lengths: Sequence[int], rows: int) -> list[tuple[list[int], int]]:
        """Sentences of these lengths in groups of `rows`: their indices, and the length that they are padded to."""
        return list(length_batches(lengths, rows, self.max_length, same_length=self.pads_to_longest))

    def translate(
        self,
        lines: Sequence[str],
        options: DecodingOptions = DecodingOptions(),
        *,
        num_hypotheses: int = 1,
        prefixes: Sequence[str] | None = None,
        source_ids: Sequence[list[int]] | None = None,
        first_line: int | None = 1,
        after_batch: Callable[[int], None] = lambda sentences: None,
        **overrides: Any,
    ) -> list[Translation]:
        """Translates each line, in order; a line without a token becomes an empty line.

        A line longer than max_length is cut at every sentence end (see split_line), translated in parts and joined.

        Args:
          lines: detokenized text.
          num_hypotheses: how many to return for each line; of a search at most its beam_size.
          prefixes: text that each line's translation has to begin with, "" for any.
          source_ids: the lines' tokens, where they are known, as tokenizer.encode_source gives them.
          first_line: the number of lines[0], for the log and for what is drawn at random; None says nothing in the log.
          after_batch: called with the number of lines done since the last call; may raise to stop.
          overrides: fields of DecodingOptions, such as beam_size=5, instead of those of `options`.

        Raises:
          UserError: an option does not exist or is not possible with this model, or a prefix is not.
        """
        options = _overridden(options, overrides)
        self.check(options, num_hypotheses)
        _check_lines(lines, prefixes)
        source_ids = source_ids or self.tokenizer.encode_source(lines)
        parts = self._parts(lines, source_ids, prefixes or [""] * len(lines), options, first_line)
        options, batches = self._batches(parts, options)
        hypotheses: dict[int, tuple[Hypothesis, ...]] = {}  # of each part

        def search(batch: tuple[list[int], int]) -> Hypotheses:
            request = self._request([parts[i] for i in batch[0]], options, batch[1], first_line or 1)
            return decoding.search(
                self.networks, request, options, self.max_length, num_hypotheses, whole_batches=self.pads_to_longest
            )

        for (group, _), searched in map_concurrently(search, batches, num_concurrent_programs(self.mesh)):
            hypotheses.update(zip(group, self._texts(searched, len(group), num_hypotheses), strict=True))
            after_batch(sum(parts[i].part == 0 for i in group))
        if first_line is not None:
            cut_short = [i for i, part in enumerate(parts) if len(hypotheses[i][0].tokens) >= part.limit]
            _warn_of_limits({first_line + parts[i].line for i in cut_short})
        found: list[list[tuple[Hypothesis, ...]]] = [[] for _ in lines]
        for i, part in enumerate(parts):
            found[part.line].append(hypotheses[i])
        return [Translation(line, join_parts(own)) for line, own in zip(lines, found, strict=True)]

    def warm_up(
        self, lines: Sequence[str], options: DecodingOptions, source_ids: Sequence[list[int]] | None = None
    ) -> None:
        """Compiles the programs that translate(lines, options) runs, side by side, and runs none of them."""
        parts = self._parts(lines, source_ids or self.tokenizer.encode_source(lines), [""] * len(lines), options, None)
        options, batches = self._batches(parts, options)
        part = _Part(line=0, part=0, source=[], prefix=[], limit=1)

        def compile_search(length: int) -> None:
            request = self._request([part], options, length, 1)
            decoding.compile_search(
                self.networks, request, options, self.max_length, whole_batches=self.pads_to_longest
            )

        lengths = sorted({length for _, length in batches})
        compile_concurrently(*(functools.partial(compile_search, length) for length in lengths))

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        batch_size: int = SCORED_TOGETHER,
        after_batch: Callable[[int], None] = lambda sentences: None,
    ) -> list[ScoredTranslation]:
        """The probability that the model gives to each target as the translation of its source.

        Raises:
          UserError: a side of a pair is longer than max_length, or the numbers of lines differ.
        """
        if len(sources) != len(targets):
            raise UserError(f"{len(sources):,} sources, but {len(targets):,} translations; they must be aligned")
        source_ids, target_ids = self.tokenizer.encode_source(sources), self.tokenizer.encode_target(targets)
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        for number, length in enumerate(lengths, 1):
            if length > self.max_length:
                raise UserError(f"line {number} has {length} tokens; the model can score at most {self.max_length}")
        found: dict[int, ScoredTranslation] = {}
        for group, length in self.length_batches(lengths, batch_size):
            scores = decoding.log_probabilities(
                self.networks,
                self.batch([source_ids[i] for i in group], [target_ids[i] for i in group], batch_size, length),
            )
            for i, score in zip(group, scores, strict=False):  # the batch's last rows may be empty
                found[i] = ScoredTranslation(float(score), len(target_ids[i]))
            after_batch(len(group))
        return [found[i] for i in range(len(sources))]

    def search(self, source: np.ndarray, options: DecodingOptions, hidden: np.ndarray | None = None) -> Hypotheses:
        """source [B, S] -> the best hypothesis of each, [B, 1, L], computed on the devices.

        Where `hidden` [B, S] is True no layer may look at the source, as if there were padding.
        """
        rows = [ids[ids != PAD_ID].tolist() for ids in source]
        parts = [_Part(i, 0, ids, [], self._limit(len(ids), 0, options) if ids else 1) for i, ids in enumerate(rows)]
        options = options.model_copy(update={"batch_size": len(source)})
        request = self._request(parts, options, source.shape[1], 1, hidden)
        found = decoding.search(self.networks, request, options, self.max_length, whole_batches=self.pads_to_longest)
        return Hypotheses(*(array[: len(source)] for array in found))

    def batch(self, sources: Sequence[list[int]], targets: Sequence[list[int]], rows: int, length: int) -> Batch:
        """One pair a row, at least `rows` of them, shared out over the devices."""
        return put_on_devices(
            unpacked_batch(sources, targets, round_up_to_row_shards(self.mesh, rows), length),
            row_sharding(self.mesh),
        )

    def check(self, options: DecodingOptions, num_hypotheses: int = 1) -> None:
        """Raises UserError where this model cannot decode so."""
        options.check_num_hypotheses(num_hypotheses)
        for name in ("min_decoding_length", "max_decoding_length"):
            length = getattr(options, name)
            if length and length > self.max_length:
                raise UserError(f"{name} {length} exceeds the model's max_length {self.max_length}")

    def _limit(self, source_tokens: int, prefix_tokens: int, options: DecodingOptions) -> int:
        limit = max(decoding.default_limit(source_tokens) + prefix_tokens, options.min_decoding_length)
        return options.max_decoding_length or min(limit, self.max_length)

    def _parts(
        self,
        lines: Sequence[str],
        source_ids: Sequence[list[int]],
        prefixes: Sequence[str],
        options: DecodingOptions,
        first_line: int | None,
    ) -> list[_Part]:
        """What there is to translate of the lines: each as a whole, but for those that are too long."""
        parts: list[_Part] = []
        for line, (source, prefix) in enumerate(zip(source_ids, self._encode_prefixes(prefixes), strict=True)):
            sources = [source] if len(source) <= self.max_length else self._split(lines[line])
            if first_line is not None and len(sources) > 1:
                log.warning(
                    "line %d has %d tokens and the model takes %d at a time: translated in %d parts",
                    first_line + line, len(source) - 1, self.max_length - 1, len(sources),
                )  # fmt: skip
            for number, ids in enumerate(sources):
                begin = [] if number else prefix
                limit = self._limit(len(ids), len(begin), options)
                if len(begin) >= limit:
                    raise UserError(
                        f"line {(first_line or 1) + line}: its prefix has {len(begin)} tokens, but a translation may "
                        f"have {limit} with its end; shorten it"
                    )
                if len(ids) > 1:
                    parts.append(_Part(line, number, ids, begin, limit))
        return parts

    def _batches(
        self, parts: Sequence[_Part], options: DecodingOptions
    ) -> tuple[DecodingOptions, list[tuple[list[int], int]]]:
        """The options with the batch size that few parts need; and of each batch its parts' indices and length."""
        lengths = [len(part.source) for part in parts]
        most = options.batch_size or self.search_batch_size(max(lengths, default=1), options.beam_size)
        rows = min([size for size in SMALL_BATCHES if len(parts) <= size < most], default=most)
        return options.model_copy(update={"batch_size": rows}), self.length_batches(lengths, rows)

    def _split(self, line: str) -> list[list[int]]:
        """The ids of the parts of a line that is too long."""

        def fits(part: str) -> bool:
            return len(self.tokenizer.encode_source([part])[0]) <= self.max_length

        # Only a single character can still be too long: one that is spelled in more bytes than there is room for.
        return [cut(ids, self.max_length) for ids in self.tokenizer.encode_source(split_line(line, fits))]

    def _encode_prefixes(self, prefixes: Sequence[str]) -> list[list[int]]:
        encoded = [ids[:-1] for ids in self.tokenizer.encode_target(prefixes)]
        for prefix, ids in zip(prefixes, encoded, strict=True):
            if UNK_ID in ids:
                raise UserError(f'prefix "{prefix}": the model has no token for one of its characters')
        return encoded

    def _request(
        self,
        parts: Sequence[_Part],
        options: DecodingOptions,
        length: int,
        first_line: int,
        hidden: np.ndarray | None = None,
    ) -> decoding.Request:
        """The parts as a batch of at least options.batch_size rows, shared out over the devices.

        A row that only fills the batch is finished at once. Where `hidden` is True no layer looks.
        """
        assert options.batch_size
        rows = round_up_to_row_shards(self.mesh, options.batch_size)
        source = pad_rows([part.source for part in parts], rows, length)
        visible = (source != PAD_ID).astype(np.int32)
        if hidden is not None:
            visible[: len(hidden)] *= ~hidden
        limits = np.ones(rows, np.int32)
        limits[: len(parts)] = [part.limit for part in parts]
        numbers = np.zeros((rows, 2), np.int32)
        numbers[: len(parts)] = [(first_line + part.line, part.part) for part in parts]
        room = decoding.prefix_room(max(len(part.prefix) for part in parts))
        request = decoding.Request(
            source=source,
            visible=visible,
            limits=limits,
            minimums=np.minimum(limits, options.min_decoding_length).astype(np.int32),
            prefixes=pad_rows([part.prefix for part in parts], rows, room),
            numbers=numbers,
        )
        return put_on_devices(request, row_sharding(self.mesh))

    def _texts(self, hypotheses: Hypotheses, rows: int, count: int) -> list[tuple[Hypothesis, ...]]:
        tokens, scores = (array[:rows, :count] for array in hypotheses)
        return [
            tuple(
                Hypothesis(text, float(score), tuple(int(token) for token in ids[ids != PAD_ID]))
                for text, score, ids in zip(self.tokenizer.decode_target(beams), row, beams, strict=True)
                if score > IMPOSSIBLE / 2
            )
            for beams, row in zip(tokens, scores, strict=True)
        ]


def _warn_of_limits(reached: set[int]) -> None:
    """Names the lines whose translation has as many tokens as it may."""
    if reached:
        shown = ", ".join(map(str, sorted(reached)[:LINES_NAMED]))
        more = f" and {len(reached) - LINES_NAMED:,} more" if len(reached) > LINES_NAMED else ""
        log.warning("as many tokens as a translation may have, perhaps cut short: line %s%s", shown, more)


def _overridden(options: DecodingOptions, overrides: dict[str, Any]) -> DecodingOptions:
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


def _with_tag(tokenizer: Tokenizer, config: Config, target_language: str | None) -> Tokenizer:
    """The tokenizer that asks for a language, by default that of [data], where the model has learned to be asked."""
    if config.data.tag_target:
        return tokenizer.with_source_tag(target_language or config.data.target_language)
    if target_language:
        only = config.data.target_language
        raise UserError(
            f"the run has no tags (data.tag_target) to ask for {target_language}: it translates into {only}"
        )
    return tokenizer
