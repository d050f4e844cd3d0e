"""Export as one HTML file that translates in a browser, offline: the server's page, with the network in JavaScript."""

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save
from sentencepiece import SentencePieceProcessor

from lingua_flax.data.nearest_characters import ALIKE
from lingua_flax.data.placeholders import TO_KEEP
from lingua_flax.data.tokenizer import read_model
from lingua_flax.export.description import FORMAT_VERSION, Export, describe
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.interruption import interruption
from lingua_flax.host.version import VERSION
from lingua_flax.inspection.run_report import RunReport, example_sentences
from lingua_flax.model.parameters import params_by_name
from lingua_flax.page.documents import bundled, in_script, page_html
from lingua_flax.runs.learning_curves import CURVES_NAME

MODULES = Path(__file__).parent / "browser"
MAX_BYTES = 20_000_000
LARGEST = 127  # of the integers
SECONDS = 15.0  # of a comparison, in which a small network translates 100 lines
KINDS = {1: "unigram", 2: "bpe"}  # of tokenizers, as SentencePiece counts them
TYPES = {1: "normal", 2: "unknown", 3: "control", 4: "user", 5: "unused", 6: "byte"}  # of pieces


def write(export: Export, path: Path) -> str:
    """Writes the file; raises UserError if its program has no code for the tokenizer, or if it is too large."""
    run = RunReport(export.run).read() | {"checkpoints": [export.translator.step], "seconds_since_change": None}
    picture = export.run / CURVES_NAME
    encoded = base64.b64encode(picture.read_bytes()).decode() if picture.exists() else None
    run["curves"] = encoded and f"data:image/png;base64,{encoded}"
    source, target = export.translator.languages
    language = {"code": source, "name": source, "targets": [target]}
    answers = {"run": run, "examples": example_sentences(export.run), "languages": [language]}
    document = html_document(export, answers).encode()
    if len(document) > MAX_BYTES:
        sizes = f"{len(document) / 1e6:.1f} MB, and more than {MAX_BYTES / 1e6} MB cannot be mailed"
        raise UserError(f"html: the file would have {sizes}: distill a smaller network, or use another format")
    path.write_bytes(document)
    return "open it in a browser"


def translate(_: Export, path: Path, lines: Sequence[str], beam_size: int) -> Iterator[tuple[list[int], float]]:
    """Yields what the program of the file makes of lines; raises ImportError without Deno, which runs it."""
    for answer in ask_file(path, [{"line": line, "beam_size": beam_size} for line in lines], SECONDS):
        if "error" in answer:
            raise RunError(f"the file does not translate: {answer['error']}")
        yield answer["answer"]["tokens"][:-1], answer["answer"]["score"]


def ask_file(path: Path, messages: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Returns what the worker of an exported file answers, in so many seconds; raises RunError if Deno fails."""
    deno = shutil.which("deno") or shutil.which("deno", path=Path(sys.executable).parent)  # where pip installs it
    if not deno:
        raise ImportError("Deno, which runs JavaScript, is not installed", name="deno")
    options: Any = {"env": os.environ | {"DENO_NO_UPDATE_CHECK": "1"}, "capture_output": True, "encoding": "utf-8"}
    program = [deno, "run", "--no-config", "--no-lock", "--allow-read", str(MODULES / "ask_file.js")]
    done = subprocess.run([*program, str(path), str(seconds)], input=json.dumps(messages), check=False, **options)
    interruption.check()  # Ctrl-C reaches both
    if done.returncode:
        raise RunError(f"Deno, which was to run the file, fails: {done.stderr.strip()}")
    return json.loads(done.stdout)


def html_document(export: Export, answers: Mapping[str, Any]) -> str:
    """Returns the file, with answers to GET requests by their paths; raises UserError if it cannot tokenize."""
    translator = export.translator
    sides = dict.fromkeys((translator.tokenizer.source, translator.tokenizer.target))  # one if the tokenizer is joint
    tokenizers = [_tokenizer(side, shares_ids=translator.tokenizer.shares_ids) for side in sides]
    described = describe(translator)
    description = {
        **{name: described[name] for name in ("model", "source_tags", "source_language")},
        "decoding": described["decoding"] | {"beam_size": export.beam_size},
        **{"made_with": VERSION, "format_version": FORMAT_VERSION, "checkpoint_step": translator.step},
        "kept": TO_KEEP.pattern,
        "alike": ALIKE,
        "tokenizers": [fields for fields, _ in tokenizers],
    }
    arrays = _stored(translator.params, quantized=export.quantization == "int8")
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
    return page_html(f"{' to '.join(translator.languages)} · Lingua Flax", MODULES / "file.js", content)


def _stored(params: Any, *, quantized: bool) -> dict[str, np.ndarray]:
    """Returns the parameters by name; of matrices, a row for each output, and the scales of the rows."""
    arrays = {}
    for name, array in params_by_name(jax.device_get(params)).items():
        rows = np.ascontiguousarray(array.T if name.endswith("kernel") else array, np.float32)
        if quantized and rows.ndim == 2:
            scales = np.maximum(np.abs(rows).max(axis=1), 1e-12) / LARGEST
            arrays[f"{name}.row_scale"] = scales
            rows = np.round(rows / scales[:, None]).astype(np.int8)
        arrays[name] = rows
    return arrays


def _tokenizer(processor: SentencePieceProcessor, *, shares_ids: bool = False) -> tuple[dict[str, Any], bytes]:
    """Returns what tokenizer.js needs of a SentencePiece model, and its normalization rules."""
    model = read_model(processor)
    trainer, rules = model.trainer_spec, model.normalizer_spec
    pieces = [(piece.piece, piece.score, TYPES.get(piece.type)) for piece in model.pieces]
    obstacles = {
        "is neither unigram nor BPE": trainer.model_type not in KINDS,
        "puts spaces after words": trainer.treat_whitespace_as_suffix,
        "keeps spaces": not (rules.add_dummy_prefix and rules.remove_extra_whitespaces and rules.escape_whitespaces),
        "has unused pieces": not shares_ids and "unused" in (kind for *_, kind in pieces),
        "has user-defined symbols of several characters": any(k == "user" and len(p) > 1 for p, _, k in pieces),
    }
    if found := [reason for reason, holds in obstacles.items() if holds]:
        raise UserError(f"html has no code for a tokenizer that {' and '.join(found)}; use another format")
    fields = {"kind": KINDS[trainer.model_type], "pieces": pieces, "byte_fallback": trainer.byte_fallback}
    return fields | {"unk_surface": trainer.unk_surface}, rules.precompiled_charsmap
