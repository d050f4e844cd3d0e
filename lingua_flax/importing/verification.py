"""Comparison of an imported network with transformers: token ids, and logits of the same tokens."""

import functools
import logging
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from lingua_flax.data.batch import pad_rows
from lingua_flax.export.marian_names import their_numbers
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.importing.marian_folder import BANNED
from lingua_flax.options.config_files import read_origin
from lingua_flax.options.schema import ComputeConfig
from lingua_flax.options.special_ids import BOS_ID
from lingua_flax.translation.translator import Translator

LINES, PIECES = 20, 12  # of text without meaning
MAX_LINES, MAX_TOKENS = 200, 64
TOLERANCE = 1e-3  # of logits
log = logging.getLogger(__name__)


def verify(folder: Path, workdir: Path, given: Sequence[str] | None) -> None:
    """Compares a workdir with the folder it was made of, on given lines or on random pieces, and logs the result.

    Raises RunError if ids or logits differ, and UserError if no given line is short enough; logs that nothing is
    compared without transformers.
    """
    if missing := [name for name in ("torch", "transformers") if not find_spec(name)]:
        log.warning("not compared with transformers: pip install %s", " ".join(missing))
        return
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    translator = Translator.load(workdir, devices=ComputeConfig(platform="cpu", precision="float32"))
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).train(False)
    tokenizer = MarianTokenizer.from_pretrained(folder)
    own = translator.tokenizer
    lines = _lines_of_random_pieces(own.source) if given is None else given
    prefix = f">>{translator.languages[1]}<< " if own.source_tags else ""
    theirs = their_numbers(read_origin(workdir)["ids"])
    read = {line: ids for line, ids in zip(lines, own.encode_source(lines), strict=True) if 1 < len(ids) <= MAX_TOKENS}
    if not read:
        raise UserError(f"--verify: the file has no lines of at most {MAX_TOKENS} tokens")
    other = [line for line, ids in read.items() if tokenizer(prefix + line)["input_ids"] != [theirs[i] for i in ids]]
    if other:
        message = (
            f"{len(other)} of {len(read)} lines have other token ids in transformers, the first of them: {other[0]}"
        )
        raise RunError(f"{message}; nothing was written")
    worst = max(_difference(translator, model, ids, theirs) for ids in read.values())
    log.info("logits of %d lines differ from those of transformers by at most %.1e", len(read), worst)
    if not worst <= TOLERANCE:
        raise RunError(f"that is more than {TOLERANCE}: the network computes something else; nothing was written")


def _difference(translator: Translator, model: Any, source: list[int], theirs: list[int]) -> float:
    """Returns the largest difference of logits that are not banned, along a greedy translation by transformers."""
    import torch

    ids = torch.tensor([[theirs[number] for number in source]])
    longest = min(MAX_TOKENS, translator.max_length)
    written = model.generate(ids, num_beams=1, max_length=longest)[:, :-1]
    with torch.no_grad():
        expected = model(input_ids=ids, decoder_input_ids=written).logits[0].numpy()
    ours = {number: own for own, number in reversed(list(enumerate(theirs)))}
    read = [BOS_ID, *(ours[number] for number in written[0, 1:].tolist())]
    rows = (pad_rows([each], 1, MAX_TOKENS) for each in (source, read))  # of one length, for which one program is made
    logits = np.asarray(_logits(translator.params, *rows, translator.graphdef))[0, : len(read)]
    kept = [own for own in range(len(theirs)) if translator.params["output_bias"][own] > BANNED]
    return float(np.abs(logits[:, kept] - expected[:, [theirs[own] for own in kept]]).max())


@functools.partial(jax.jit, static_argnames="graphdef")
def _logits(params: Any, source: np.ndarray, read: np.ndarray, graphdef: Any) -> jax.Array:
    return nnx.merge(graphdef, params)(source, read)[0]


def _lines_of_random_pieces(source: Any) -> list[str]:
    """Returns lines that any tokenizer of the language has pieces for, always the same."""
    draw = random.Random(0)
    size = source.get_piece_size()
    known = [i for i in range(size) if not (source.is_control(i) or source.is_unknown(i) or source.is_unused(i))]
    return [source.decode(draw.choices(known, k=PIECES)) for _ in range(LINES)]
