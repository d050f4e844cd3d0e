"""Preparation of a training run: everything is created and checked before anything is written to the workdir."""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lingua_flax.data.known_words import KnownWords, known_words
from lingua_flax.data.mixture import TrainingCorpus
from lingua_flax.data.training_data import TrainingData, open_training_data
from lingua_flax.evaluation.bleu import bleu_tokenizer
from lingua_flax.evaluation.evaluate import sample_indices
from lingua_flax.options.config_files import ORIGIN_NAME
from lingua_flax.options.schema import Config
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.data_checks import check_data, share_of_several_sentences
from lingua_flax.training.fine_tuning import matching_params
from lingua_flax.training.given_tokenizer import given_tokenizer
from lingua_flax.training.schedule import steps_of_run, with_warmup_steps
from lingua_flax.training.validation import ValidationSet

VALIDATED_PAIRS = 3000  # of all directions together, if there are several
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation(TrainingData):
    """The prepared inputs of a training run: its data, with the warm-up of the config in steps, and what follows."""

    words: KnownWords | None  # of the training text, and of that of training.init_from; None if the run resumes
    origin: bytes | None  # where the network of training.init_from comes from, if it was imported; likewise
    num_steps: int
    inherited: Mapping[str, Any]  # parameters copied from another run, by path
    several_sentences: float  # share of the training sources with more than one sentence, of a sample

    def validation_sets(self) -> list[ValidationSet]:
        """Returns the validation splits, tokenized: one for each direction that a tag chooses, or that of [data] alone.

        Raises UserError if sacreBLEU's tokenizer that the config names is not installed.
        """
        if not self.config.training.eval_every:
            return []
        chosen: dict[tuple[str, str], TrainingCorpus] = {}
        for training in self.corpora if self.config.data.tag_target else self.corpora[:1]:
            if "validation" in training.corpus.splits:
                chosen.setdefault(training.corpus.languages, training)
        return [self._validation_set(training, len(chosen)) for training in chosen.values()]

    def _validation_set(self, training: TrainingCorpus, directions: int) -> ValidationSet:
        split = training.corpus.split("validation")
        limit = VALIDATED_PAIRS // directions if directions > 1 else len(split)
        pairs = [split[index] for index in sample_indices(len(split), limit)]
        untagged = dataclasses.replace(self.tokenizer, source_tags=())
        wanted, languages = self.config.evaluation.tokenize, training.corpus.languages
        tokenize = bleu_tokenizer(wanted, languages[1], [target for _, target in pairs])
        return ValidationSet.of(pairs, training.tagged(untagged), tokenize, languages)


def prepare(config: Config, workdir: Path) -> Preparation:
    """Opens the training data; checks them and reads initial parameters if the run is new; and resolves its length.

    Raises UserError if a corpus or the config is invalid.
    """
    data = open_training_data(config, given_tokenizer(config, workdir))
    words, described, inherited, origin = None, None, dict[str, Any](), config.training.init_from
    if not saved_steps(Workdir(workdir).checkpoints):
        check_data(data)
        inherited = matching_params(origin, config, data.tokenizer) if origin else {}
        sources = (source for training in data.corpora for source, _ in training.pairs)
        known = KnownWords.load(origin) if origin else None
        words = known if known and not known.tsv else known_words(sources, known.counts if known else None)
        where = origin and origin / ORIGIN_NAME
        described = where.read_bytes() if where and where.exists() else None
    elif origin:
        log.info("training.init_from is not read again: the run resumes from its own checkpoint")
    num_steps = steps_of_run(config, data)
    return Preparation(
        config=with_warmup_steps(config, num_steps, workdir),
        corpora=data.corpora,
        tokenizer=data.tokenizer,
        tokenizer_models=data.tokenizer_models,
        planner=data.planner,
        words=words,
        origin=described,
        num_steps=num_steps,
        inherited=inherited,
        several_sentences=share_of_several_sentences(data),
    )
