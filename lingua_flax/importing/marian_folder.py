"""A folder of transformers with a MarianMT network -> the files and parameters of a workdir."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingua_flax.data.known_words import KnownWords
from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.data.tokenizer import language_tag, parse_tokenizers, read_models, tokenizer_options
from lingua_flax.export.marian_names import BIAS_OF_LOGITS, correspondences, stream_order, their_numbers
from lingua_flax.host.errors import UserError
from lingua_flax.importing.marian_config import MarianConfig, read_marian_config
from lingua_flax.importing.sentencepiece_ids import SPECIAL, renumbered, with_plain_punctuation
from lingua_flax.importing.transformers_files import read_json, read_license, read_tensors, weights_file
from lingua_flax.model.parameters import params_by_name, replace_params
from lingua_flax.model.positions import sinusoidal_positions
from lingua_flax.model.transformer import structure
from lingua_flax.options.schema import Config, DataConfig, MixtureConfig, ModelConfig, TokenizerConfig, TrainingConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID
from lingua_flax.runs.new_workdir import run_files

# The bias of pieces that are never predicted. As low as that of exports, it would be most of the loss with label
# smoothing, a mean over all logits: 0.1 * 1e4 / V for each of them.
BANNED = -100.0
LANGUAGE = re.compile(r">>(.+)<<")
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


class Imported(NamedTuple):
    """What becomes a workdir."""

    config: Config
    files: dict[str, bytes]  # by name, the config last
    tokenizers: Sequence[bytes]
    params: Any  # float32, NumPy


class Wishes(NamedTuple):
    """What the user may choose of a workdir."""

    name: str  # of the network
    source_language: str | None = None
    target_language: str | None = None
    license: str | None = None
    position_base: float | None = None
    placeholders: int = 0
    plain_punctuation: bool = False


def read_folder(folder: Path, wishes: Wishes) -> Imported:
    """Reads a folder; raises UserError, with file and field, for what is missing, damaged or cannot be expressed."""
    weights = weights_file(folder)
    marian = read_marian_config(folder, wishes.position_base)
    pieces = _pieces(folder, marian.vocab_size)
    if "<unk>" not in pieces:
        raise UserError(f"{folder / 'vocab.json'}: it has no <unk>")
    ids = marian.special | {"unk": pieces.index("<unk>"), "size": len(pieces)}
    numbers = their_numbers(ids)
    tags = {piece: language_tag(match[1]) for piece in pieces if (match := LANGUAGE.fullmatch(piece))}
    names = [*(pieces[number] for number in numbers[len(SPECIAL) :]), *PLACEHOLDERS[: wishes.placeholders]]
    paths = [folder / "source.spm", folder / "target.spm"]
    models = zip(paths, read_models(paths), strict=True)
    tokenizers = [renumbered(model, names, tags, str(path)) for path, model in models]
    if wishes.plain_punctuation:
        tokenizers = list(map(with_plain_punctuation, tokenizers))
    config = Config(
        data=_data(folder, wishes, [tag[2:-1] for tag in tags.values()], marian.model.max_length),
        tokenizer=TokenizerConfig(**tokenizer_options(parse_tokenizers(tokenizers))),
        model=marian.model,
        decoding=marian.decoding,
        training=TrainingConfig(label_smoothing=0.0),  # nothing is known of it
    )
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    origin = {"name": wishes.name, "license": wishes.license or read_license(folder), "sha256": digest, "ids": ids}
    described = (json.dumps(origin, indent=1) + "\n").encode()
    params = _params(weights, marian, numbers, wishes.placeholders)
    files = run_files(config, tokenizers, KnownWords(b""), origin=described)
    return Imported(config, files, tokenizers, params)


def _pieces(folder: Path, vocab_size: int) -> list[str]:
    """Returns the pieces of vocab.json in the order of their numbers."""
    path = folder / "vocab.json"
    vocabulary = read_json(path)
    if sorted(vocabulary.values()) != list(range(vocab_size)):
        raise UserError(f"{path}: its numbers are not those from 0 to {vocab_size - 1}, which vocab_size asks for")
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _data(folder: Path, wishes: Wishes, tagged: Sequence[str], max_length: int) -> DataConfig:
    """Returns the languages; a network with tags translates into the first of them if nothing else is said."""
    settings = read_json(folder / "tokenizer_config.json", required=False)
    if settings.get("separate_vocabs"):
        raise UserError(f"{folder / 'tokenizer_config.json'}: separate_vocabs is true, but here both sides share ids")
    source: Any = wishes.source_language or settings.get("source_lang")
    target: Any = wishes.target_language
    if tagged and target not in (None, *tagged):
        raise UserError(f"--target-language {target}: the network has {', '.join(tagged)}")
    stated = settings.get("target_lang")
    target = target or (stated if not tagged or stated in tagged else tagged[0])
    for option, value in (("source", source), ("target", target)):
        if not value:
            raise UserError(f"--{option}-language is required: {folder} does not say which it is")
    row_length = min(DataConfig().row_length, max_length)
    languages = {"source_language": source, "target_language": target}
    # That it was trained on corpora of all languages is how a config says what a network translates into.
    mixture = tuple(MixtureConfig(name="text", target_language=each) for each in tagged if each != target)
    return DataConfig(name="text", tag_target=bool(tagged), row_length=row_length, mixture=mixture, **languages)


def _params(weights: Path, marian: MarianConfig, numbers: Sequence[int], placeholders: int) -> Any:
    tensors = read_tensors(weights)
    known = list(correspondences(marian.model))
    for name in (each.theirs for each in known):
        if name not in tensors:
            raise UserError(f"{weights}: it has no {name}")
    allowed = {BIAS_OF_LOGITS, *COPIES, *POSITIONS, *(each.theirs for each in known)}
    if others := sorted(tensors.keys() - allowed):
        raise UserError(f"{weights}: it has {others[0]}, for which a network here has no place")
    _check_copies(weights, tensors, marian.model)
    arrays = {each.ours: each.imported(tensors[each.theirs]) for each in known}
    embedding, vocab_size = arrays["target_embedding"], marian.vocab_size
    bias = tensors.get(BIAS_OF_LOGITS, np.zeros(vocab_size, np.float32)).reshape(-1)
    if len(embedding) != vocab_size or len(bias) != vocab_size:
        raise UserError(f"{weights}: its embeddings and biases are not those of vocab_size {vocab_size}")
    banned = [PAD_ID, BOS_ID, *(numbers.index(number) for number in marian.banned if number in numbers)]
    # A placeholder begins as the mean of all pieces.
    arrays["target_embedding"] = _with_means(embedding[numbers], placeholders)
    arrays["output_bias"] = _with_means(bias[numbers], placeholders)
    arrays["output_bias"][banned] = BANNED
    size = len(arrays["target_embedding"])
    template = structure(marian.model, size, size).params
    for name, leaf in params_by_name(template).items():
        if arrays[name].shape != leaf.shape:
            raise UserError(f"{weights}: {name} would have the shape {arrays[name].shape} instead of {leaf.shape}")
        arrays[name] = np.ascontiguousarray(arrays[name])
    return replace_params(template, arrays)


def _with_means(rows: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([rows, np.broadcast_to(rows[len(SPECIAL) :].mean(axis=0), (count, *rows.shape[1:]))])


def _check_copies(weights: Path, tensors: Mapping[str, np.ndarray], model: ModelConfig) -> None:
    """Raises UserError if what is computed from other tensors here, or is one of them, is something else there."""
    for name in COPIES:
        if name in tensors and not np.array_equal(tensors[name], tensors["model.shared.weight"]):
            raise UserError(f"{weights}: {name} is not model.shared.weight, but a network here has one matrix for both")
    computed = sinusoidal_positions(model.max_length, model.embed_dim, ModelConfig().position_base)
    for name in POSITIONS:
        expected = np.asarray(computed)[:, stream_order(model.embed_dim)]
        if name in tensors and not np.allclose(tensors[name], expected, atol=1e-3):
            raise UserError(f"{weights}: {name} are not the sinusoids that transformers computes")
