"""Lines in, translations out: tokenization, batches of a few lengths, jitted search, original order.

B sentences, S padded source length, K beams.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs.errors import UserError
from configs.loading import read_workdir_config
from configs.schema import ComputeConfig, Config, DecodingOptions, ModelConfig
from configs.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from data.batch import cut, length_batches, pad_rows
from data.tokenizer import Tokenizer, load_tokenizer, model_paths
from model.transformer import structure
from runtime.checkpoint import load_params
from runtime.devices import compute_dtype
from runtime.workdir import Workdir
from translation.search import IMPOSSIBLE, Hypotheses, beam_search, greedy_search

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A translation, its log-probability divided by the length penalty, and its tokens, ended by EOS_ID."""

    text: str
    score: float
    tokens: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Translation:
    """The hypotheses for one line, best first, at least one."""

    source: str
    hypotheses: tuple[Hypothesis, ...]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text


@dataclasses.dataclass(frozen=True)
class Translator:
    """A trained network with its tokenizer.

    With `params` replaced (dataclasses.replace) nothing is compiled again.
    """

    graphdef: nnx.GraphDef
    params: Any
    tokenizer: Tokenizer
    config: ModelConfig
    step: int = 0

    @classmethod
    def load(
        cls,
        workdir: str | Path,
        checkpoint: str = "best",
        devices: ComputeConfig | None = None,
        target_language: str | None = None,
    ) -> Translator:
        """Loads a run's tokenizer and the parameters of a checkpoint: best, last or a step's number.

        Args:
          target_language: of a model trained with data.tag_target, the one to translate into instead of [data]'s.

        Raises:
          UserError: the workdir, its tokenizer or the checkpoint is missing or damaged, or has no such language.
        """
        files = Workdir(Path(workdir))
        config = read_workdir_config(files.path)
        tokenizer = load_tokenizer(model_paths(files.path, joint=config.tokenizer.joint))
        tokenizer = _with_tag(tokenizer, config, target_language)
        sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
        graphdef, template = structure(config.model, *sizes, compute_dtype(devices or config.devices))
        placed = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), template)
        step, params, record = load_params(files.checkpoints, checkpoint, template)
        if record["fingerprints"]["tokenizer"] != tokenizer.fingerprint:
            raise UserError(f"{files.path}: its tokenizer is not the one that checkpoint {step} was trained with")
        return cls(graphdef, params, tokenizer, config.model, step)

    def translate(
        self,
        lines: Sequence[str],
        options: DecodingOptions = DecodingOptions(),
        *,
        num_hypotheses: int = 1,
        first_line: int | None = 1,
        after_batch: Callable[[int], None] = lambda sentences: None,
    ) -> list[Translation]:
        """Translates each line, in order; a line without a token becomes an empty line.

        Args:
          lines: detokenized text. One longer than the model's max_length is cut there, which the log tells.
          num_hypotheses: how many to return for each line, at most options.beam_size.
          first_line: the number of lines[0] in the log, or None to say nothing of lines that are cut.
          after_batch: called with the number of sentences done since the last call; may raise to stop.
        """
        self.check(options, num_hypotheses)
        sources = self._encode(lines, first_line)
        empty = Hypothesis("", 0.0)
        found: list[tuple[Hypothesis, ...]] = [(empty,)] * len(lines)
        todo = [i for i, ids in enumerate(sources) if len(ids) > 1]
        batches = length_batches([len(sources[i]) for i in todo], options.batch_size, self.config.max_length)
        for group, length in batches:
            indices = [todo[i] for i in group]
            source = pad_rows([sources[i] for i in indices], options.batch_size, length)
            hypotheses = self.search(source, options)
            for i, hypothesis in zip(indices, self._texts(hypotheses, len(indices), num_hypotheses), strict=True):
                found[i] = hypothesis
            after_batch(len(indices))
        return [Translation(line, hypotheses) for line, hypotheses in zip(lines, found, strict=True)]

    def search(self, source: np.ndarray, options: DecodingOptions, hidden: np.ndarray | None = None) -> Hypotheses:
        """source [B, S] -> hypotheses [B, K, L], computed on the device.

        Where `hidden` [B, S] is True no layer may look at the source, as if there were padding.
        """
        visible = source != PAD_ID if hidden is None else (source != PAD_ID) & ~hidden
        longest, tokens = self.config.max_length, np.count_nonzero(source, axis=1)
        limits = np.minimum(options.max_decoding_length or _default_limit(tokens), longest)
        limits = np.where(tokens > 0, limits, 1)  # a row that only fills the batch is finished at once
        return _search(
            self.params,
            source,
            visible.astype(np.int32),
            limits.astype(np.int32),
            graphdef=self.graphdef,
            beams=options.beam_size,
            length=options.max_decoding_length or min(_default_limit(source.shape[1]), longest),
            alpha=options.length_penalty,
        )

    def check(self, options: DecodingOptions, num_hypotheses: int = 1) -> None:
        """Raises UserError where this model cannot decode so."""
        if num_hypotheses > options.beam_size:
            raise UserError(f"num_hypotheses {num_hypotheses} exceeds beam_size {options.beam_size}")
        longest = self.config.max_length
        if options.max_decoding_length and options.max_decoding_length > longest:
            raise UserError(
                f"max_decoding_length {options.max_decoding_length} exceeds the model's max_length {longest}"
            )

    def _encode(self, lines: Sequence[str], first_line: int | None) -> list[list[int]]:
        longest = self.config.max_length
        sources = self.tokenizer.encode_source(lines)
        if first_line is not None:
            for number, ids in enumerate(sources, first_line):
                if len(ids) > longest:
                    tokens, kept = len(ids) - 1, longest - 1  # beside the end token
                    log.warning("line %d has %d tokens; only the first %d are translated", number, tokens, kept)
        return [cut(ids, longest) for ids in sources]

    def _texts(self, hypotheses: Hypotheses, rows: int, count: int) -> list[tuple[Hypothesis, ...]]:
        tokens, scores = (np.asarray(array)[:rows, :count] for array in hypotheses)
        return [
            tuple(
                Hypothesis(text, float(score), tuple(int(token) for token in ids[ids != PAD_ID]))
                for text, score, ids in zip(self.tokenizer.decode_target(beams), row, beams, strict=True)
                if score > IMPOSSIBLE / 2
            )
            for beams, row in zip(tokens, scores, strict=True)
        ]


def _with_tag(tokenizer: Tokenizer, config: Config, target_language: str | None) -> Tokenizer:
    """The tokenizer that asks for a language, by default that of [data], where the model has learned to be asked."""
    if config.data.tag_target:
        return tokenizer.with_source_tag(target_language or config.data.target_language)
    if target_language:
        only = config.data.target_language
        raise UserError(
            f"the run has no tags (data.tag_target) to ask for {target_language}: it translates into {only}"
        )
    return tokenizer


def _default_limit(source_length: Any) -> Any:
    """Tokens that a translation may have, for a source of so many (a number or an array)."""
    return 2 * source_length + 10


@functools.partial(jax.jit, static_argnames=("graphdef", "beams", "length", "alpha"))
def _search(
    params: Any,
    source: jax.Array,
    visible: jax.Array,
    limits: jax.Array,
    *,
    graphdef: nnx.GraphDef,
    beams: int,
    length: int,
    alpha: float,
) -> Hypotheses:
    model = nnx.merge(graphdef, params)
    memory, caches = model.start_decoding(source, beams, length, visible)

    def step(tokens: jax.Array, index: jax.Array, caches: Any) -> tuple[jax.Array, Any]:
        logits, caches = model.decode_step(tokens, index, memory, caches)
        never = jnp.isin(jnp.arange(logits.shape[-1]), jnp.array([PAD_ID, BOS_ID, UNK_ID]))
        return jnp.where(never, -jnp.inf, logits), caches

    search = greedy_search if beams == 1 else functools.partial(beam_search, beams=beams)
    return search(step, caches, limits=limits, length=length, start=BOS_ID, end=EOS_ID, alpha=alpha)
