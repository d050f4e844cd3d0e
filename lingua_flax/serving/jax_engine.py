"""The engine that translates with JAX, as lingua-flax translate does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lingua_flax.host.malloc import release_freed_memory
from lingua_flax.options.schema import AlignmentOptions, DecodingOptions
from lingua_flax.serving.engine import Item, Result
from lingua_flax.translation.parallel import num_concurrent_programs
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import align_translations


class JaxEngine:
    """Translates with one translator for each target language."""

    aligns = True

    def __init__(self, translators: Mapping[str, Translator], options: DecodingOptions, alignment: AlignmentOptions):
        """Creates an engine and compiles its programs for all lengths and batch sizes, so that no request waits.

        Programs that align words are an exception: they are only compiled when they are needed.
        """
        first, *_ = translators.values()  # the others have the same programs
        # On a CPU, two halves of a batch are faster side by side than the whole (docs/results/performance.md).
        self.workers = num_concurrent_programs(first.mesh)
        self.max_batch = options.batch_size or max(1, first.batch_size // self.workers)
        self._options = options.model_copy(update={"batch_size": self.max_batch})
        self._translators = translators
        self._alignment = alignment
        first.warm_up_all(self._options)
        release_freed_memory()

    def translate(self, items: Sequence[Item]) -> list[Result]:
        """Translates the items, in order."""
        results = {
            target: iter(self._translate([item for item in items if item.target == target], translator))
            for target, translator in self._translators.items()
        }
        return [next(results[item.target]) for item in items]

    def _translate(self, items: Sequence[Item], translator: Translator) -> list[Result]:
        lines, count = [item.line for item in items], max((item.num_hypotheses for item in items), default=1)
        translations = translator.translate(lines, self._options, num_hypotheses=count, warn=False)
        aligned = [own for item, own in zip(items, translations, strict=True) if item.aligned]
        links = iter(align_translations(translator, aligned, self._alignment))
        return [
            Result([each.text for each in own.hypotheses[: item.num_hypotheses]], next(links) if item.aligned else [])
            for item, own in zip(items, translations, strict=True)
        ]
