"""SentencePiece for both sides: training it from a corpus, loading it, text to ids and back."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import sentencepiece

from data.corpora.corpus import Pair, PairSource
from host.errors import UserError
from options.schema import TokenizerConfig
from options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID

TRAINING_PAIRS = 500_000  # more lines barely change the pieces and cost minutes and gigabytes
TRAINING_THREADS = 4  # fixed: the unigram vocabulary depends on it
TAG_START = "<2"
SPACE = "\u2581"  # how a piece shows the space before a word
CONTROL_PIECES = ("<s>", "</s>")
# Decoded text is one line: a byte piece, or a piece of the corpus itself, can bring a line break.
LINE_BREAKS = str.maketrans({"\n": " ", "\r": " "})


@dataclass(frozen=True)
class Tokenizer:
    """Two SentencePiece processors, the same one twice where the vocabulary is joint.

    source_tag is the id of a piece such as <2fr> that is put before each source. It is a control piece, as <s> is: no
    text gives it, and a typed "<2fr>" is five characters like others.
    """

    source: sentencepiece.SentencePieceProcessor
    target: sentencepiece.SentencePieceProcessor
    source_tag: int | None = None

    @property
    def source_vocab_size(self) -> int:
        return self.source.get_piece_size()

    @property
    def target_vocab_size(self) -> int:
        return self.target.get_piece_size()

    @property
    def lowercase(self) -> bool:
        """Whether it folds case, so that translations come out in lower case."""
        return self.target.normalize("A").endswith("a")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of both models: a different one gives different ids."""
        models = self.source.serialized_model_proto() + self.target.serialized_model_proto()
        return hashlib.sha256(models).hexdigest()

    def with_source_tag(self, language: str) -> Tokenizer:
        """The tokenizer that puts this target language's tag before each source.

        Raises:
          UserError: it has no such tag.
        """
        source_tag = self.source.piece_to_id(language_tag(language))
        if not self.source.is_control(source_tag):
            pieces = [self.source.id_to_piece(i) for i in range(self.source_vocab_size) if self.source.is_control(i)]
            known = ", ".join(piece for piece in pieces if piece.startswith(TAG_START)) or "no tags"
            raise UserError(f"the tokenizer has no tag {language_tag(language)} for a target language; it has {known}")
        return replace(self, source_tag=source_tag)

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line: the source tag, where there is one and the line is not empty, tokens, EOS_ID."""
        return [add_special_ids(ids, self.source_tag) for ids in _encode(self.source, lines)]

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, ended by EOS_ID."""
        return [add_special_ids(ids) for ids in _encode(self.target, lines)]

    def decode_target(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """Plain text of each list of ids, always a single line."""
        return [self.target.decode([int(i) for i in ids]).translate(LINE_BREAKS) for ids in sentences]

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id as the model has it, SPACE included."""
        return [self.source.id_to_piece(int(i)) for i in ids]

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id as the model has it, SPACE included."""
        return [self.target.id_to_piece(int(i)) for i in ids]


def _encode(processor: sentencepiece.SentencePieceProcessor, lines: Sequence[str]) -> list[list[int]]:
    return processor.encode(list(lines)) if lines else []


def add_special_ids(ids: Sequence[int], tag: int | None = None) -> list[int]:
    """A line's ids with EOS_ID behind them and, where there are any, the tag before them."""
    return [*ids, EOS_ID] if tag is None or not ids else [tag, *ids, EOS_ID]


def language_tag(language: str) -> str:
    """The piece that asks for a target language, such as <2fr> (Johnson et al. 2017)."""
    return f"{TAG_START}{language}>"


def model_paths(directory: Path, *, joint: bool) -> list[Path]:
    """Where a workdir keeps its tokenizer: one file, or one for each side."""
    names = ["tokenizer.model"] if joint else ["tokenizer.source.model", "tokenizer.target.model"]
    return [directory / name for name in names]


def load_tokenizer(paths: Sequence[Path]) -> Tokenizer:
    """Loads a joint model, or a source and a target model.

    Raises:
      UserError: a file is missing, is not a SentencePiece model, or has other special ids.
    """
    return parse_tokenizers(read_models(paths), [str(path) for path in paths])


def read_models(paths: Sequence[Path]) -> list[bytes]:
    """The files' bytes.

    Raises:
      UserError: one cannot be read.
    """
    try:
        return [path.read_bytes() for path in paths]
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read the tokenizer ({error.strerror})") from error


def parse_tokenizers(models: Sequence[bytes], names: Sequence[str] = ("tokenizer",) * 2) -> Tokenizer:
    """The tokenizer of a serialized joint model, or of a source and a target model; names are for errors.

    Raises:
      UserError: one is not a SentencePiece model, or has other special ids.
    """
    processors = [_parse(model, name) for model, name in zip(models, names, strict=False)]
    return Tokenizer(processors[0], processors[-1])


def _parse(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError(f"{name}: not a SentencePiece model") from error
    if not processor.get_piece_size():  # which is what an empty file gives
        raise UserError(f"{name}: not a SentencePiece model")
    ids = (processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id())
    wanted = (PAD_ID, EOS_ID, BOS_ID, UNK_ID)
    if ids != wanted:
        raise UserError(
            f"{name}: its ids of pad, eos, bos and unk are {ids}, but must be {wanted}; "
            "train it with --pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3"
        )
    return processor


def train_tokenizer(pairs: PairSource, config: TokenizerConfig, target_languages: Sequence[str] = ()) -> list[bytes]:
    """Trains on (source, target) pairs: one serialized model if joint, else one for each side.

    Of a corpus above TRAINING_PAIRS, evenly spaced pairs are used. The same pairs always give the same bytes.

    Args:
      target_languages: those that get a tag in the model of the source side.

    Raises:
      UserError: the corpus cannot fill, or does not fit, the vocabulary.
    """
    tags = [language_tag(language) for language in target_languages]
    if config.joint:
        return [_train((line for pair in _spread(pairs) for line in pair), config, "", tags)]
    return [
        _train((pair[0] for pair in _spread(pairs)), config, "source side: ", tags),
        _train((pair[1] for pair in _spread(pairs)), config, "target side: ", []),
    ]


def _spread(pairs: PairSource) -> Iterator[Pair]:
    if len(pairs) <= TRAINING_PAIRS:
        return iter(pairs)  # several times as fast as one by one
    stride = len(pairs) / TRAINING_PAIRS
    return (pairs[int(i * stride)] for i in range(TRAINING_PAIRS))


def _train(lines: Iterable[str], config: TokenizerConfig, which: str, tags: Sequence[str]) -> bytes:
    model = io.BytesIO()
    try:
        # In a thread of its own, so that Ctrl-C is heard meanwhile: on Multi30k it came through two seconds later. The
        # short waits are for a signal that comes just before a wait, which would not end that.
        with ThreadPoolExecutor(1) as thread:
            training = thread.submit(
                sentencepiece.SentencePieceTrainer.train,
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                character_coverage=config.character_coverage,
                byte_fallback=config.byte_fallback,
                normalization_rule_name="nmt_nfkc_cf" if config.lowercase else "nmt_nfkc",
                pad_id=PAD_ID,
                eos_id=EOS_ID,
                bos_id=BOS_ID,
                unk_id=UNK_ID,
                control_symbols=list(tags),
                num_threads=TRAINING_THREADS,
                max_sentence_length=1 << 20,
                minloglevel=2,
            )
            while not training.done():
                wait([training], timeout=0.1)
            training.result()
    except RuntimeError as error:
        raise UserError(which + _explain(str(error), config)) from error
    return model.getvalue()


def _explain(error: str, config: TokenizerConfig) -> str:
    """SentencePiece's complaint about the vocabulary size, as a sentence with the size that works."""
    size = f"tokenizer.vocab_size {config.vocab_size}"
    if found := re.search(r"value <= (\d+)", error):
        return f"{size} is larger than the corpus supports; the largest that works is {found[1]}"
    if found := re.search(r"required_chars\. \d+ vs (\d+)", error):
        return f"{size} is too small for the characters of the corpus; the smallest that works is {int(found[1]) + 1}"
    return f"SentencePiece cannot train on this corpus: {error.strip()}"
