"""Export as one HTML file that translates in a browser, offline: the server's page, with the network in JavaScript."""

import base64
import dataclasses
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save
from sentencepiece import SentencePieceProcessor

from lingua_flax.data.placeholders import TO_KEEP
from lingua_flax.export.description import FORMAT_VERSION, describe
from lingua_flax.export.parity import Engine, engine_of
from lingua_flax.host.errors import UserError
from lingua_flax.host.version import VERSION
from lingua_flax.model.parameters import params_by_name, replace_params
from lingua_flax.options.schema import DataConfig, DecodingOptions
from lingua_flax.page.documents import bundled, in_script, page_html
from lingua_flax.translation.translator import Translator

MODULES = Path(__file__).parent / "browser"
ROW_SCALE = ".row_scale"
LARGEST = 127  # of the integers
KINDS = {1: "unigram", 2: "bpe"}  # of tokenizers, as SentencePiece counts them
TYPES = {1: "normal", 2: "unknown", 3: "control", 4: "user", 6: "byte"}  # of pieces


def html_document(
    translator: Translator, data: DataConfig, answers: Mapping[str, Any], *, quantized: bool, beam_size: int
) -> str:
    """Returns the file, with answers to GET requests by their paths; raises UserError if it cannot tokenize."""
    sides = dict.fromkeys((translator.tokenizer.source, translator.tokenizer.target))  # one if the tokenizer is joint
    tokenizers = [_tokenizer(side) for side in sides]
    decoding = DecodingOptions(beam_size=beam_size)
    described = describe(translator, data)
    description = {
        **{name: described[name] for name in ("model", "source_tags", "source_language")},
        **{"made_with": VERSION, "format_version": FORMAT_VERSION, "checkpoint_step": translator.step},
        "kept": TO_KEEP.pattern,
        "decoding": {"beam_size": beam_size, "length_penalty": decoding.length_penalty},
        "tokenizers": [fields for fields, _ in tokenizers],
    }
    arrays = _stored(translator, quantized=quantized)
    arrays |= {f"charsmap.{i}": np.frombuffer(charsmap, np.uint8) for i, (_, charsmap) in enumerate(tokenizers)}
    assert translator.tokenizer.words  # of a run
    arrays["words"] = np.frombuffer("\n".join(translator.tokenizer.words.counts).encode(), np.uint8)
    # The checksum of gzip reveals damage.
    packed = gzip.compress(save(arrays, {"description": json.dumps(description, ensure_ascii=False)}), mtime=0)
    content = {
        "answers": in_script(answers),
        "worker": bundled(MODULES / "worker.js"),
        "network": base64.b64encode(packed).decode(),
    }
    title = f"{data.source_language} to {data.target_language} · Lingua Flax"
    return page_html(title, MODULES / "file.js", content)


def html_engine(translator: Translator, lines: Sequence[str], *, quantized: bool) -> Engine:
    """Returns the engine that translates these lines with the weights of the file, in JAX."""
    arrays = _stored(translator, quantized=quantized)
    weights = {}
    for name, array in arrays.items():
        if not name.endswith(ROW_SCALE):
            rows = array * arrays[name + ROW_SCALE][:, None] if name + ROW_SCALE in arrays else array
            weights[name] = rows.T if name.endswith("kernel") else rows
    return engine_of(dataclasses.replace(translator, params=replace_params(translator.params, weights)), lines)


def _stored(translator: Translator, *, quantized: bool) -> dict[str, np.ndarray]:
    """Returns the parameters by name; of matrices, a row for each output, and the scales of the rows."""
    arrays = {}
    for name, array in params_by_name(jax.device_get(translator.params)).items():
        rows = np.ascontiguousarray(array.T if name.endswith("kernel") else array, np.float32)
        if quantized and rows.ndim == 2:
            scales = np.maximum(np.abs(rows).max(axis=1), 1e-12) / LARGEST
            arrays[name + ROW_SCALE] = scales
            rows = np.round(rows / scales[:, None]).astype(np.int8)
        arrays[name] = rows
    return arrays


def _tokenizer(processor: SentencePieceProcessor) -> tuple[dict[str, Any], bytes]:
    """Returns what tokenizer.js needs of a SentencePiece model, and its normalization rules."""
    from sentencepiece import sentencepiece_model_pb2 as proto  # slow to import, so only when needed

    model = proto.ModelProto.FromString(processor.serialized_model_proto())  # type: ignore[attr-defined]
    trainer, rules = model.trainer_spec, model.normalizer_spec
    pieces = [(piece.piece, piece.score, TYPES.get(piece.type)) for piece in model.pieces]
    obstacles = {
        "is neither unigram nor BPE": trainer.model_type not in KINDS,
        "puts spaces after words": trainer.treat_whitespace_as_suffix,
        "keeps spaces": not (rules.add_dummy_prefix and rules.remove_extra_whitespaces and rules.escape_whitespaces),
        "has unused pieces": None in (kind for *_, kind in pieces),
        "has user-defined symbols of several characters": any(k == "user" and len(p) > 1 for p, _, k in pieces),
    }
    if found := [reason for reason, holds in obstacles.items() if holds]:
        raise UserError(f"html has no code for a tokenizer that {' and '.join(found)}; use another format")
    fields = {"kind": KINDS[trainer.model_type], "pieces": pieces, "byte_fallback": trainer.byte_fallback}
    return fields | {"unk_surface": trainer.unk_surface}, rules.precompiled_charsmap
