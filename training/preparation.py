"""Everything a run needs before its first step, made and checked before anything is written into the workdir."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.cache import cache_directory
from configs.errors import UserError
from configs.loading import CONFIG_NAME
from configs.schema import Config
from data.corpora import open_corpus
from data.corpora.corpus import Corpus, PairSource
from data.pipeline import TrainingBatches, rows_per_epoch
from data.tokenizer import Tokenizer, model_paths, parse_tokenizers, read_models, train_tokenizer
from data.tokens import TokenizedPairs, tokenize

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation:
    """corpus: as opened; tokenizer: and its serialized model or models; pairs: the tokenized training pairs that fit;
    num_steps: the run's length in steps, also where the config gives it in epochs."""

    config: Config
    corpus: Corpus
    tokenizer: Tokenizer
    tokenizer_models: Sequence[bytes]
    pairs: TokenizedPairs
    num_steps: int

    @property
    def fingerprints(self) -> dict[str, str]:
        """What a checkpoint's data position and parameters are bound to."""
        return {"corpus": self.corpus.fingerprint, "tokenizer": self.tokenizer.fingerprint}

    def batches(self) -> TrainingBatches:
        """The training batches from their start."""
        return TrainingBatches(
            self.pairs, self.config.rows_per_batch, self.config.data.row_length, self.config.training.seed
        )

    def validation_pairs(self) -> Sequence[tuple[str, str]]:
        """All (source, target) strings to validate on: none where the config or the corpus has no validation."""
        if not self.config.training.eval_every or "validation" not in self.corpus.splits:
            return []
        return list(self.corpus.split("validation"))


def prepare(config: Config, workdir: Path) -> Preparation:
    """Opens the corpus, loads the workdir's tokenizer or trains one, and tokenizes the training split.

    Raises:
      UserError: something in the corpus or the config cannot work.
    """
    corpus, tokenizer, models = open_with_tokenizer(config, workdir)
    train, cache = corpus.split("train"), cache_directory(config.data.cache_directory)
    everything = tokenize(train, corpus.fingerprint, "train", tokenizer, cache)
    pairs = everything.no_longer_than(config.data.row_length)
    left_out = len(everything) - len(pairs)
    log.info(
        "kept %s of %s pairs, %s longer than %d tokens",
        f"{len(pairs):,}", f"{len(everything):,}", f"{left_out:,}", config.data.row_length,
    )  # fmt: skip
    if not len(pairs):
        raise UserError(f"no training pair fits into data.row_length {config.data.row_length}; raise it")
    return Preparation(config, corpus, tokenizer, models, pairs, _num_steps(config, pairs))


def open_with_tokenizer(config: Config, workdir: Path | None) -> tuple[Corpus, Tokenizer, Sequence[bytes]]:
    """Opens the corpus; loads its tokenizer, the workdir's where it has one, or trains it. With the models of that.

    Raises:
      UserError: something in the corpus or the tokenizer's options cannot work.
    """
    corpus = open_corpus(config.data)
    for note in corpus.notes:
        log.info("%s", note)
    paths = _tokenizer_files(config, workdir)
    models = read_models(paths) if paths else _train_tokenizer(config, corpus.split("train"))
    tokenizer = parse_tokenizers(models, [str(path) for path in paths] or ("source", "target"))
    return corpus, tokenizer, models


def _tokenizer_files(config: Config, workdir: Path | None) -> list[Path]:
    """The tokenizer that is there already: the workdir's own, else the one the config names; else nothing.

    A workdir's config is written after its tokenizer: one without a config may be another run's, killed before that.
    """
    own = model_paths(workdir, joint=config.tokenizer.joint) if workdir else []
    if workdir and all(path.exists() for path in [*own, workdir / CONFIG_NAME]):
        return own
    return [config.tokenizer.model_file] if config.tokenizer.model_file else []


def _train_tokenizer(config: Config, train: PairSource) -> list[bytes]:
    log.info("training the tokenizer: %s, %d pieces", config.tokenizer.kind, config.tokenizer.vocab_size)
    return train_tokenizer(train, config.tokenizer)


def _num_steps(config: Config, pairs: TokenizedPairs) -> int:
    training = config.training
    if training.num_epochs is None:
        return training.num_steps
    rows = rows_per_epoch(pairs, config.data.row_length, training.seed)
    steps = math.ceil(training.num_epochs * rows / config.rows_per_batch)
    log.info("%g epochs are %d steps", training.num_epochs, steps)
    warmup = config.optimizer.warmup_steps
    if config.optimizer.schedule == "cosine" and warmup >= steps:
        raise UserError(
            f"optimizer.warmup_steps must be below these {steps} steps for the cosine schedule, got {warmup}"
        )
    return steps
