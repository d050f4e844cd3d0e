"""Translating and scoring lines of text.

They are tokenized, decoded in batches of a few padded lengths, and returned in order:

    from lingua_flax import Translator

    translator = Translator.load("checkpoints/tiny")
    for translation in translator.translate(["I swam across the river."], beam_size=5):
        print(translation.text, translation.hypotheses[0].score)
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from lingua_flax.data.batch import length_batches
from lingua_flax.data.glossary import Glossary
from lingua_flax.data.placeholders import Protected
from lingua_flax.data.tokenizer import language_tag
from lingua_flax.devices.compilation import compile_concurrently, compiled_program
from lingua_flax.devices.mesh import round_up_to_row_shards
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.devices.sharding import put_on_devices, row_sharding
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.messages import validated
from lingua_flax.options.schema import ComputeConfig, DecodingOptions
from lingua_flax.options.special_ids import PAD_ID
from lingua_flax.translation import decoding
from lingua_flax.translation.hypotheses import Hypothesis, ScoredTranslation, Translation
from lingua_flax.translation.line_splitting import divide_sentences, divide_text
from lingua_flax.translation.line_warnings import warn_after_search, warn_before_search
from lingua_flax.translation.loading import SCORING_BATCH_SIZE, TrainedNetwork, load_networks
from lingua_flax.translation.parallel import map_concurrently, num_concurrent_programs
from lingua_flax.translation.requests import Part, Request, most_hypotheses, request_of, to_search
from lingua_flax.translation.search import IMPOSSIBLE, Hypotheses

# A few sentences are padded to one of these batch sizes instead of a full batch, which is faster to run and to compile.
SMALL_BATCH_SIZES = (1, 4, 16)
BATCH_SIZE_ON_CPU, BATCH_SIZE = 64, 512
# Maximum number of elements of a batch's keys and values, 4 GB in bfloat16; beyond it, fewer sentences are decoded
# together. The base model just exceeds it with 512 sentences of 64 tokens and 5 beams, for which the compiler for a TPU
# v5e reports 9.7 GB of temporaries (docs/results/index.md).
MAX_CACHE_ELEMENTS = 2**31


@dataclasses.dataclass(frozen=True, repr=False)
class Translator(TrainedNetwork):
    """A trained network, or an ensemble, that translates and scores text.

    Replacing `params` (dataclasses.replace) does not require recompilation.
    """

    def __repr__(self) -> str:
        steps, device = " ".join(map(str, self.steps)), self.mesh.devices.flat[0].platform
        step = f"{len(self.steps)} networks, steps {steps}" if self.others else f"step {steps}"
        return f"Translator({'-'.join(self.languages)}, {step}, {self.num_parameters:,} parameters, {device})"

    @classmethod
    def load(
        cls,
        workdir: str | Path,
        checkpoint: str = "best",
        devices: ComputeConfig | None = None,
        target_language: str | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> Self:
        """Loads the tokenizer of a run and the parameters of a checkpoint.

        Args:
          workdir: folder of the run.
          checkpoint: best, last, the number of a step, or average:N for the mean of the newest N checkpoints.
          devices: platform, precision and padding to use, by default those of the run's config.
          target_language: for a model trained with data.tag_target; by default data.target_language.
          ensemble: workdirs of further runs with the same tokenizer; the same `checkpoint` is loaded from each.

        Raises:
          UserError: a workdir, its tokenizer or the checkpoint is missing or damaged; the model cannot translate into
            `target_language`; the tokenizers or the languages of an ensemble differ; or no device of the requested
            platform exists.
        """
        workdirs = [Path(path) for path in (workdir, *ensemble)]
        return cls(**vars(load_networks(workdirs, checkpoint, devices, target_language)))

    def with_glossary(self, glossary: Glossary) -> Self:
        """Returns the translator that keeps to a glossary; raises UserError if the network has no placeholders."""
        if not self.tokenizer.placeholders:
            raise UserError("a glossary needs a network with placeholders: train it with tokenizer.placeholders = 8")
        return dataclasses.replace(self, tokenizer=dataclasses.replace(self.tokenizer, glossary=glossary))

    def into(self, source: str, target: str) -> Self:
        """Returns the translator between other languages; raises UserError if the network has no tag for the target."""
        untagged = dataclasses.replace(self.tokenizer, source_tags=())
        tokenizer = untagged.with_source_tag(language_tag(target))
        return dataclasses.replace(self, tokenizer=tokenizer, languages=(source, target))

    @property
    def batch_size(self) -> int:
        """The number of sentences that are validated together, large enough to keep the kind of device busy."""
        return BATCH_SIZE_ON_CPU if self.mesh.devices.flat[0].platform == "cpu" else BATCH_SIZE

    def decoding_batch_size(self, longest: int, beams: int) -> int:
        """Returns the default number of sentences that are translated together if the longest has `longest` tokens."""
        rows = self.batch_size
        positions = min(decoding.default_max_length(longest), self.max_length)
        sizes = (member.config for member in self.members)
        per_position = 2 * sum(config.num_decoder_layers * config.embed_dim for config in sizes)
        while rows > BATCH_SIZE_ON_CPU and rows * beams * positions * per_position > MAX_CACHE_ELEMENTS:
            rows //= 2
        return rows

    def translate(
        self,
        lines: Sequence[str],
        options: DecodingOptions = DecodingOptions(),
        *,
        num_hypotheses: int = 1,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
        warn: bool = True,
        after_batch: Callable[[int], None] = lambda sentences: None,
        **overrides: Any,
    ) -> list[Translation]:
        """Translates each line of a text and returns the translations in order; an empty line stays empty.

        Every sentence of a line is translated by itself, and so is every part of a sentence longer than max_length;
        between the translations stands the white space that stood between the sentences (see `divide_text`). What has
        no letters, such as "1.", stays as it is.

        Args:
          lines: detokenized text.
          options: how to decode.
          num_hypotheses: number of hypotheses to return for each line; for a search, at most its beam_size. Those of a
            line with several sentences are the best of each sentence, the second best of each, and so on.
          prefixes: text that the translation of each line must begin with, "" for none.
          first_line: number of lines[0], used in messages and to seed sampling.
          warn: whether to log lines that are cut, not translated or unknown, or whose translation reaches its limit.
          after_batch: called with the number of lines of which nothing is translated or the first part is kept, then
            after each batch with the number of lines whose first part was in it; may raise to stop.
          **overrides: fields of DecodingOptions that replace those of `options`, such as beam_size=5.

        Raises:
          UserError: an option or a prefix is invalid, or not possible with this model.
          TypeError: `lines` is a single string.
        """
        divided = divide_text(self, lines)
        request = self.request(options, num_hypotheses, first_line, **overrides)
        if prefixes is not None and len(prefixes) != len(lines):
            raise UserError(f"{len(lines):,} lines, but {len(prefixes):,} prefixes; there must be one for each line")
        return self._translated(lines, divided, request, prefixes or (), warn=warn, after_batch=after_batch)

    def translate_sentences(
        self,
        sentences: Sequence[str],
        options: DecodingOptions = DecodingOptions(),
        *,
        first_line: int = 1,
        warn: bool = True,
        after_batch: Callable[[int], None] = lambda sentences: None,
        **overrides: Any,
    ) -> list[Translation]:
        """Translates sentences of a corpus, whatever they consist of, without looking up words; as `translate`."""
        divided = divide_sentences(self, sentences)
        request = self.request(options, 1, first_line, **overrides)
        return self._translated(sentences, divided, request, (), warn=warn, after_batch=after_batch)

    def request(
        self, options: DecodingOptions, num_hypotheses: int = 1, first_line: int = 1, **overrides: Any
    ) -> Request:
        """Returns what is asked for; raises UserError if this model cannot do that. Arguments as in `translate`."""
        if overrides:
            given = {name: getattr(options, name) for name in DecodingOptions.model_fields}
            options = validated(DecodingOptions, given | overrides)
        self.check(options, num_hypotheses)
        return Request(self.tokenizer, self.max_length, options, num_hypotheses, first_line)

    def _translated(
        self,
        lines: Sequence[str],
        divided: Sequence[Sequence[Part]],
        request: Request,
        prefixes: Sequence[str],
        *,
        warn: bool,
        after_batch: Callable[[int], None],
    ) -> list[Translation]:
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines, not a single string")
        parts = request.parts(divided, prefixes)
        if warn:
            warn_before_search(divided, parts, prefixes, request.first_line, self.max_length)
        searched = to_search(parts)
        after_batch(len(lines) - sum(part.part == 0 for part in searched))  # begun without a batch
        found = self.search(searched, most_hypotheses(searched), request.options, after_batch)
        parts = request.restored(parts, found)
        around = to_search(parts)
        found = self.search(around, most_hypotheses(around), request.options, lambda _: after_batch(0))
        parts = request.restored(parts, found)
        translations = request.joined(lines, parts)
        if warn:
            warn_after_search(translations, parts, around, request.first_line)
        return translations

    def search(
        self,
        parts: Sequence[Part],
        num_hypotheses: int,
        options: DecodingOptions,
        after_batch: Callable[[int], None] = lambda sentences: None,
    ) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each part, best first, in batches; arguments as in `translate`."""
        rows, batches = self._batches(parts, options, num_hypotheses)

        def decode(batch: tuple[list[int], int]) -> Hypotheses:
            group, length = batch
            arguments = self.arguments([parts[i] for i in group], options, rows, length, num_hypotheses)
            return decoding.decode_batch(*arguments)

        found: dict[int, tuple[Hypothesis, ...]] = {}
        for (group, _), decoded in map_concurrently(decode, batches, num_concurrent_programs(self.mesh)):
            found.update(zip(group, self.detokenized(decoded, len(group)), strict=True))
            after_batch(sum(parts[i].part == 0 for i in group))
        return [found[i] for i in range(len(parts))]

    def warm_up(self, lines: Sequence[str], options: DecodingOptions) -> None:
        """Compiles the programs that translate runs for lines that are sentences, concurrently; does not run them."""
        parts = to_search(self.request(options).parts(divide_sentences(self, lines)))
        rows, batches = self._batches(parts, options, num_hypotheses=1)

        def compile_program(length: int) -> None:
            arguments = self.arguments([Part(Protected(""), [])], options, rows, length)
            compiled_program(decoding.search_or_sample, *arguments)

        lengths = sorted({length for _, length in batches})
        compile_concurrently(*(functools.partial(compile_program, length) for length in lengths))

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        batch_size: int = SCORING_BATCH_SIZE,
        after_batch: Callable[[int], None] = lambda sentences: None,
    ) -> list[ScoredTranslation]:
        """Returns the log-probability of each target as the translation of its source, in order.

        `after_batch` is called after each batch with its number of pairs. Raises UserError if one side of a pair is
        longer than max_length, or the numbers of lines differ.
        """
        if len(sources) != len(targets):
            raise UserError(f"{len(sources):,} sources, but {len(targets):,} translations; they must be aligned")
        source_ids, target_ids = self.tokenizer.encode_pairs(zip(sources, targets, strict=True))
        for number, pair in enumerate(zip(source_ids, target_ids, strict=True), 1):
            if (length := max(map(len, pair))) > self.max_length:
                raise UserError(f"line {number} has {length} tokens; the model can score at most {self.max_length}")
        scored: dict[int, ScoredTranslation] = {}
        for group, batch in self.pair_batches(source_ids, target_ids, batch_size):
            scores = gather_to_host(decoding.score_batch(self.networks, batch))
            for i, score in zip(group, scores, strict=False):  # the last rows of the batch may be empty
                scored[i] = ScoredTranslation(float(score), len(target_ids[i]))
            after_batch(len(group))
        return [scored[i] for i in range(len(sources))]

    def check(self, options: DecodingOptions, num_hypotheses: int = 1) -> None:
        """Raises UserError if this model cannot decode with these options."""
        options.check_num_hypotheses(num_hypotheses)
        for name in ("min_decoding_length", "max_decoding_length"):
            length = getattr(options, name)
            if length and length > self.max_length:
                raise UserError(f"{name} {length} exceeds the model's max_length {self.max_length}")

    def arguments(
        self,
        parts: Sequence[Part],
        options: DecodingOptions,
        rows: int,
        length: int,
        num_hypotheses: int = 1,
    ) -> tuple[list[decoding.Network], decoding.DecodingRequest, decoding.Decoding]:
        """Returns the arguments of `decode_batch` for a batch of parts; `rows` is rounded up as in `pair_batches`."""
        batch = request_of(parts, options, round_up_to_row_shards(self.mesh, rows), length)
        request = put_on_devices(batch, row_sharding(self.mesh))
        how = decoding.decoding_of(options, request, self.max_length, num_hypotheses, self.pads_to_longest)
        return self.networks, request, how

    def _batches(
        self, parts: Sequence[Part], options: DecodingOptions, num_hypotheses: int
    ) -> tuple[int, list[tuple[list[int], int]]]:
        """Returns the batch size, one of SMALL_BATCH_SIZES if that is enough, and the batches.

        A batch is the indices of its parts and their padded length.
        """
        lengths = [len(part.source) for part in parts]
        width = num_hypotheses if options.temperature else options.beam_size
        full = options.batch_size or self.decoding_batch_size(max(lengths, default=1), width)
        rows = min([size for size in SMALL_BATCH_SIZES if len(parts) <= size < full], default=full)
        return rows, list(length_batches(lengths, rows, self.max_length, same_length=self.pads_to_longest))

    def detokenized(self, hypotheses: Hypotheses, rows: int) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each of the first `rows` sentences, as text.

        Raises RunError if the network computes NaN or infinity, so that a sentence has no hypothesis with a score.
        """
        tokens, scores = (array[:rows] for array in hypotheses)
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
