"""Preparation of a training run: everything is created and checked before anything is written to the workdir."""

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lingua_flax.data.cleaning import is_installed
from lingua_flax.data.cleaning.corpus_filters import correlation, find_shifts
from lingua_flax.data.cleaning.report import alignment_warnings
from lingua_flax.data.corpora import prepared_corpus
from lingua_flax.data.corpora.corpus import Corpus
from lingua_flax.data.corpora.held_out_splits import read_held_out
from lingua_flax.data.known_words import KnownWords, known_words
from lingua_flax.data.mixture import JoinedPairs, TrainingCorpus, open_training_corpora
from lingua_flax.data.packing import Planner
from lingua_flax.data.subword_sampling import samplers_of
from lingua_flax.data.tokenized_pairs import TokenizedPairs, tokenize
from lingua_flax.data.tokenizer import (
    MAX_UNKNOWN_SHARE,
    MIXTURE_TAG,
    Tokenizer,
    language_tag,
    load_tokenizer,
    model_paths,
    parse_tokenizers,
    read_models,
    train_tokenizer,
)
from lingua_flax.data.training_batches import TrainingBatches, rows_per_epoch
from lingua_flax.data.varied_pairs import VariedPairs
from lingua_flax.evaluation.bleu import bleu_tokenizer
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.digests import json_digest, short_digest
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import CONFIG_NAME, HELD_OUT_NAME, read_workdir_config
from lingua_flax.options.schema import FALLING_SCHEDULES, MAX_COUNT, Config, TokenizerConfig
from lingua_flax.runs.checkpoint import DamagedCheckpoint, check_corpus, saved_steps
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.fine_tuning import matching_params
from lingua_flax.training.validation import ValidationSet
from lingua_flax.translation.sentences import MAX_SEVERAL_SENTENCES, split_sentences

SAMPLED_LANGUAGES = 200  # pairs that tell whether the languages are swapped
SAMPLED_SOURCES = 10_000  # in which sentences are counted, in half a second
ROWS_FORMAT = 2  # increase it when the same pairs fill another number of rows
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation:
    """The prepared inputs of a training run."""

    config: Config  # resolved, with the warm-up in steps
    corpus: Corpus  # that of [data], which provides the validation and test splits
    tokenizer: Tokenizer  # with the tag of the target language if data.tag_target is set
    tokenizer_models: Sequence[bytes]  # serialized: one model, or one for each side
    words: KnownWords | None  # of the training text, and of that of training.init_from; None if the run resumes
    planner: Planner
    fingerprints: Mapping[str, str]  # digests of data and tokenizer, which a checkpoint must match to be resumed
    num_steps: int
    inherited: Mapping[str, Any]  # parameters copied from another run, by path
    several_sentences: float  # share of the training sources with more than one sentence, of a sample

    def batches(self, kept: np.ndarray | None = None) -> TrainingBatches:
        """Returns the training batches from the beginning, with the rows `kept` by this process, by default all."""
        return TrainingBatches(self.planner, self.config.rows_per_batch, kept)

    def validation_set(self) -> ValidationSet:
        """Returns the validation split, tokenized; empty if the config or the corpus has no validation.

        Raises UserError if sacreBLEU's tokenizer that the config names is not installed.
        """
        has_validation = self.config.training.eval_every and "validation" in self.corpus.splits
        pairs = list(self.corpus.split("validation")) if has_validation else []
        wanted, language = self.config.evaluation.tokenize, self.corpus.target_language
        tokenize = bleu_tokenizer(wanted, language, [target for _, target in pairs])
        return ValidationSet.of(pairs, self.tokenizer, tokenize)


def prepare(config: Config, workdir: Path) -> Preparation:
    """Opens the corpora, loads or trains the tokenizer, tokenizes the training splits, and reads initial parameters.

    Raises UserError if a corpus or the config is invalid.
    """
    corpora, tokenizer, models = open_with_tokenizer(config, workdir)
    has_checkpoint = bool(saved_steps(Workdir(workdir).checkpoints))
    for training in corpora:
        if training.corpus.name == "text" and not has_checkpoint:
            _warn_of_faults(training, _log_prefix(training, corpora))
    tokenized = [_tokenized_pairs(config, training, corpora, tokenizer) for training in corpora]
    weights = [training.weight for training in corpora]
    fractions, alpha = dict(config.data.augment), config.tokenizer.sampling_alpha
    varied = []
    if alpha or any(fractions.values()):
        for pairs, training in zip(tokenized, corpora, strict=True):
            tagged = tagged_tokenizer(config, training, tokenizer)
            samplers = samplers_of(tagged, alpha) if alpha else None
            varied.append(VariedPairs(pairs, training.pairs, tagged, config.data.row_length, fractions, samplers))
    planner = Planner(tokenized, weights, config.data.row_length, config.training.seed, varied)
    if len(corpora) > 1:
        _log_shares(corpora, planner)
    tokenizer = tagged_tokenizer(config, corpora[0], tokenizer)
    inherited: Mapping[str, Any] = {}
    if (origin := config.training.init_from) and has_checkpoint:
        log.info("training.init_from is not read again: the run resumes from its own checkpoint")
    elif origin:
        inherited = matching_params(origin, config, tokenizer)
        _warn_if_trained_on(origin, corpora[0].corpus)
    words = None if has_checkpoint else _known_words(config, corpora)
    corpus, *mixture = (training.corpus.fingerprint for training in corpora)
    fingerprints = {"corpus": corpus, "mixture": json_digest(mixture), "tokenizer": tokenizer.fingerprint}
    num_steps = _num_steps(config, planner, fingerprints)
    config = _with_warmup_steps(config, num_steps, workdir)
    several, main = _check_sources(corpora[0], tokenizer), corpora[0].corpus
    return Preparation(config, main, tokenizer, models, words, planner, fingerprints, num_steps, inherited, several)


def _known_words(config: Config, corpora: Sequence[TrainingCorpus]) -> KnownWords:
    """Returns the words of the run's sources, and those of the run from which it starts."""
    sources = (source for training in corpora for source, _ in training.pairs)
    return known_words(sources, KnownWords.load(origin).counts if (origin := config.training.init_from) else None)


def _warn_if_trained_on(origin: Path, corpus: Corpus) -> None:
    """Warns if another run, from which this one starts, was trained on test sentences of this one."""
    sources = {pair.source for pair in corpus.splits.get("test", ())}
    file = origin / HELD_OUT_NAME
    held_out = sum(read_held_out(file).values(), Counter[int]()) if file.exists() else {}  # it did not train on these
    asked = {source for source in sources if short_digest(source.encode()) not in held_out}
    if not asked:
        return
    try:
        theirs = open_training_corpora(read_workdir_config(origin).data)
        check_corpus(origin, saved_steps(Workdir(origin).checkpoints)[-1], theirs[0].corpus.fingerprint, "train")
    except (UserError, DamagedCheckpoint) as error:
        log.warning("it is not known whether %s was trained on test sentences of this run: %s", origin, error)
        return
    if found := asked.intersection(pair.source for each in theirs for pair in each.pairs):
        message = "%s was trained on %d of the %d test sentences of this run, whose scores will be too high"
        log.warning(message, origin, len(found), len(sources))


def _warn_of_faults(training: TrainingCorpus, prefix: str) -> None:
    """Warns if the sides of the user's files do not match or are swapped, which would waste the whole run."""
    pairs, corpus = training.pairs, training.corpus
    assert isinstance(pairs, prepared_corpus.StoredPairs)
    lengths = pairs.lengths()
    warnings = [*alignment_warnings(len(pairs), correlation(lengths), find_shifts(lengths))]
    sample = [pairs[int(number)] for number in np.unique(np.linspace(0, len(pairs) - 1, SAMPLED_LANGUAGES, dtype=int))]
    if is_installed():
        from lingua_flax.data.cleaning.pair_filters import are_swapped

        if are_swapped(sample, (corpus.source_language, corpus.target_language)):
            warnings.append(f"{corpus.source_language} and {corpus.target_language} seem to be swapped")
    for warning in warnings:
        log.warning("%s%s (of the pairs to train on; see lingua-flax clean)", prefix, warning)


def _check_sources(training: TrainingCorpus, tokenizer: Tokenizer) -> float:
    """Returns the share of sources with several sentences, of which a network trained on single ones omits some.

    Logs what follows from a large share, and warns if the tokenizer, perhaps of other text, misses many characters.
    """
    numbers = np.unique(np.linspace(0, len(training.pairs) - 1, SAMPLED_SOURCES, dtype=np.int64))
    sources = [training.pairs[int(number)][0] for number in numbers]
    unknown = map(tokenizer.unknown_share, sources, tokenizer.encode_source(sources))
    if (unknown_share := sum(unknown) / len(numbers)) > MAX_UNKNOWN_SHARE:
        message = "the tokenizer has no pieces for %.0f%% of the characters in %s: is it the right one?"
        log.warning(message, 100 * unknown_share, training.corpus.source_language)
    several = sum(len(split_sentences(source, training.corpus.source_language)) > 1 for source in sources)
    share = several / len(numbers)
    if share > MAX_SEVERAL_SENTENCES:
        consequence = "translation will take lines as they are, rather than sentence by sentence"
        log.info("%.0f%% of the training lines hold several sentences: %s", 100 * share, consequence)
    return share


def open_with_tokenizer(
    config: Config, workdir: Path | None
) -> tuple[list[TrainingCorpus], Tokenizer, Sequence[bytes]]:
    """Opens the corpora, and loads their tokenizer if it exists or trains it; returns its serialized models, too.

    Raises UserError if a corpus or the options of the tokenizer are invalid.
    """
    corpora = open_training_corpora(config.data)
    for training in corpora:
        for note in training.corpus.notes:
            log.info("%s%s", _log_prefix(training, corpora), note)
    languages = " and ".join(config.data.target_languages)
    if len(config.data.target_languages) > 1 and not config.data.tag_target:
        log.warning("nothing tells the model which of %s to translate into: see data.tag_target", languages)
    paths = _tokenizer_files(config, workdir)
    models = read_models(paths) if paths else _train_tokenizer(config, corpora)
    tokenizer = parse_tokenizers(models, [str(path) for path in paths] or ("source", "target"))
    given = config.tokenizer.model_file
    if given and given.exists() and load_tokenizer([given]).fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"tokenizer.model_file {given} is not the tokenizer that {workdir} was made with (the content "
            f"differs); set it to {workdir}/tokenizer.model, or choose another --workdir"
        )
    try:
        for tag in _tags(config):
            tokenizer.with_source_tag(tag)
    except UserError as error:
        raise UserError(f"{paths[0]}: {error}; train it with --control_symbols={','.join(_tags(config))}") from error
    return corpora, tokenizer, models


def vocab_sizes(config: Config, workdir: Path | None) -> tuple[int, int]:
    """Returns the source and target vocabulary sizes, from the tokenizer if it exists, otherwise from the config."""
    if not (paths := _tokenizer_files(config, workdir)):
        return config.tokenizer.vocab_size, config.tokenizer.vocab_size
    tokenizer = load_tokenizer(paths)
    return tokenizer.source_vocab_size, tokenizer.target_vocab_size


def _tags(config: Config) -> list[str]:
    """Returns the tags with which sources begin: those of the target languages, and that of corpora with tag_source."""
    languages = [language_tag(language) for language in config.data.target_languages if config.data.tag_target]
    return [*languages, *([MIXTURE_TAG] if any(entry.tag_source for entry in config.data.mixture) else [])]


def tagged_tokenizer(config: Config, training: TrainingCorpus, tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer that puts the tags of a training corpus before its sources."""
    if config.data.tag_target:
        tokenizer = tokenizer.with_source_tag(language_tag(training.corpus.target_language))
    return tokenizer.with_source_tag(MIXTURE_TAG) if training.tag_source else tokenizer


def _log_prefix(training: TrainingCorpus, corpora: Sequence[TrainingCorpus]) -> str:
    corpus = training.corpus
    languages = f"{corpus.source_language}-{corpus.target_language}"
    return f"{training.option}, {corpus.name} {languages}: " if len(corpora) > 1 else ""


def _tokenized_pairs(
    config: Config, training: TrainingCorpus, corpora: Sequence[TrainingCorpus], tokenizer: Tokenizer
) -> TokenizedPairs:
    corpus, row_length, cache = training.corpus, config.data.row_length, cache_directory(config.data.cache_directory)
    tokenizer = tagged_tokenizer(config, training, tokenizer)
    all_pairs = tokenize(training.pairs, corpus.fingerprint, tokenizer, cache)
    pairs = all_pairs.no_longer_than(row_length)
    prefix = _log_prefix(training, corpora)
    kept, total, longer = (f"{count:,}" for count in (len(pairs), len(all_pairs), len(all_pairs) - len(pairs)))
    log.info("%skept %s of %s pairs, %s longer than %d tokens", prefix, kept, total, longer, row_length)
    if not len(pairs):
        raise UserError(f"{prefix}no training pair fits into data.row_length {row_length}; raise it")
    return pairs


def _log_shares(corpora: Sequence[TrainingCorpus], planner: Planner) -> None:
    message = "%s%.1f%% of the training pairs drawn, each %.2f times an epoch"
    for training, pairs in zip(corpora, planner.corpora, strict=True):
        share = training.weight / sum(planner.weights)
        times = share * len(planner.draws) / len(pairs)
        log.info(message, _log_prefix(training, corpora), 100 * share, times)


def _tokenizer_files(config: Config, workdir: Path | None) -> list[Path]:
    """Returns the files of the existing tokenizer: in the workdir, tokenizer.model_file, or in training.init_from.

    That in a workdir without a config, which is written after it, may be that of another run, which was killed.
    """
    in_workdir = model_paths(workdir, joint=config.tokenizer.joint) if workdir else []
    if workdir and all(path.exists() for path in [*in_workdir, workdir / CONFIG_NAME]):
        return in_workdir
    if config.tokenizer.model_file:
        return _checked([config.tokenizer.model_file], config.tokenizer)
    if origin := config.training.init_from:
        return _checked(model_paths(origin, joint=read_workdir_config(origin).tokenizer.joint), config.tokenizer)
    return []


def _checked(paths: list[Path], wanted: TokenizerConfig) -> list[Path]:
    """Returns the paths; warns of options that this tokenizer was not trained with, and raises UserError for some."""
    from sentencepiece import sentencepiece_model_pb2 as proto  # slow to import, so only when needed

    tokenizer = load_tokenizer(paths)
    model = proto.ModelProto.FromString(tokenizer.target.serialized_model_proto())  # type: ignore[attr-defined]
    spec, rules = model.trainer_spec, model.normalizer_spec.name.removesuffix("_cf")
    theirs = {"joint": len(paths) == 1, "lowercase": tokenizer.lowercase, "placeholders": len(tokenizer.placeholders)}
    theirs |= {"kind": spec.ModelType.Name(spec.model_type).lower(), "vocab_size": tokenizer.target_vocab_size}
    theirs |= {"character_coverage": round(spec.character_coverage, 6), "byte_fallback": spec.byte_fallback}
    unused = [name for name, value in (theirs | {"normalization": rules}).items() if value != getattr(wanted, name)]
    for name in unused:
        if name in ("joint", "lowercase") or (name == "placeholders" and wanted.placeholders):
            raise UserError(f"{paths[0]}: tokenizer.{name} must be {theirs[name]} with it, not {getattr(wanted, name)}")
    if unused:
        log.warning("the tokenizer is %s, so this run's tokenizer.%s has no effect", paths[0], ", ".join(unused))
    return paths


def _train_tokenizer(config: Config, corpora: Sequence[TrainingCorpus]) -> list[bytes]:
    log.info("training the tokenizer: %s, %d pieces", config.tokenizer.kind, config.tokenizer.vocab_size)
    pairs = corpora[0].pairs if len(corpora) == 1 else JoinedPairs([training.pairs for training in corpora])
    return train_tokenizer(pairs, config.tokenizer, _tags(config), dict(config.data.augment))


def _num_steps(config: Config, planner: Planner, fingerprints: Mapping[str, str]) -> int:
    epochs = config.training.num_epochs
    if config.training.num_steps is not None:
        return config.training.num_steps
    assert epochs is not None  # one of the two has a value
    steps = math.ceil(epochs * _rows_per_epoch(config, planner, fingerprints) / config.rows_per_batch)
    if steps > MAX_COUNT:
        excess = f"{steps:.2g} steps, more than the maximum of {MAX_COUNT:,}"
        raise UserError(f"training.num_epochs {epochs:g} amounts to {excess}; lower it")
    log.info("training for %g epochs: %d steps", epochs, steps)
    return steps


def _rows_per_epoch(config: Config, planner: Planner, fingerprints: Mapping[str, str]) -> int:
    """Returns the rows that the pairs of one epoch fill; counted once and cached with the prepared corpora."""
    data, alpha = config.data, config.tokenizer.sampling_alpha
    tags = [data.tag_target, *(entry.tag_source for entry in data.mixture)]
    described = [fingerprints, planner.weights, tags, data.row_length, config.training.seed, alpha, dict(data.augment)]
    key = json_digest(["rows", ROWS_FORMAT, *described])

    def count(folder: Path) -> None:
        (folder / "rows.json").write_text(json.dumps(rows_per_epoch(planner)))

    folder = prepared_corpus.prepare(cache_directory(data.cache_directory), "epochs", key, count)
    try:
        return int(json.loads((folder / "rows.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise prepared_corpus.damaged(folder, error) from error


def _with_warmup_steps(config: Config, num_steps: int, workdir: Path) -> Config:
    """Returns the config with its warm-up in steps; raises UserError if the schedule does not allow that many.

    A share is replaced by the steps in the workdir's config, or by that share of num_steps if there is none.
    """
    optimizer = config.optimizer
    steps = computed = optimizer.num_warmup_steps(num_steps)
    if optimizer.warmup_share is not None and (workdir / CONFIG_NAME).exists():
        steps = read_workdir_config(workdir).optimizer.num_warmup_steps(num_steps)
    if steps != computed:
        now = f"optimizer.warmup_share {optimizer.warmup_share:g} would now be {computed}"
        log.info("warm-up stays at the %d steps with which this run was started; %s", steps, now)
    if optimizer.schedule in FALLING_SCHEDULES and steps >= num_steps:
        limit = f"below the run's {num_steps} steps for the {optimizer.schedule} schedule"
        raise UserError(f"optimizer.warmup_steps must be {limit}, got {steps}")
    resolved = optimizer.model_copy(update={"warmup_steps": steps, "warmup_share": None})
    return config.model_copy(update={"optimizer": resolved})
