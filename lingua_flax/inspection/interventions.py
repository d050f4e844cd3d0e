"""What the network does with one sentence: probabilities, alternatives, attention, and the beam.

One can also intervene: hide source tokens from every layer, switch attention heads off, and prescribe how the
translation begins.

S padded source length, T padded target length, V vocabulary, K beams.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.data.batch import pad_rows
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.inspection.explanation import Attention, Explanation, Place, explain
from lingua_flax.inspection.observation import Observation, observe, padded_length, run_program, source_tokens
from lingua_flax.inspection.recorded_search import RecordedSearch, recorded_beam_search
from lingua_flax.model.parameters import params_by_name, replace_params
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import length_limit, mask_special_tokens
from lingua_flax.translation.hypotheses import Hypothesis, Translation
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import group_pieces


class Head(NamedTuple):
    """An attention head; layer and head are counted from 0."""

    attention: Attention
    layer: int
    head: int


@dataclasses.dataclass(frozen=True)
class Intervention:
    """What is changed before the network translates.

    Attributes:
      prefix: token ids that the translation begins with.
      masked: positions of source tokens that no layer may attend to.
      heads_off: heads that are switched off: they add nothing to the output of their sublayers.
    """

    prefix: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()
    heads_off: tuple[Head, ...] = ()


@dataclasses.dataclass(frozen=True)
class Inspection:
    """A translation, and how it came about.

    Attributes:
      hypotheses: the best hypotheses, best first.
      observation: what the network did while it wrote the first one.
      beam: what the beam search considered, if it was recorded.
      explanation: how the attention weights at one place came about, if that was asked for.
    """

    text: str
    intervention: Intervention
    hypotheses: tuple[Hypothesis, ...]
    observation: Observation
    beam: RecordedSearch | None = None
    explanation: Explanation | None = None

    def as_json(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns the inspection as a JSON object.

        Attention weights are unsigned 16-bit integers, low byte first, in base64: 65535 times the weights. In an array
        of this size, text would take three times the time and the space. Placeholders are shown as what they stand for.
        """
        observed, protected = self.observation, tokenizer.protect(self.text)
        source = list(map(protected.original, tokenizer.source_pieces(observed.source)))
        written = [protected.restored(*tokenizer.target_pieces([prediction.token])) for prediction in observed.target]
        attention = {"encoder": observed.encoder, "decoder": observed.decoder, "cross": observed.cross}

        def named(token: int) -> dict[str, Any]:
            return {"id": token, "piece": protected.restored(*tokenizer.target_pieces([token]))}

        def likely(token: int, probability: float) -> dict[str, Any]:
            return {**named(token), "probability": probability}

        return {
            "text": self.text,
            "translation": protected.restored(self.hypotheses[0].text),
            "source": [
                {"id": token, "piece": piece, "word": word, "masked": position in self.intervention.masked}
                for position, (token, piece, word) in enumerate(
                    zip(observed.source, source, _words_of(source), strict=True)
                )
            ],
            "target": [
                {**likely(token, probability), "word": word, "alternatives": [likely(*each) for each in alternatives]}
                for (token, probability, alternatives), word in zip(observed.target, _words_of(written), strict=True)
            ],
            "hypotheses": [{"text": protected.restored(own.text), "score": own.score} for own in self.hypotheses],
            "heads_off": [head._asdict() for head in self.intervention.heads_off],
            "attention": {name: _encoded(weights) for name, weights in attention.items()},
            "beam": self.beam
            and [
                [
                    {"parent": parent, **named(token), "score": score, "outcome": outcome}
                    for parent, token, score, outcome in step
                ]
                for step in self.beam.steps
            ],
            "explanation": self.explanation
            and {
                **self.explanation.as_json(),
                "logits": [likely(token, p) | {"logit": logit} for token, logit, p in self.explanation.logits],
            },
        }


def _words_of(pieces: Sequence[str]) -> list[int]:
    """Returns for each piece which word it belongs to, counted from 0."""
    return [number for number, word in enumerate(group_pieces(pieces)) for _ in word.positions]


def _encoded(weights: np.ndarray) -> dict[str, Any]:
    integers = np.round(65535 * weights).astype("<u2").tobytes()
    return {"shape": weights.shape, "weights": base64.b64encode(integers).decode()}


def inspect(
    translator: Translator,
    text: str,
    options: DecodingOptions,
    intervention: Intervention = Intervention(),
    *,
    record_beam: bool = False,
    explained: Place | None = None,
) -> Inspection:
    """Translates a sentence with `options.beam_size` beams, and returns what the network did.

    It explains the attention weights at the place `explained`, whose query must be a position of the sentence that
    attends: for the decoder and cross-attention, of the translation.

    Raises UserError if the text has no token or too many, or if a token, position or head does not exist.
    """
    source = source_tokens(translator, text)
    _check(translator, len(source), intervention, options)
    changed = dataclasses.replace(translator, params=without_heads(translator, intervention.heads_off))
    padded = pad_rows([source], 1, padded_length(translator, len(source)))
    masked = np.isin(np.arange(padded.shape[1]), intervention.masked)[None]
    limit = length_limit(len(source), len(intervention.prefix), options, translator.max_length)
    part = Part(text, source, prefix=intervention.prefix, limit=limit, masked=intervention.masked)
    (hypotheses,) = changed.search([part], options.beam_size, options)
    observation = observe(changed, source, hypotheses[0].tokens, intervention.masked)
    beam = _recorded(changed, padded, masked, intervention.prefix, options) if record_beam else None
    if not explained:
        return Inspection(text, intervention, hypotheses, observation, beam)
    written = hypotheses[0].tokens
    _check_head(translator, Head(*explained[:3]))
    queries = len(source) if explained.attention == "encoder" else len(written)
    if not 0 <= explained.query < queries:
        raise UserError(f"a query must be from 0 to {queries - 1}")
    explanation = explain(changed, source, written, intervention.masked, explained)
    return Inspection(text, intervention, hypotheses, observation, beam, explanation)


def inspection_of(translator: Translator, translation: Translation) -> Inspection:
    """Returns what the network did while it wrote the best translation of a line, without the beam.

    Raises UserError if the line has no token or too many.
    """
    observation = observe(translator, source_tokens(translator, translation.source), translation.hypotheses[0].tokens)
    return Inspection(translation.source, Intervention(), translation.hypotheses, observation)


def without_heads(translator: Translator, heads: Collection[Head]) -> Any:
    """Returns the parameters with these heads switched off: their rows of the output projection are zero."""
    params = params_by_name(translator.params)
    width = translator.config.embed_dim // translator.config.num_heads
    for attention, layer, head in heads:
        stack = "encoder" if attention == "encoder" else "decoder"
        kind = "cross_attention" if attention == "cross" else "self_attention"
        name = f"{stack}.{layer}.{kind}.output.kernel"
        params[name] = params[name].at[head * width : (head + 1) * width].set(0.0)
    return replace_params(translator.params, params)


def _check(translator: Translator, source_length: int, intervention: Intervention, options: DecodingOptions) -> None:
    """Raises UserError if the intervention is not possible."""
    vocab_size = translator.tokenizer.target_vocab_size
    limit = length_limit(source_length, len(intervention.prefix), options, translator.max_length)
    if not all(PAD_ID < token < vocab_size and token not in (BOS_ID, UNK_ID) for token in intervention.prefix):
        raise UserError(f"a prescribed token must be an id from 1 to {vocab_size - 1}, except {BOS_ID} and {UNK_ID}")
    if EOS_ID in intervention.prefix[:-1]:
        raise UserError("the end of the sentence can only be the last of the prescribed tokens")
    if len(intervention.prefix) > limit - (EOS_ID not in intervention.prefix):
        raise UserError(f"{len(intervention.prefix)} tokens are prescribed; the translation has at most {limit}")
    if not all(0 <= position < source_length for position in intervention.masked):
        raise UserError(f"a masked position must be from 0 to {source_length - 1}")
    if len(set(intervention.masked)) == source_length:
        raise UserError("at least one source token must remain visible")
    for off in intervention.heads_off:
        _check_head(translator, off)


def _check_head(translator: Translator, head: Head) -> None:
    config, attention = translator.config, head.attention
    layers = config.num_encoder_layers if attention == "encoder" else config.num_decoder_layers
    if not (0 <= head.layer < layers and 0 <= head.head < config.num_heads):
        raise UserError(
            f"there is no head {head.head} in layer {head.layer} of {attention} attention: "
            f"it has {layers} layers of {config.num_heads} heads, counted from 0"
        )


def _recorded(
    translator: Translator, padded: np.ndarray, masked: np.ndarray, prefix: Sequence[int], options: DecodingOptions
) -> RecordedSearch:
    """Records the beam search of one sentence, given its padded ids and the positions that are masked, [1, S]."""
    visible = ((padded != PAD_ID) & ~masked).astype(np.int32)
    beams = options.beam_size

    def next_log_probs(hypotheses: Sequence[Sequence[int]]) -> np.ndarray:
        position = len(hypotheses[0])
        read = pad_rows([[BOS_ID, *ids] for ids in hypotheses], beams, padded_length(translator, position + 1))
        read[len(hypotheses) :, 0] = BOS_ID  # unused rows
        log_probs = run_program(_next_log_probs, translator, padded, visible, read, np.int32(position))
        return log_probs[: len(hypotheses)]

    return recorded_beam_search(
        next_log_probs,
        beams=beams,
        max_length=length_limit(int((padded != PAD_ID).sum()), len(prefix), options, translator.max_length),
        end_token=EOS_ID,
        prefix=prefix,
        min_length=options.min_decoding_length,
        alpha=options.length_penalty,
    )


@functools.partial(jax.jit, static_argnames="graphdef")
def _next_log_probs(
    params: Any, source: jax.Array, visible: jax.Array, read: jax.Array, position: jax.Array, *, graphdef: nnx.GraphDef
) -> jax.Array:
    """Returns the log-probabilities of all tokens after read[:, : position + 1], float32 [K, V]."""
    model = nnx.merge(graphdef, params)
    source, visible = (jnp.broadcast_to(array, (len(read), array.shape[1])) for array in (source, visible))
    logits, _ = model(source, read, source_segments=visible)
    return jax.nn.log_softmax(mask_special_tokens(jax.lax.dynamic_slice_in_dim(logits, position, 1, axis=1))[:, 0])
