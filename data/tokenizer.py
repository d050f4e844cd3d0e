"""SentencePiece tokenizers of both sides: training, loading, encoding text as ids, and decoding."""

import functools
import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import sentencepiece

from lingua_flax.data.augmentation import augment_pair, draw_augmentations
from lingua_flax.data.corpora.corpus import Pair, PairSource
from lingua_flax.data.draw_order import random_words
from lingua_flax.data.glossary import Glossary
from lingua_flax.data.known_words import KnownWords, UnknownWords
from lingua_flax.data.nearest_characters import NearestCharacters
from lingua_flax.data.placeholders import PLACEHOLDERS, Protected, protect, protect_pair
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID

TRAINING_PAIRS = 500_000  # more lines barely change the pieces and cost minutes and gigabytes
TRAINING_THREADS = 4  # fixed: the unigram vocabulary depends on it
TAG_START = "<2"
MIXTURE_TAG = "<bt>"  # marks sources of corpora with tag_source, such as back-translations (Caswell et al. 2019)
SPACE = "\u2581"  # represents, in a piece, the space before a word
CONTROL_PIECES = ("<s>", "</s>")
# Decoded text has to be one line, but byte pieces and pieces of the corpus can contain line breaks.
LINE_BREAKS = str.maketrans({"\n": " ", "\r": " "})


class Characters(NamedTuple):
    """The characters of a text from `begin` to before `end`."""

    begin: int
    end: int


@dataclass(frozen=True)
class Tokenizer:
    """The SentencePiece processors of both sides, the same one if the vocabulary is joint.

    Attributes:
      source_tags: the ids of pieces such as <2fr> that are put before each source. They are control pieces: no text is
        encoded as one, and "<2fr>" in the text is five ordinary characters.
      placeholders: the characters that stand for what translations contain as it is, and for terms of the glossary.
      shares_ids: whether there are two models that number the same pieces alike. What one of them does not know gets
        the id of the piece that the other one may have for it.
    """

    source: sentencepiece.SentencePieceProcessor
    target: sentencepiece.SentencePieceProcessor
    source_tags: tuple[int, ...] = ()
    placeholders: str = ""
    shares_ids: bool = False
    glossary: Glossary | None = None
    words: KnownWords | None = None  # of the training text; without them, none is looked up

    @property
    def source_vocab_size(self) -> int:
        return self.source.get_piece_size()

    @property
    def target_vocab_size(self) -> int:
        return self.target.get_piece_size()

    @property
    def lowercase(self) -> bool:
        """Whether the target side folds case, so that translations are in lower case."""
        return self.target.normalize("A").endswith("a")

    @property
    def digest(self) -> str:
        """SHA-256 of both models, in hex, without the source tags."""
        models = self.source.serialized_model_proto() + self.target.serialized_model_proto()
        return hashlib.sha256(models).hexdigest()

    def with_source_tag(self, tag: str) -> Self:
        """Returns a tokenizer with one more tag before each source; raises UserError if it has no such tag."""
        tag_id = self.source.piece_to_id(tag)
        if not self.source.is_control(tag_id):
            pieces = [self.source.id_to_piece(i) for i in range(self.source_vocab_size) if self.source.is_control(i)]
            known = ", ".join(piece for piece in pieces if piece.startswith((TAG_START, MIXTURE_TAG))) or "no tags"
            raise UserError(f"the tokenizer has no tag {tag}; it has {known}")
        return replace(self, source_tags=(*self.source_tags, tag_id))

    def protect(self, line: str) -> Protected:
        """Returns a source with its placeholders."""
        return protect(line, self.placeholders, self.glossary)

    def protect_text(self, lines: Sequence[str]) -> list[Protected]:
        """Returns sources in the nearest characters that the tokenizer knows; what has none is to be kept, too."""
        sources = list(map(self.protect, lines))
        ids = self.encode_protected(sources)
        return [
            self._nearest.protect(own) if UNK_ID in of_own else own for own, of_own in zip(sources, ids, strict=True)
        ]

    @functools.cached_property
    def _nearest(self) -> NearestCharacters:
        return NearestCharacters(lambda text: UNK_ID not in self.source.encode(text))

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each line with placeholders: the source tags (unless it is empty), tokens, EOS_ID."""
        return self.encode_protected(list(map(self.protect, lines)))

    def encode_protected(self, sources: Sequence[Protected]) -> list[list[int]]:
        """Returns the ids of sources whose spans are known."""
        return self._encode_source([source.text for source in sources])

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each line, ended by EOS_ID; without placeholders, which only `encode_pairs` knows of."""
        return [add_special_ids(ids) for ids in self._encode(self.target, lines)]

    def encode_pairs(self, pairs: Iterable[Sequence[str]]) -> tuple[list[list[int]], list[list[int]]]:
        """Returns the ids of the sources and of the targets of pairs, with placeholders for what both sides contain."""
        protected = [protect_pair(Pair(*pair), self.placeholders) for pair in pairs]
        return self._encode_source([pair[0] for pair in protected]), self.encode_target([pair[1] for pair in protected])

    def _encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        return [add_special_ids(ids, self.source_tags) for ids in self._encode(self.source, lines)]

    def _encode(self, side: sentencepiece.SentencePieceProcessor, lines: Sequence[str]) -> list[list[int]]:
        encoded = _encode(side, lines)
        for number, (line, ids) in enumerate(zip(lines, encoded, strict=True)):
            if self.shares_ids and UNK_ID in ids:
                others = [side.piece_to_id(piece) for piece in side.encode(line, out_type=str)]
                encoded[number] = [
                    i if i != UNK_ID or not side.is_unused(o) else o for i, o in zip(ids, others, strict=True)
                ]
        return encoded

    def decode_target(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """Returns the plain text of each list of ids, always a single line."""
        return [self.target.decode([int(i) for i in ids]).translate(LINE_BREAKS) for ids in sentences]

    def unknown_words(self, source: Protected) -> UnknownWords:
        """Returns the words of a source that the training text never had; none if there are no counts of it."""
        if not self.words or not self.words.tsv:
            return UnknownWords()
        # Without placeholders, `protect` has not looked for what stays as it is.
        spans = [span for span in source.spans if not span.unknown] if self.placeholders else None
        return self.words.unknown_in(source.source, spans)

    def source_characters(self, source: Protected) -> list[Characters]:
        """Returns the characters from which each token of a source comes, without tags and end token."""
        surfaces = _surfaces(self.source.encode(source.text, out_type="serialized_proto"))
        return _characters([source.original(surface) for surface in surfaces], source.original(source.text))

    def target_characters(self, source: Protected, ids: Sequence[int]) -> tuple[str, list[Characters]]:
        """Returns the translation of a source with these tokens, and the characters that each of them becomes."""
        decoded = _surfaces(self.target.decode([int(i) for i in ids], out_type="serialized_proto"))
        surfaces = [source.restored(surface.translate(LINE_BREAKS)) for surface in decoded]
        return "".join(surfaces), _characters(surfaces)

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the piece of each id as it is in the model, including SPACE."""
        return [self.source.id_to_piece(int(i)) for i in ids]

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the piece of each id as it is in the model, including SPACE."""
        return [self.target.id_to_piece(int(i)) for i in ids]


def _surfaces(serialized: bytes) -> list[str]:
    """Returns the text of each token, given what all versions of sentencepiece since 0.2.1 return alike."""
    from sentencepiece import sentencepiece_pb2 as proto  # slow to import, so only when needed

    return [piece.surface for piece in proto.SentencePieceText.FromString(serialized).pieces]  # type: ignore[attr-defined]


def _characters(surfaces: Sequence[str], text: str = "") -> list[Characters]:
    """Returns where the surfaces of tokens, which are consecutive, are in a text; there may be spaces before them."""
    start = text.find("".join(surfaces))
    ends = itertools.accumulate(map(len, surfaces), initial=max(0, start))
    return [Characters(*pair) for pair in itertools.pairwise(ends)]


def _encode(processor: sentencepiece.SentencePieceProcessor, lines: Sequence[str]) -> list[list[int]]:
    try:
        # A list is encoded by threads that are started for it, in 0.1 ms; a line of 40 characters takes 2 µs.
        return processor.encode(list(lines)) if len(lines) > 16 else [processor.encode(line) for line in lines]
    except (TypeError, RuntimeError) as error:  # of a list and of a single line
        for line in lines:
            if line != line.encode(errors="ignore").decode():
                raise UserError(f"{line!a}: not valid Unicode: it has half of a surrogate pair") from error
        raise


def add_special_ids(ids: Sequence[int], tags: Sequence[int] = ()) -> list[int]:
    """Returns the ids of a line followed by EOS_ID and, unless there are none, preceded by the tags."""
    return [*tags, *ids, EOS_ID] if ids else [EOS_ID]


def language_tag(language: str) -> str:
    """Returns the piece that requests a target language, such as <2fr> (Johnson et al. 2017)."""
    return f"{TAG_START}{language}>"


def model_paths(directory: Path, *, joint: bool) -> list[Path]:
    """Returns the paths of the tokenizer in a workdir: one file if it is joint, otherwise one per side."""
    names = ["tokenizer.model"] if joint else ["tokenizer.source.model", "tokenizer.target.model"]
    return [directory / name for name in names]


def load_tokenizer(paths: Sequence[Path]) -> Tokenizer:
    """Loads a joint model, or a source and a target model; raises UserError as `parse_tokenizers`."""
    return parse_tokenizers(read_models(paths), [str(path) for path in paths])


def read_models(paths: Sequence[Path]) -> list[bytes]:
    """Returns the contents of the files; raises UserError if one cannot be read."""
    try:
        return [path.read_bytes() for path in paths]
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read the tokenizer ({error.strerror})") from error


def parse_tokenizers(models: Sequence[bytes], names: Sequence[str] = ("tokenizer",) * 2) -> Tokenizer:
    """Returns the tokenizer of one model or two; raises UserError if one is none or has other special ids."""
    processors = []
    for model, name in zip(models, names, strict=False):
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(f"{name}: not a SentencePiece model") from error
        if not processor.get_piece_size():  # SentencePiece accepts an empty file
            raise UserError(f"{name}: not a SentencePiece model")
        ids = (processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id())
        if ids != (wanted := (PAD_ID, EOS_ID, BOS_ID, UNK_ID)):
            remedy = "train it with --pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3"
            raise UserError(f"{name}: its ids of pad, eos, bos and unk are {ids}, but must be {wanted}; {remedy}")
        processors.append(processor)
    shared = (piece for piece in PLACEHOLDERS if all(side.piece_to_id(piece) != UNK_ID for side in processors))
    pieces = [[side.id_to_piece(i) for i in range(side.get_piece_size())] for side in processors]
    shares_ids = len(processors) > 1 and pieces[0] == pieces[1]
    return Tokenizer(processors[0], processors[-1], placeholders="".join(shared), shares_ids=shares_ids)


def read_model(processor: sentencepiece.SentencePieceProcessor) -> Any:
    """Returns the pieces of a processor, and how it was trained and normalizes text: a ModelProto of SentencePiece."""
    from sentencepiece import sentencepiece_model_pb2 as proto  # slow to import, so only when needed

    return proto.ModelProto.FromString(processor.serialized_model_proto())  # type: ignore[attr-defined]


def tokenizer_options(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the options of [tokenizer] that a tokenizer has, as its model of the target side says."""
    model = read_model(tokenizer.target)
    spec, rules = model.trainer_spec, model.normalizer_spec.name.removesuffix("_cf")
    return {
        "joint": tokenizer.source is tokenizer.target,
        "shared_ids": tokenizer.shares_ids,
        "lowercase": tokenizer.lowercase,
        "placeholders": len(tokenizer.placeholders),
        "kind": spec.ModelType.Name(spec.model_type).lower(),
        "vocab_size": tokenizer.target_vocab_size,
        "character_coverage": round(spec.character_coverage, 6),
        "byte_fallback": spec.byte_fallback,
        "normalization": rules,
    }


def train_tokenizer(
    pairs: PairSource,
    config: TokenizerConfig,
    tags: Sequence[str] = (),
    fractions: Mapping[str, float] | None = None,
    languages: tuple[str, str] = ("", ""),
) -> list[bytes]:
    """Trains on (source, target) pairs and returns one serialized model if joint, otherwise one per side.

    If there are more than TRAINING_PAIRS, that many evenly spaced pairs are used. The same pairs always give the same
    bytes. The model of the source side also has the tags, as pieces for `Tokenizer.with_source_tag`. `fractions` of the
    pairs, in these languages, have AUGMENTATIONS: with 7% in upper case, a sentence of Multi30k in upper case takes 21
    pieces, without 51.

    Raises UserError if the vocabulary is too large or too small for the corpus.
    """
    training_pairs = functools.partial(_training_pairs, pairs, config.placeholders, fractions or {}, languages)
    if config.joint:
        return [_train((line for pair in training_pairs() for line in pair), config, "", tags)]
    return [
        _train((pair[0] for pair in training_pairs()), config, "source side: ", tags),
        _train((pair[1] for pair in training_pairs()), config, "target side: ", []),
    ]


def _training_pairs(
    pairs: PairSource, placeholders: int, fractions: Mapping[str, float], languages: tuple[str, str]
) -> Iterator[Pair]:
    chosen = iter(pairs)  # several times faster than indexing
    if len(pairs) > TRAINING_PAIRS:
        stride = len(pairs) / TRAINING_PAIRS
        chosen = (pairs[int(i * stride)] for i in range(TRAINING_PAIRS))
    if any(fractions.values()):
        changes = (draw_augmentations(fractions, random_words(number))[0] for number in itertools.count())
        chosen = map(augment_pair, chosen, changes, itertools.repeat(languages))
    return (protect_pair(pair, PLACEHOLDERS[:placeholders]) for pair in chosen)


def _train(lines: Iterable[str], config: TokenizerConfig, error_prefix: str, tags: Sequence[str]) -> bytes:
    model = io.BytesIO()
    try:
        # Training runs in a thread, so that Ctrl-C is handled meanwhile. The waits are short because a signal that
        # arrives just before a wait does not end it.
        with ThreadPoolExecutor(1) as thread:
            training = thread.submit(
                sentencepiece.SentencePieceTrainer.train,
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                character_coverage=config.character_coverage,
                byte_fallback=config.byte_fallback,
                normalization_rule_name=config.normalization + ("_cf" if config.lowercase else ""),
                pad_id=PAD_ID,
                eos_id=EOS_ID,
                bos_id=BOS_ID,
                unk_id=UNK_ID,
                control_symbols=list(tags),
                user_defined_symbols=list(PLACEHOLDERS[: config.placeholders]),
                num_threads=TRAINING_THREADS,
                max_sentence_length=1 << 20,
                minloglevel=2,
            )
            while not training.done():
                wait([training], timeout=0.1)
            training.result()
    except RuntimeError as error:
        raise UserError(error_prefix + _explain(str(error), config)) from error
    return model.getvalue()


def _explain(error: str, config: TokenizerConfig) -> str:
    """Returns SentencePiece's error as a sentence, with the vocabulary size that works if the size is the problem."""
    size = f"tokenizer.vocab_size {config.vocab_size}"
    if match := re.search(r"value <= (\d+)", error):
        return f"{size} is larger than the corpus supports; the largest that works is {match[1]}"
    if match := re.search(r"required_chars\. \d+ vs (\d+)", error):
        return f"{size} is too small for the characters of the corpus; the smallest that works is {match[1]}"
    return f"SentencePiece cannot train on this corpus: {error.strip()}"
