"""Translating and scoring lines of text.

They are tokenized, decoded in batches of a few padded lengths, and returned in order:

    from lingua_flax import Translator

    translator = Translator.load("checkpoints/tiny")
    for translation in translator.translate(["I swam across the river."], beam_size=5):
        print(translation.text, translation.hypotheses[0].score)
"""

import dataclasses
import itertools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from lingua_flax.data.glossary import Glossary
from lingua_flax.data.tokenizer import MAX_UNKNOWN_SHARE, language_tag
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command
from lingua_flax.options.messages import validated
from lingua_flax.options.schema import ComputeConfig, DecodingOptions
from lingua_flax.options.special_ids import UNK_ID
from lingua_flax.translation import decoding, requests
from lingua_flax.translation.batched_search import compile_search, search_parts
from lingua_flax.translation.hypotheses import Hypothesis, ScoredTranslation, Translation, join_parts
from lingua_flax.translation.line_splitting import split_lines
from lingua_flax.translation.loading import SCORING_BATCH_SIZE, TrainedNetwork, load_networks
from lingua_flax.translation.word_alignment import align_translations

NOT_TRANSLATED = "not translated, because the network has never seen most of the characters of a sentence"
PREFIX_UNUSED = "prefix not used, because nothing of the line is translated"
UNKNOWN_WORDS = "words that the training text never had"
GUESSED = "the translation is a guess, because most words of a sentence are unknown"
TRANSLATED_AROUND = "translated around what must stay as it is, because the network omitted or repeated it"


Result = TypeVar("Result", covariant=True)
# Yields parts and the number of hypotheses that are wanted of each, is sent them, and returns the result.
Searches = Generator[tuple[list[requests.Part], int], list[tuple[Hypothesis, ...]], Result]


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

    def translate(
        self,
        lines: Sequence[str],
        options: DecodingOptions = DecodingOptions(),
        *,
        num_hypotheses: int = 1,
        one_sentence_per_line: bool | None = None,
        translate_unknown: bool | None = None,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
        warn: bool = True,
        after_batch: Callable[[int], None] = lambda sentences: None,
        **overrides: Any,
    ) -> list[Translation]:
        """Translates each line and returns the translations in order; a line without tokens becomes an empty line.

        Every sentence of a line is translated by itself, and so is every part of a sentence longer than max_length;
        between the translations stands the white space that stood between the sentences (see `split_lines`).

        Args:
          lines: detokenized text.
          options: how to decode.
          num_hypotheses: number of hypotheses to return for each line; for a search, at most its beam_size. Those of a
            line with several sentences are the best of each sentence, the second best of each, and so on.
          one_sentence_per_line: whether each line is a single sentence, divided only if it is too long; by default, if
            the lines that the network was trained on often hold several.
          translate_unknown: whether to translate what consists mostly of characters that the network has never seen.
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
        if overrides:
            given = {name: getattr(options, name) for name in DecodingOptions.model_fields}
            options = validated(DecodingOptions, given | overrides)
        self.check(options, num_hypotheses)
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines, not a single string")
        if prefixes is not None and len(prefixes) != len(lines):
            raise UserError(f"{len(lines):,} lines, but {len(prefixes):,} prefixes; there must be one for each line")
        divided = self.divided(lines, one_sentence_per_line, translate_unknown)
        parts = requests.parts_of(divided, prefixes, self.tokenizer, options, self.max_length, first_line)
        if warn:
            requests.warn_about_cut_sentences(divided, first_line, self.max_length)
            unknown = {part.line for part in parts if part.is_kept and UNK_ID in part.source}
            requests.warn_about(NOT_TRANSLATED, unknown)
            begun = {i for i, both in enumerate(zip(lines, prefixes or [], strict=False), first_line) if all(both)}
            requests.warn_about(PREFIX_UNUSED, begun - {part.line for part in parts if not part.is_kept})
        after_batch(len(lines) - sum(part.part == 0 and not part.is_kept for part in parts))  # begun without a batch
        searches = self._translated(parts, options, num_hypotheses)
        try:
            found = self.search(*next(searches), options, after_batch)
            while True:
                found = self.search(*searches.send(found), options, lambda _: after_batch(0))  # lines that are counted
        except StopIteration as end:
            translated, around = end.value
        translations = _joined(lines, translated, first_line)
        if warn:
            words = {line: own.unknown_words for line, own in enumerate(translations, first_line) if own.unknown_words}
            requests.warn_about(UNKNOWN_WORDS, words, lambda line: f"{line} ({requests.first_few(words[line])})")
            requests.warn_about(GUESSED, {part.line for part in parts if part.is_guess})
            requests.warn_about(TRANSLATED_AROUND, around)
            reached = {part.line for part, hypotheses in translated if len(hypotheses[0].tokens) >= part.limit}
            requests.warn_about("translation reached its length limit and may be cut short", reached)
        return translations

    def searches(
        self, lines: Sequence[str], options: DecodingOptions, num_hypotheses: int
    ) -> Searches[list[Translation]]:
        """Translates as `translate` does, without warnings, but lets the caller search."""
        parts = requests.parts_of(self.divided(lines), None, self.tokenizer, options, self.max_length)
        translated, _ = yield from self._translated(parts, options, num_hypotheses)
        return _joined(lines, translated)

    def _translated(
        self, parts: Sequence[requests.Part], options: DecodingOptions, num_hypotheses: int
    ) -> Searches[tuple[list[tuple[requests.Part, tuple[Hypothesis, ...]]], set[int]]]:
        """Returns the parts with their hypotheses, which have all that they must contain.

        If none of the best has, any hypothesis of the beam is taken that does; if there is none, the part is translated
        around what it must contain, as several parts. Also returns the numbers of the lines with such parts.
        """
        results = yield from self._complete(parts, num_hypotheses, num_hypotheses)
        incomplete = [i for i, hypotheses in enumerate(results) if not hypotheses]
        if incomplete and num_hypotheses < options.beam_size and not options.temperature:
            again = yield from self._complete([parts[i] for i in incomplete], options.beam_size, num_hypotheses)
            results = [hypotheses or again.pop(0) for hypotheses in results]
            incomplete = [i for i in incomplete if not results[i]]
        chunks = [requests.around_spans(parts[i], self.tokenizer, options, self.max_length) for i in incomplete]
        together = list(itertools.chain(*chunks))
        found = iter((yield from self._complete(together, num_hypotheses, num_hypotheses, insist=False)))
        by_part = {i: [(chunk, next(found)) for chunk in own] for i, own in zip(incomplete, chunks, strict=True)}
        translated = [pair for i, part in enumerate(parts) for pair in by_part.get(i, [(part, results[i])])]
        return translated, {parts[i].line for i in incomplete}

    def _complete(
        self, parts: Sequence[requests.Part], num_searched: int, num_hypotheses: int, *, insist: bool = True
    ) -> Searches[list[tuple[Hypothesis, ...]]]:
        """Returns the hypotheses of each part, with what it must contain; `insist`: only those that have all of it."""
        searched = [part for part in parts if not part.is_kept]
        found = iter((yield searched, num_searched))
        results = []
        for part in parts:
            protected = self.tokenizer.protect(part.text)
            if part.is_kept:
                results.append((Hypothesis(protected.untranslated, 0.0),) * num_hypotheses)
                continue
            hypotheses = [own for own in next(found) if protected.is_complete(own.text) or not insist][:num_hypotheses]
            results.append(tuple(dataclasses.replace(own, text=protected.restored(own.text)) for own in hypotheses))
        return results

    def search(
        self,
        parts: Sequence[requests.Part],
        num_hypotheses: int,
        options: DecodingOptions,
        after_batch: Callable[[int], None] = lambda sentences: None,
    ) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each part, best first, in batches; arguments as in `translate`."""
        needed = [part._replace(num_hypotheses=num_hypotheses) for part in parts]
        return search_parts(self, needed, options, after_batch)

    def divided(
        self,
        lines: Sequence[str],
        one_sentence_per_line: bool | None = None,
        translate_unknown: bool | None = None,
    ) -> list[list[requests.Part]]:
        """Returns the sentences of each line, and the parts of those that are too long; arguments as in `translate`."""
        one_sentence = self.one_sentence_per_line if one_sentence_per_line is None else one_sentence_per_line
        unknown = self.translate_unknown if translate_unknown is None else translate_unknown
        divided = split_lines(lines, self.tokenizer, self.languages, self.max_length, one_sentence=one_sentence)
        return [[self._looked_up(part, translate_unknown=unknown) for part in parts] for parts in divided]

    def _looked_up(self, part: requests.Part, *, translate_unknown: bool) -> requests.Part:
        """Returns a part with what the network does not know of it."""
        is_unknown = not translate_unknown and self.tokenizer.unknown_share(part.text, part.source) > MAX_UNKNOWN_SHARE
        if is_unknown or not self.tokenizer.protect(part.text).has_words_around_spans:
            return part._replace(is_kept=True)
        places, are_most = self.tokenizer.unknown_words(part.text)
        return part._replace(unknown=tuple(part.text[begin:end] for begin, end in places), is_guess=are_most)

    def translate_html(self, text: str, options: DecodingOptions = DecodingOptions(), **how: Any) -> str:
        """Returns HTML, a document or a fragment, with its text translated; arguments as in `translate`.

        Raises UserError if an option is invalid, or the extra text is not installed.
        """
        try:
            from lingua_flax.translation.html_text import HtmlText, Translated
        except ModuleNotFoundError as error:
            raise UserError(f"translating HTML needs the extra text: {install_command('text')}") from error
        page = HtmlText(text)
        pairs = list(zip(self.translate(page.texts, options, **how), page.needs_links, strict=True))
        links = iter(align_translations(self, [own for own, needs_links in pairs if needs_links]))
        return page.rendered([Translated(own.text, next(links) if needs_links else ()) for own, needs_links in pairs])

    def translate_sentences(
        self, lines: Sequence[str], options: DecodingOptions = DecodingOptions(), **how: Any
    ) -> list[Translation]:
        """Translates the lines of a corpus, each as one sentence, whatever its characters; no words are looked up."""
        own = dataclasses.replace(self, tokenizer=dataclasses.replace(self.tokenizer, words=None))
        return own.translate(lines, options, one_sentence_per_line=True, translate_unknown=True, **how)

    def warm_up(self, lines: Sequence[str], options: DecodingOptions) -> None:
        """Compiles the programs that translate runs for lines that are sentences, concurrently; does not run them."""
        divided = self.divided(lines, one_sentence_per_line=True, translate_unknown=True)
        parts = requests.parts_of(divided, None, self.tokenizer, options, self.max_length)
        parts = [part for part in parts if not part.is_kept]
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


def _joined(
    lines: Sequence[str], parts: Sequence[tuple[requests.Part, tuple[Hypothesis, ...]]], first_line: int = 1
) -> list[Translation]:
    by_line: list[list[tuple[str, str, tuple[Hypothesis, ...]]]] = [[] for _ in lines]
    unknown: list[dict[str, None]] = [{} for _ in lines]
    for part, hypotheses in parts:
        by_line[part.line - first_line].append((part.text, part.after, hypotheses))
        unknown[part.line - first_line] |= dict.fromkeys(part.unknown)
    return list(map(Translation, lines, map(join_parts, by_line), map(tuple, unknown)))
