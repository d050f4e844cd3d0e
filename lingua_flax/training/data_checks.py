"""What is wrong with the data of a run, as warnings in its log; of a million pairs, all checks take seconds."""

import logging
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import regex

from lingua_flax.data.cleaning import is_installed
from lingua_flax.data.cleaning.corpus_filters import correlation, find_shifts
from lingua_flax.data.cleaning.report import alignment_warnings
from lingua_flax.data.corpora.corpus import Corpus, Pair, PairSource
from lingua_flax.data.corpora.held_out_splits import read_held_out
from lingua_flax.data.corpora.prepared_corpus import StoredPairs
from lingua_flax.data.mixture import TrainingCorpus, open_training_corpora
from lingua_flax.data.placeholders import protect_pair
from lingua_flax.data.tokenizer import SPACE, Tokenizer
from lingua_flax.data.training_data import TrainingData
from lingua_flax.host.digests import short_digest
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import HELD_OUT_NAME, read_workdir_config
from lingua_flax.runs.checkpoint import DamagedCheckpoint, check_corpus, saved_steps
from lingua_flax.runs.workdir import Workdir
from lingua_flax.translation.sentences import MAX_SEVERAL_SENTENCES, split_sentences

SAMPLED_LANGUAGES = 200  # pairs that tell whether the languages are swapped
SAMPLED_PAIRS = 10_000  # in which sentences and characters are counted, each in half a second
MAX_CHANGED = 0.01  # share of sentences that may lose a character or be changed by normalization without a warning
_NO_LETTERS = regex.compile(r"[\p{Z}\p{P}\p{S}\p{C}]+")
log = logging.getLogger(__name__)


def check_data(data: TrainingData) -> None:
    """Warns of what would waste the run or spoil its scores.

    In each corpus: sides that do not match or are swapped if its files are the user's own, characters without a piece,
    and sentences that the tokenizer changes. In the other splits: sentences that this run is trained on, or the one
    from which it starts was.
    """
    for training in data.corpora:
        if training.corpus.is_of_user:
            _check_sides(training)
        _check_text(training, data.tokenizer)
    _check_held_out(data)
    if origin := data.config.training.init_from:
        _check_origin(origin, data.corpus)


def share_of_several_sentences(data: TrainingData) -> float:
    """Returns the share of the sources of [data] with several sentences, in a sample; logs what follows if it is large.

    A network that is trained on single sentences omits some of several.
    """
    sources, language = [source for source, _ in _sample(data.corpora[0].pairs)], data.corpus.source_language
    share = sum(len(split_sentences(source, language)) > 1 for source in sources) / len(sources)
    if share > MAX_SEVERAL_SENTENCES:
        consequence = "translation will take lines as they are, rather than sentence by sentence"
        log.info("%.0f%% of the training lines hold several sentences: %s", 100 * share, consequence)
    return share


def _sample(pairs: PairSource, count: int = SAMPLED_PAIRS) -> list[Pair]:
    return [pairs[int(number)] for number in np.unique(np.linspace(0, len(pairs) - 1, count, dtype=np.int64))]


def _check_sides(training: TrainingCorpus) -> None:
    pairs, corpus = training.pairs, training.corpus
    assert isinstance(pairs, StoredPairs)
    lengths = pairs.lengths()
    warnings = [*alignment_warnings(len(pairs), correlation(lengths), find_shifts(lengths))]
    if is_installed():
        from lingua_flax.data.cleaning.pair_filters import are_swapped

        if are_swapped(_sample(pairs, SAMPLED_LANGUAGES), (corpus.source_language, corpus.target_language)):
            warnings.append(f"{corpus.source_language} and {corpus.target_language} seem to be swapped")
    for warning in warnings:
        log.warning("%s%s (of the pairs to train on; see lingua-flax clean)", training.prefix, warning)


def _check_text(training: TrainingCorpus, tokenizer: Tokenizer) -> None:
    """Looks at a sample of both sides as the tokenizer takes them."""
    pairs = [protect_pair(pair, tokenizer.placeholders) for pair in _sample(training.pairs)]
    languages = (training.corpus.source_language, training.corpus.target_language)
    sides = zip(languages, (tokenizer.source, tokenizer.target), zip(*pairs, strict=True), strict=True)
    for language, processor, lines in sides:
        sample = f"{len(lines):,} sampled sentences in {language}"
        known = set(processor.id_to_piece(list(range(processor.get_piece_size()))))
        encoded = processor.encode(list(lines), out_type=str)
        if lost := sum(not known.issuperset(pieces) for pieces in encoded):
            unknown = Counter("".join(piece for pieces in encoded for piece in pieces if piece not in known))
            examples = ", ".join(character for character, _ in unknown.most_common(3))
            message = "%sthe tokenizer has no pieces for characters in %s of %s, such as %s: %s"
            consequence = "they are lost (see tokenizer.byte_fallback)"
            level = logging.WARNING if lost > MAX_CHANGED * len(lines) else logging.INFO  # a rare sign is no fault
            log.log(level, message, training.prefix, f"{lost:,}", sample, examples, consequence)
        normalized = zip(lines, processor.normalize(list(lines)), strict=True)
        changed = sum(_words(line) != _words(new.replace(SPACE, " ")) for line, new in normalized)
        if changed > MAX_CHANGED * len(lines):
            message = "%stokenizer.normalization changes words in %s of %s: is that wanted?"
            log.warning(message, training.prefix, f"{changed:,}", sample)


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _check_held_out(data: TrainingData) -> None:
    """Takes sentences for the same that differ in case, spaces and punctuation."""
    held_out = {name: pairs for name, pairs in data.corpus.splits.items() if name != "train"}
    splits = {
        name: [(_letters(source), _letters(target)) for source, target in pairs] for name, pairs in held_out.items()
    }
    sources = {source for pairs in splits.values() for source, _ in pairs}
    training = ((_letters(source), target) for corpus in data.corpora for source, target in corpus.pairs)
    trained = {(source, _letters(target)) for source, target in training if source in sources}
    sources = {source for source, _ in trained}
    for name, pairs in splits.items():
        if found := [pair for pair in pairs if pair[0] in sources]:
            same = sum(pair in trained for pair in found)
            message = "%d of the %d sentences of %s are also trained on, %d with the same translation"
            log.warning(message, len(found), len(pairs), name, same)


def _letters(text: str) -> str:
    """Returns a text without case, spaces and punctuation, or as it is if it has nothing else; a million take 4 s."""
    return _NO_LETTERS.sub("", text.casefold()) or text


def _check_origin(origin: Path, corpus: Corpus) -> None:
    """Warns if another run, from which this one starts, was trained on test sentences of this one."""
    sources = {pair.source for pair in corpus.splits.get("test", ())}
    file = origin / HELD_OUT_NAME
    pairs = chain.from_iterable(read_held_out(file).values() if file.exists() else ())
    held_out = {hashed for hashed, _ in pairs}  # sources on which it was not trained
    asked = {source for source in sources if short_digest(source.encode()) not in held_out}
    if not asked:
        return
    try:
        theirs = open_training_corpora(read_workdir_config(origin).data)
        check_corpus(origin, saved_steps(Workdir(origin).checkpoints)[-1], theirs[0].corpus.digest, "train")
    except (UserError, DamagedCheckpoint) as error:
        log.warning("it is not known whether %s was trained on test sentences of this run: %s", origin, error)
        return
    if found := asked.intersection(pair.source for each in theirs for pair in each.pairs):
        message = "%s was trained on %d of the %d test sentences of this run, whose scores will be too high"
        log.warning(message, origin, len(found), len(sources))
