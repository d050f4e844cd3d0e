"""Everything a run needs before its first step, made and checked before anything is written into the workdir."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.corpora import prepared_corpus
from data.corpora.corpus import Corpus
from data.mixture import JoinedPairs, TrainingCorpus, open_training_corpora
from data.packing import Planner, TrainingPairs
from data.subword_sampling import SampledPairs
from data.tokenized_pairs import tokenize
from data.tokenizer import (
    Tokenizer,
    language_tag,
    load_tokenizer,
    model_paths,
    parse_tokenizers,
    read_models,
    train_tokenizer,
)
from data.training_batches import TrainingBatches, rows_per_epoch
from host.cache import cache_directory
from host.digests import json_digest
from host.errors import UserError
from options.config_files import CONFIG_NAME, read_workdir_config
from options.schema import MAX_COUNT, Config
from runs.checkpoint import saved_steps
from runs.workdir import Workdir
from training.fine_tuning import matching_params

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """corpora: as opened, that of [data] first; tokenizer: and its serialized model or models; planner: of batches of
    the tokenized training pairs that fit; num_steps: the run's length in steps, also where the config gives it in
    epochs; taken: the parameters to begin with where they are another run's, by path."""

    config: Config
    corpora: Sequence[TrainingCorpus]
    tokenizer: Tokenizer
    tokenizer_models: Sequence[bytes]
    planner: Planner
    num_steps: int
    taken: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def corpus(self) -> Corpus:
        """The one of [data], whose validation and test splits count."""
        return self.corpora[0].corpus

    @property
    def fingerprints(self) -> dict[str, str]:
        """What a checkpoint's data position and parameters are bound to."""
        return _fingerprints(self.corpora, self.tokenizer)

    @property
    def pairs_per_epoch(self) -> int:
        """All training pairs, of all corpora."""
        return len(self.planner.draws)

    def batches(self, kept: np.ndarray | None = None) -> TrainingBatches:
        """The training batches from their start; kept: the rows of each that are wanted, all by default."""
        return TrainingBatches(self.planner, self.config.rows_per_batch, kept)

    def validation_pairs(self) -> Sequence[tuple[str, str]]:
        """All (source, target) strings to validate on: none where the config or the corpus has no validation."""
        if not self.config.training.eval_every or "validation" not in self.corpus.splits:
            return []
        return list(self.corpus.split("validation"))


def prepare(config: Config, workdir: Path) -> Preparation:
    """Opens the corpora, loads the workdir's tokenizer or trains one, and tokenizes the training splits; where the run
    has not begun, takes the parameters it is to begin with.

    Raises:
      UserError: something in a corpus or the config cannot work.
    """
    corpora, tokenizer, models = open_with_tokenizer(config, workdir)
    tokenized = [_tokenized(config, training, corpora, tokenizer) for training in corpora]
    weights = [training.weight for training in corpora]
    planner = Planner(tokenized, weights, config.data.row_length, config.training.seed)
    if len(corpora) > 1:
        _log_shares(corpora, planner)
    tokenizer = _tagged(config, tokenizer, config.data.target_language)
    origin = config.training.init_from
    begun = bool(saved_steps(Workdir(workdir).checkpoints))
    if origin and begun:
        log.info("training.init_from is not read again: the run goes on from its own checkpoint")
    taken = matching_params(origin, config, tokenizer) if origin and not begun else {}
    num_steps = _num_steps(config, planner, _fingerprints(corpora, tokenizer))
    config = _with_warmup_steps(config, num_steps, workdir)
    return Preparation(config, corpora, tokenizer, models, planner, num_steps, taken)


def _fingerprints(corpora: Sequence[TrainingCorpus], tokenizer: Tokenizer) -> dict[str, str]:
    each = [training.corpus.fingerprint for training in corpora]
    corpus = each[0] if len(each) == 1 else json_digest(["mixture", each])
    return {"corpus": corpus, "tokenizer": tokenizer.fingerprint}


def open_with_tokenizer(
    config: Config, workdir: Path | None
) -> tuple[list[TrainingCorpus], Tokenizer, Sequence[bytes]]:
    """Opens the corpora; loads their tokenizer, the workdir's where it has one, or trains it. With the models of that.

    Raises:
      UserError: something in a corpus or the tokenizer's options cannot work.
    """
    corpora = open_training_corpora(config.data)
    for training in corpora:
        for note in training.corpus.notes:
            log.info("%s%s", _title(training, corpora), note)
    languages = config.data.target_languages
    if len(languages) > 1 and not config.data.tag_target:
        log.warning(
            "nothing tells the model which of %s to translate into: see data.tag_target", " and ".join(languages)
        )
    paths = _tokenizer_files(config, workdir)
    models = read_models(paths) if paths else _train_tokenizer(config, corpora)
    tokenizer = parse_tokenizers(models, [str(path) for path in paths] or ("source", "target"))
    _check_model_file(config.tokenizer.model_file, tokenizer, workdir)
    if config.data.tag_target:
        _check_tags(tokenizer, languages, paths)
    return corpora, tokenizer, models


def vocab_sizes(config: Config, workdir: Path | None) -> tuple[int, int]:
    """Pieces of the source's and the target's vocabulary: of the tokenizer that is there, else as the config asks."""
    paths = _tokenizer_files(config, workdir)
    if not paths:
        return config.tokenizer.vocab_size, config.tokenizer.vocab_size
    tokenizer = parse_tokenizers(read_models(paths), [str(path) for path in paths])
    return tokenizer.source_vocab_size, tokenizer.target_vocab_size


def _check_model_file(model_file: Path | None, tokenizer: Tokenizer, workdir: Path | None) -> None:
    """Raises UserError where the option names another tokenizer than the workdir's own, which is the one in use."""
    if model_file and model_file.exists() and load_tokenizer([model_file]).fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"tokenizer.model_file {model_file} is not the tokenizer that {workdir} was made with (the content "
            f"differs); name {workdir}/tokenizer.model, or choose another --workdir"
        )


def _check_tags(tokenizer: Tokenizer, languages: Sequence[str], paths: Sequence[Path]) -> None:
    try:
        for language in languages:
            tokenizer.with_source_tag(language)
    except UserError as error:
        tags = ",".join(map(language_tag, languages))
        raise UserError(f"{paths[0]}: {error}; train it with --control_symbols={tags}") from error


def _tagged(config: Config, tokenizer: Tokenizer, language: str) -> Tokenizer:
    return tokenizer.with_source_tag(language) if config.data.tag_target else tokenizer


def _title(training: TrainingCorpus, corpora: Sequence[TrainingCorpus]) -> str:
    """What a line of the log about one of several corpora begins with."""
    corpus = training.corpus
    languages = f"{corpus.source_language}-{corpus.target_language}"
    return f"{training.option}, {corpus.name} {languages}: " if len(corpora) > 1 else ""


def _tokenized(
    config: Config, training: TrainingCorpus, corpora: Sequence[TrainingCorpus], tokenizer: Tokenizer
) -> TrainingPairs:
    """The training pairs of a corpus that fit into a row, to be drawn in other segmentations where that is wanted."""
    corpus, longest, cache = training.corpus, config.data.row_length, cache_directory(config.data.cache_directory)
    tokenizer = _tagged(config, tokenizer, corpus.target_language)
    everything = tokenize(training.pairs, corpus.fingerprint, tokenizer, cache)
    pairs = everything.no_longer_than(longest)
    title = _title(training, corpora)
    log.info(
        "%skept %s of %s pairs, %s longer than %d tokens",
        title, f"{len(pairs):,}", f"{len(everything):,}", f"{len(everything) - len(pairs):,}", longest,
    )  # fmt: skip
    if not len(pairs):
        raise UserError(f"{title}no training pair fits into data.row_length {longest}; raise it")
    alpha = config.tokenizer.sampling_alpha
    return SampledPairs(pairs, training.pairs, tokenizer, alpha, longest) if alpha else pairs


def _log_shares(corpora: Sequence[TrainingCorpus], planner: Planner) -> None:
    total = sum(planner.weights)
    for training, own in zip(corpora, planner.corpora, strict=True):
        share = training.weight / total
        log.info(
            "%s%.1f%% of the training pairs drawn, each %.2f times an epoch",
            _title(training, corpora), 100 * share, share * len(planner.draws) / len(own),
        )  # fmt: skip


def _tokenizer_files(config: Config, workdir: Path | None) -> list[Path]:
    """The tokenizer that is there already: the workdir's own, else the one the config names, else that of the run whose
    parameters are taken; else nothing.

    A workdir's config is written after its tokenizer: one without a config may be another run's, killed before that.
    """
    own = model_paths(workdir, joint=config.tokenizer.joint) if workdir else []
    if workdir and all(path.exists() for path in [*own, workdir / CONFIG_NAME]):
        return own
    if config.tokenizer.model_file:
        return [config.tokenizer.model_file]
    origin = config.training.init_from
    return _tokenizer_of(origin, joint=config.tokenizer.joint) if origin else []


def _tokenizer_of(origin: Path, *, joint: bool) -> list[Path]:
    """Those of another run, which has to have as many."""
    if read_workdir_config(origin).tokenizer.joint != joint:
        raise UserError(
            f"{origin}: its tokenizer.joint is {not joint}, but that of this run is {joint}; they must agree"
        )
    return model_paths(origin, joint=joint)


def _train_tokenizer(config: Config, corpora: Sequence[TrainingCorpus]) -> list[bytes]:
    log.info("training the tokenizer: %s, %d pieces", config.tokenizer.kind, config.tokenizer.vocab_size)
    pairs = corpora[0].pairs if len(corpora) == 1 else JoinedPairs([training.pairs for training in corpora])
    return train_tokenizer(pairs, config.tokenizer, config.data.target_languages if config.data.tag_target else ())


def _num_steps(config: Config, planner: Planner, fingerprints: Mapping[str, str]) -> int:
    training = config.training
    if training.num_steps is not None:
        return training.num_steps
    assert training.num_epochs is not None  # one of the two has a value
    rows = _rows_per_epoch(config, planner, fingerprints)
    steps = math.ceil(training.num_epochs * rows / config.rows_per_batch)
    if steps > MAX_COUNT:
        raise UserError(
            f"training.num_epochs {training.num_epochs:g} are {steps:.2g} steps, and {MAX_COUNT:,} at most can be"
        )
    log.info("%g epochs are %d steps", training.num_epochs, steps)
    return steps


def _rows_per_epoch(config: Config, planner: Planner, fingerprints: Mapping[str, str]) -> float:
    """Counted once for what decides it, and kept beside the prepared corpora."""
    data, alpha = config.data, config.tokenizer.sampling_alpha
    key = json_digest(
        ["rows", fingerprints, planner.weights, data.tag_target, data.row_length, config.training.seed, alpha]
    )

    def count(folder: Path) -> None:
        (folder / "rows.json").write_text(json.dumps(rows_per_epoch(planner)))

    folder = prepared_corpus.prepare(cache_directory(data.cache_directory), "epochs", key, count)
    return float(json.loads((folder / "rows.json").read_text()))


def _with_warmup_steps(config: Config, num_steps: int, workdir: Path) -> Config:
    """The config with its warm-up in steps: a share becomes those of the workdir's config, or else is counted now.

    Raises:
      UserError: they are too many for the schedule.
    """
    optimizer = config.optimizer
    steps = counted = optimizer.num_warmup_steps(num_steps)
    if optimizer.warmup_share is not None and (workdir / CONFIG_NAME).exists():
        steps = read_workdir_config(workdir).optimizer.num_warmup_steps(num_steps)
    if steps != counted:
        log.info(
            "warm-up stays the %d steps that this run was made with; optimizer.warmup_share %g would now be %d",
            steps, optimizer.warmup_share, counted,
        )  # fmt: skip
    if optimizer.schedule == "cosine" and steps >= num_steps:
        raise UserError(
            f"optimizer.warmup_steps must be below these {num_steps} steps for the cosine schedule, got {steps}"
        )
    resolved = optimizer.model_copy(update={"warmup_steps": steps, "warmup_share": None})
    return config.model_copy(update={"optimizer": resolved})
