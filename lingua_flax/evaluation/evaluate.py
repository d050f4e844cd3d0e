"""Translating a set of lines and scoring the translations, line by line, against unmodified references; as a table."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rich.markup import escape
from rich.table import Table

from lingua_flax.data.augmentation import AUGMENTATIONS, augmented, no_final_punctuation
from lingua_flax.data.corpora.corpus import Corpus, FindReadings
from lingua_flax.evaluation.bleu import score
from lingua_flax.evaluation.contrast import count_contrast
from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU, comparability_note
from lingua_flax.host.terminal import print_table, progress_bar
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator

NUM_SAMPLES = 5  # translations to print


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Lines to translate and their references, with a title for the printed table.

    Attributes:
      find_readings: finds the readings of a contrast pair; given if lines 2i and 2i + 1 form such pairs.
      multi30k: target language and split of lines of Multi30k, which are also scored with its published protocol.
      more_references: other translations of all the sources, with which translations are compared, too.
    """

    title: str
    sources: Sequence[str]
    references: Sequence[str]
    find_readings: FindReadings | None = None
    multi30k: tuple[str, str] | None = None
    more_references: Sequence[Sequence[str]] = ()

    @classmethod
    def from_split(cls, corpus: Corpus, split: str) -> Self:
        """Returns a split of a corpus as an evaluation set; raises UserError if the corpus has no such split."""
        pairs = list(corpus.split(split))
        return cls(
            title=f"{corpus.name}, {split}",
            sources=[pair.source for pair in pairs],
            references=[pair.target for pair in pairs],
            find_readings=corpus.find_readings if split == "contrast" else None,
            multi30k=(corpus.target_language, split) if corpus.name == "multi30k" else None,
        )


def evaluate(
    translator: Translator,
    data: EvaluationSet,
    options: DecodingOptions,
    *,
    tokenize: str = "13a",
    with_ter: bool = False,
    after_batch: Callable[[int], None] = lambda sentences: None,
) -> tuple[list[str], dict[str, Any]]:
    """Translates the sources; returns the translations, and a record by the names in docs/reference/formats.md.

    The record has their scores, ignoring case if the model's output is lower case, and how they were decoded, with
    seconds without compilation. Contrast pairs are counted. BLEU uses sacreBLEU's tokenizer `tokenize`; `after_batch`
    is as for Translator.translate.
    """
    compile_started = time.monotonic()
    translator.warm_up(data.sources, options)
    started = time.monotonic()
    translations = [
        line.text for line in translator.translate_sentences(data.sources, options, after_batch=after_batch)
    ]
    seconds = time.monotonic() - started
    lowercase, references = translator.tokenizer.lowercase, [data.references, *data.more_references]
    record = score(translations, *references, tokenize=tokenize, lowercase=lowercase, with_ter=with_ter)
    if data.multi30k:
        metric = PublishedBLEU(data.multi30k[0])
        published = metric.corpus_score(translations, [data.references])
        record |= {"published_bleu": published.score, "published_signature": str(metric.get_signature())}
        record["published_reference_length"] = published.ref_len
    settings = ("temperature", "top_k", "top_p", "mbr_samples", "seed") if options.temperature else ("beam_size",)
    record |= {
        "checkpoint_step": translator.step,
        "parameters": translator.num_parameters,
        **{name: value for name in settings if (value := getattr(options, name)) is not None},
        "seconds": seconds,
        "sentences_per_second": len(translations) / seconds,
        "compile_seconds": started - compile_started,
    }
    if data.find_readings:
        normalize = str.casefold if lowercase else str
        normalized = [normalize(line) for line in translations], [normalize(line) for line in data.references]
        record |= count_contrast(translator, data.sources, *normalized, data.find_readings, options)
    return translations, record


def perturbed_scores(
    translator: Translator, data: EvaluationSet, options: DecodingOptions, tokenize: str, untouched: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Returns scores of the given translations of the untouched sources, and of those with each of the AUGMENTATIONS.

    All are compared with the same references, without regard to case and final punctuation: whether these should follow
    the source is a matter of taste, and the scores differ only by what else is lost.
    """
    references = [list(map(no_final_punctuation, each)) for each in (data.references, *data.more_references)]
    translations = {"untouched": untouched}
    with progress_bar(len(AUGMENTATIONS) * len(data.sources), "sentences") as advance:
        for name in AUGMENTATIONS:
            sources = [augmented(text, name, translator.languages[0]) for text in data.sources]
            lines = translator.translate_sentences(sources, options, after_batch=advance)
            translations[name] = [line.text for line in lines]
    return {
        name: score(list(map(no_final_punctuation, texts)), *references, tokenize=tokenize, lowercase=True)
        for name, texts in translations.items()
    }


def print_evaluation(
    workdirs: str,
    data: EvaluationSet,
    translations: Sequence[str],
    record: Mapping[str, Any],
) -> None:
    """Prints a table of what `evaluate` returned, also of `perturbed` sources, and a few translations, to stdout."""
    table = Table(title=escape(f"{workdirs}: {data.title}"), title_justify="left", show_header=False)
    lowercase = record["bleu_signature"] == record["bleu_lowercase_signature"]
    case = ", lower case" if lowercase else ""
    interval = "{bleu:.2f}  (95%: {bleu_low:.2f} to {bleu_high:.2f})".format(**record)
    table.add_row(f"BLEU{case}", interval, record["bleu_signature"])
    for label, name in (("BLEU, lower case", "bleu_lowercase"), (f"chrF{case}", "chrf"), (f"TER{case}", "ter")):
        if name in record and not (lowercase and name == "bleu_lowercase"):
            table.add_row(label, f"{record[name]:.2f}", record[f"{name}_signature"])
    if data.multi30k:
        comparable = comparability_note(record["published_reference_length"], *data.multi30k)
        table.add_row("BLEU, published protocol", f"{record['published_bleu']:.2f}", comparable)
    for name, scores in record.get("perturbed", {}).items():
        values = "BLEU {bleu:.2f}, chrF {chrf:.2f}".format(**scores)
        table.add_row(f"sources {name.replace('_', ' ')}", values, "without regard to case and final punctuation")
    for label, name, of in (
        ("contrast pairs right", "contrast_right", "contrast_pairs"),
        ("flipped by hiding the deciding word", "contrast_flipped", "contrast_masked_pairs"),
        ("flipped by hiding another word", "contrast_flipped_control", "contrast_masked_pairs"),
    ):
        if total := record.get(of):
            table.add_row(label, f"{record[name]} of {total}  ({record[name] / total:.1%})", "")
    speed = "{seconds:.1f} s, {sentences_per_second:.1f} a second".format(**record)
    table.add_row("sentences", f"{len(translations):,}", speed)
    table.add_row("compilation", f"{record['compile_seconds']:.1f} s", "")
    names = ("beam_size", "temperature", "top_k", "top_p", "mbr_samples", "seed")
    decoding = (f"{name.removesuffix('_size')} {record[name]}" for name in names if name in record)
    table.add_row("checkpoint", ", ".join([f"step {record['checkpoint_step']:,}", *decoding]), "")
    print_table(table)
    for i in sample_indices(len(data.sources), NUM_SAMPLES):
        print(f"\nsource       {data.sources[i]}\nreference    {data.references[i]}")
        print(f"translation  {translations[i]}")


def sample_indices(count: int, limit: int) -> Sequence[int]:
    """Returns up to `limit` evenly spaced indices of `count` lines, always the same ones."""
    return range(0, count, max(1, count // limit))[:limit]
