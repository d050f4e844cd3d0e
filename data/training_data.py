"""What a run is trained on: its corpora, their tokenizer, and the rows that their tokenized pairs fill."""

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lingua_flax.data.augmented_pairs import AugmentedPairs
from lingua_flax.data.corpora import prepared_corpus
from lingua_flax.data.corpora.corpus import Corpus
from lingua_flax.data.mixture import JoinedPairs, TrainingCorpus, open_training_corpora
from lingua_flax.data.packing import Planner
from lingua_flax.data.subword_sampling import samplers_of
from lingua_flax.data.tokenized_pairs import TokenizedPairs, tokenize
from lingua_flax.data.tokenizer import MIXTURE_TAG, Tokenizer, parse_tokenizers, read_models, train_tokenizer
from lingua_flax.data.training_batches import rows_per_epoch
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import Config, DataConfig

ROWS_FORMAT = 3  # increase it when the same pairs fill another number of rows
SAMPLED_LENGTHS = 100_000  # of sentences
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingData:
    """The open corpora of a run, that of [data] first, and what is made of them; see `open_training_data`."""

    config: Config
    corpora: Sequence[TrainingCorpus]
    tokenizer: Tokenizer  # with the tags of the first corpus
    tokenizer_models: Sequence[bytes]  # serialized: one model, or one for each side
    planner: Planner

    @property
    def corpus(self) -> Corpus:
        """That of [data], which provides the validation and test splits."""
        return self.corpora[0].corpus

    @functools.cached_property
    def data_digests(self) -> Mapping[str, str]:
        """Digests of data and tokenizer, which a checkpoint must match to be resumed."""
        corpus, *mixture = (training.corpus.digest for training in self.corpora)
        return {"corpus": corpus, "mixture": json_digest(mixture), "tokenizer": self.tokenizer.digest}

    def rows_per_epoch(self) -> int:
        """Returns the rows that the pairs of one epoch fill; counted once and cached with the prepared corpora."""
        data, planner, alpha = self.config.data, self.planner, self.config.tokenizer.sampling_alpha
        tags = [data.tag_target, *(entry.tag_source for entry in data.mixture)]
        described = [self.data_digests, planner.weights, tags, data.row_length, planner.seed, alpha, dict(data.augment)]
        key = json_digest(["rows", ROWS_FORMAT, *described])

        def count(folder: Path) -> None:
            (folder / "rows.json").write_text(json.dumps(rows_per_epoch(planner)))

        folder = prepared_corpus.cached_folder(cache_directory(data.cache_directory), "epochs", key, count)
        try:
            return int(json.loads((folder / "rows.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise prepared_corpus.damaged(folder, error) from error


def open_training_data(config: Config, tokenizer_files: Sequence[Path] = ()) -> TrainingData:
    """Opens the corpora, loads their tokenizer from files or else trains it, tokenizes the pairs and plans their rows.

    Logs what the corpora have to say, and the share and lengths of the pairs. Raises UserError if a corpus or the
    options of the tokenizer are invalid.
    """
    corpora = open_training_corpora(config.data)
    for training in corpora:
        for note in training.corpus.notes:
            log.info("%s%s", training.prefix, note)
    languages = " and ".join(config.data.target_languages)
    if len(config.data.target_languages) > 1 and not config.data.tag_target:
        log.warning("nothing tells the model which of %s to translate into: see data.tag_target", languages)
    models = read_models(tokenizer_files) if tokenizer_files else _train_tokenizer(config, corpora)
    tokenizer = parse_tokenizers(models, list(map(str, tokenizer_files)) or ("source", "target"))
    try:
        tokenizers = [training.tagged(tokenizer) for training in corpora]
    except UserError as error:
        remedy = f"train it with --control_symbols={','.join(_tags(corpora))}"
        raise UserError(f"{tokenizer_files[0]}: {error}; {remedy}") from error
    row_length, fractions, alpha = config.data.row_length, dict(config.data.augment), config.tokenizer.sampling_alpha
    tokenized, augmented = [], []
    for training, tagged in zip(corpora, tokenizers, strict=True):
        tokenized.append(_tokenized_pairs(config.data, training, tagged))
        if alpha or any(fractions.values()):
            samplers = samplers_of(tagged, alpha) if alpha else None
            text = (training.pairs, training.corpus.languages)
            augmented.append(AugmentedPairs(tokenized[-1], *text, tagged, row_length, fractions, samplers))
    weights = _weights(config.data, corpora)
    planner = Planner(tokenized, weights, row_length, config.training.seed, augmented)
    if len(corpora) > 1:
        _log_shares(corpora, planner)
    return TrainingData(config, corpora, tokenizers[0], models, planner)


def _train_tokenizer(config: Config, corpora: Sequence[TrainingCorpus]) -> list[bytes]:
    log.info("training the tokenizer: %s, %d pieces", config.tokenizer.kind, config.tokenizer.vocab_size)
    pairs = JoinedPairs([training.pairs for training in corpora])
    # Of a mixture, capitals are those of the languages of [data].
    languages = corpora[0].corpus.languages
    return train_tokenizer(pairs, config.tokenizer, _tags(corpora), dict(config.data.augment), languages)


def _tags(corpora: Sequence[TrainingCorpus]) -> list[str]:
    """Returns the tags with which sources begin: those of the target languages, and then that of a mixture."""
    tags = dict.fromkeys(tag for training in corpora for tag in training.tags)
    return sorted(tags, key=lambda tag: tag == MIXTURE_TAG)


def _tokenized_pairs(config: DataConfig, training: TrainingCorpus, tokenizer: Tokenizer) -> TokenizedPairs:
    """Returns the pairs that fit into a row, and logs how many these are and how long the sentences are."""
    cache = cache_directory(config.cache_directory)
    all_pairs = tokenize(training.pairs, training.corpus.digest, tokenizer, cache)
    pairs = all_pairs.no_longer_than(config.row_length)
    kept, total, longer = (f"{count:,}" for count in (len(pairs), len(all_pairs), len(all_pairs) - len(pairs)))
    sample = np.unique(np.linspace(0, len(all_pairs) - 1, SAMPLED_LENGTHS, dtype=np.int64))
    sides = (all_pairs.source, all_pairs.target)
    lengths = (np.percentile(side.lengths(sample), 99, method="inverted_cdf") for side in sides)
    message = "%skept %s of %s pairs, %s longer than %d tokens; 99%% have at most %d and %d"
    log.info(message, training.prefix, kept, total, longer, config.row_length, *lengths)
    if not len(pairs):
        raise UserError(f"{training.prefix}no training pair fits into data.row_length {config.row_length}; raise it")
    return pairs


def _weights(config: DataConfig, corpora: Sequence[TrainingCorpus]) -> list[float]:
    """Returns the weights by which pairs are drawn from the corpora: with a temperature, by their sizes, too."""
    if config.temperature is None:
        return [training.weight for training in corpora]
    scaled = [training.weight * len(training.pairs) ** (1 / config.temperature) for training in corpora]
    return [weight / sum(scaled) for weight in scaled]


def _log_shares(corpora: Sequence[TrainingCorpus], planner: Planner) -> None:
    message = "%s%.1f%% of the training pairs drawn, each %.2f times an epoch"
    for training, pairs, weight in zip(corpora, planner.corpora, planner.weights, strict=True):
        share = weight / sum(planner.weights)
        times = share * len(planner.draws) / len(pairs)
        log.info(message, training.prefix, 100 * share, times)
