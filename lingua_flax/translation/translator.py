"""Translating and scoring lines of text.

They are tokenized, decoded in batches of a few padded lengths, and returned in order:

    from lingua_flax import Translator

    translator = Translator.load("checkpoints/tiny")
    for translation in translator.translate(["I swam across the river."], beam_size=5):
        print(translation.text, translation.hypotheses[0].score)
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

from lingua_flax.data.glossary import Glossary
from lingua_flax.data.tokenizer import language_tag
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.host.errors import UserError
from lingua_flax.options.messages import validated
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation import decoding
from lingua_flax.translation.batched_search import compile_search, search_parts
from lingua_flax.translation.hypotheses import ScoredTranslation, Translation
from lingua_flax.translation.line_splitting import divide_text, split_lines
from lingua_flax.translation.line_warnings import LineWarnings
from lingua_flax.translation.loading import SCORING_BATCH_SIZE, TrainedNetwork
from lingua_flax.translation.requests import Part, Request, to_search


class Translator(TrainedNetwork):
    """A trained network, or an ensemble, that translates and scores text.

    Replacing `params` (dataclasses.replace) does not require recompilation.
    """

    def __repr__(self) -> str:
        steps, device = " ".join(map(str, self.steps)), self.mesh.devices.flat[0].platform
        step = f"{len(self.steps)} networks, steps {steps}" if self.others else f"step {steps}"
        return f"Translator({'-'.join(self.languages)}, {step}, {self.num_parameters:,} parameters, {device})"

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

    def translate(
        self,
        lines: Sequence[str],
        options: DecodingOptions | None = None,
        *,
        num_hypotheses: int = 1,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
        warn: bool = True,
        are_lines: bool = True,
        after_batch: Callable[[int], None] = lambda sentences: None,
        **overrides: Any,
    ) -> list[Translation]:
        """Translates each line of a text and returns the translations in order; an empty line stays empty.

        Every sentence of a line is translated by itself, and so is every part of a sentence longer than max_length;
        between the translations stands the white space that stood between the sentences (see `divide_text`). What has
        no letters, such as "1.", stays as it is.

        Args:
          lines: detokenized text.
          options: how to decode; by default as the run's config says.
          num_hypotheses: number of hypotheses to return for each line; for a search, at most its beam_size. Those of a
            line with several sentences are the best of each sentence, the second best of each, and so on.
          prefixes: text that the translation of each line must begin with, "" for none.
          first_line: number of lines[0], used in messages and to seed sampling.
          warn: whether to log lines that are cut, not translated or unknown, or whose translation reaches its limit.
          are_lines: whether warnings name lines by their numbers, and not, as what is no line, by their beginnings.
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
        warnings = LineWarnings(first_line, () if are_lines else lines) if warn else None
        return self._translated(lines, divided, request, prefixes or (), warnings, after_batch)

    def translate_sentences(
        self,
        sentences: Sequence[str],
        options: DecodingOptions | None = None,
        *,
        first_line: int = 1,
        warn: bool = True,
        after_batch: Callable[[int], None] = lambda sentences: None,
        **overrides: Any,
    ) -> list[Translation]:
        """Translates sentences of a corpus, whatever they consist of, without looking up words; as `translate`."""
        divided = split_lines(self, sentences, one_sentence=True)
        request = self.request(options, 1, first_line, **overrides)
        return self._translated(
            sentences, divided, request, (), LineWarnings(first_line) if warn else None, after_batch
        )

    def request(
        self, options: DecodingOptions | None, num_hypotheses: int = 1, first_line: int = 1, **overrides: Any
    ) -> Request:
        """Returns what is asked for; raises UserError if this model cannot do that. Arguments as in `translate`."""
        options = options or self.decoding
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
        warnings: LineWarnings | None,
        after_batch: Callable[[int], None],
    ) -> list[Translation]:
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines, not a single string")
        parts = request.parts(divided, prefixes)
        if warnings:
            warnings.before_search(divided, parts, prefixes, self.max_length)
        after_batch(len(lines) - sum(part.part == 0 for part in to_search(parts)))  # begun without a batch
        for report in (after_batch, lambda _: after_batch(0)):
            searched = to_search(parts)
            parts = request.restored(parts, search_parts(self, searched, request.options, report))
        translations = request.joined(lines, parts)
        if warnings:
            warnings.after_search(translations, parts, searched)
        return translations

    def warm_up(self, lines: Sequence[str], options: DecodingOptions) -> None:
        """Compiles the programs that translate runs for lines that are sentences, concurrently; does not run them."""
        parts = to_search(self.request(options).parts(split_lines(self, lines, one_sentence=True)))
        compile_search(self, parts, options)

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
