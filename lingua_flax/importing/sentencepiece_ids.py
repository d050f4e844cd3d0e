"""SentencePiece models whose pieces are numbered as those of a vocabulary, which segment text as they did."""

from collections.abc import Mapping, Sequence
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as proto

from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.host.errors import UserError
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID

# What OPUS-MT replaced before it trained; its rules make " of １, which nobody can have meant.
PLAIN_PUNCTUATION = dict(
    zip(
        "“”《》「」’、〈〉【】∶━～，：？）！（；％０１２３４５６７８９",
        '""""""\',<>[]:-~,:?)!(;%0123456789',
        strict=True,
    )
) | {"…": "...", "。": ". ", "．": ". "}
SPECIAL = {PAD_ID: "<pad>", EOS_ID: "</s>", BOS_ID: "<s>", UNK_ID: "<unk>"}
Piece = Any  # of SentencePiece's protocol buffers
Kind = proto.ModelProto.SentencePiece  # type: ignore[attr-defined]


def renumbered(model: bytes, pieces: Sequence[str], tags: Mapping[str, str], name: str) -> bytes:
    """Returns a serialized model that has these pieces, in this order, after those with special ids.

    Its own keep their scores; those that only the model of the other side has are unused. `tags` has the new names of
    pieces that no text spells. Raises UserError, with the model's name, if it has a piece that is not among these.
    """
    try:
        old = proto.ModelProto.FromString(model)  # type: ignore[attr-defined]
    except DecodeError as error:
        raise UserError(f"{name}: not a SentencePiece model") from error
    own = {each.piece: each for each in old.pieces if each.type in (Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE)}
    if missing := sorted(own.keys() - set(pieces)):
        raise UserError(f"{name}: {len(missing):,} of its pieces are not in vocab.json, such as {missing[0]!r}")
    new = proto.ModelProto()  # type: ignore[attr-defined]
    new.CopyFrom(old)
    del new.pieces[:]
    for number, special in sorted(SPECIAL.items()):
        new.pieces.add(piece=special, type=Kind.UNKNOWN if number == UNK_ID else Kind.CONTROL)
    for piece in pieces:
        if piece in own:
            new.pieces.add().CopyFrom(own[piece])
        elif piece in tags:
            new.pieces.add(piece=tags[piece], type=Kind.CONTROL)
        elif piece in PLACEHOLDERS:
            new.pieces.add(piece=piece, type=Kind.USER_DEFINED)
        elif piece in SPECIAL.values():
            new.pieces.add(piece=f"<{piece}>", type=Kind.CONTROL)
        else:
            new.pieces.add(piece=piece, type=Kind.UNUSED)
    new.trainer_spec.vocab_size = len(new.pieces)
    for field, number in (("pad", PAD_ID), ("eos", EOS_ID), ("bos", BOS_ID), ("unk", UNK_ID)):
        setattr(new.trainer_spec, f"{field}_id", number)
        setattr(new.trainer_spec, f"{field}_piece", SPECIAL[number])
    new.DiscardUnknownFields()  # tests of itself, which name pieces by their old numbers
    return new.SerializeToString()


def with_plain_punctuation(model: bytes) -> bytes:
    """Returns a serialized model that reads PLAIN_PUNCTUATION, beside what it normalizes already."""
    changed = proto.ModelProto.FromString(model)  # type: ignore[attr-defined]
    spec = changed.normalizer_spec
    sentencepiece.set_min_log_level(1)  # of information there is much
    rules = sentencepiece.SentencePieceNormalizer(normalizer_spec=spec).Decompile() if spec.precompiled_charsmap else []
    extended = sentencepiece.SentencePieceNormalizer(norm_map=list((dict(rules) | PLAIN_PUNCTUATION).items()))
    found = proto.NormalizerSpec.FromString(extended.serialized_normalizer_spec())  # type: ignore[attr-defined]
    spec.precompiled_charsmap = found.precompiled_charsmap
    return bytes(changed.SerializeToString())
