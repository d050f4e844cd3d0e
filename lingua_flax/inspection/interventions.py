"""What the network does with one sentence, also with tokens hidden, heads switched off, or a prescribed beginning."""

import base64
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingua_flax.data.placeholders import Protected
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.inspection.explanation import Explanation, Head, Place, explain
from lingua_flax.inspection.observation import Observation, observe, padded_length, source_tokens
from lingua_flax.inspection.recorded_search import Candidate, recorded_search
from lingua_flax.model.parameters import params_by_name, replace_params
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.batched_search import RunningBatch
from lingua_flax.translation.decoding import length_limit
from lingua_flax.translation.hypotheses import Hypothesis, Translation
from lingua_flax.translation.line_splitting import protected_text
from lingua_flax.translation.requests import Part
from lingua_flax.translation.search import SearchState
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import group_pieces


class Intervention(NamedTuple):
    """What is changed before the network translates."""

    prefix: tuple[int, ...] = ()  # token ids that the translation begins with
    masked: tuple[int, ...] = ()  # positions of source tokens that no layer may attend to
    heads_off: tuple[Head, ...] = ()  # heads that add nothing to the output of their sublayers


class Inspection(NamedTuple):
    """A translation, best hypothesis first, and what the network did while it wrote that.

    It has what the beam search considered, and how the attention weights at one place came about, if asked for.
    """

    protected: Protected
    intervention: Intervention
    hypotheses: tuple[Hypothesis, ...]
    observation: Observation
    beam: list[list[Candidate]] | None = None
    explanation: Explanation | None = None

    @property
    def text(self) -> str:
        """The sentence."""
        return self.protected.source

    def pieces(self, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
        """Returns the pieces of source and translation, placeholders shown as what they stand for."""
        protected, observed = self.protected, self.observation
        written = tokenizer.target_pieces([prediction.token for prediction in observed.target])
        source = tokenizer.source_pieces(observed.source)
        return list(map(protected.original, source)), list(map(protected.restored, written))

    def as_json(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns the answer of POST /inspect (docs/reference/formats.md), but for `checkpoint` and `sentences`.

        Attention weights are integers in base64: text would take three times the time and the space.
        """
        observed, protected = self.observation, self.protected
        unknown = tokenizer.unknown_words(protected)
        source, written = self.pieces(tokenizer)
        sources = zip(observed.source, source, _words_of(source), strict=True)
        attention = {"encoder": observed.encoder, "decoder": observed.decoder, "cross": observed.cross}

        def named(token: int) -> dict[str, Any]:
            return {"id": token, "piece": protected.restored(*tokenizer.target_pieces([token]))}

        def likely(token: int, probability: float) -> dict[str, Any]:
            return {**named(token), "probability": probability}

        def candidate(own: Candidate) -> dict[str, Any]:
            return {"parent": own.parent, **named(own.token), "score": own.score, "outcome": own.outcome}

        explanation: dict[str, Any] | None = None
        if self.explanation:
            explanation, place = self.explanation.as_json() | {"logits": []}, self.explanation.place
            if place.attention != "encoder":
                predicted = observed.target[place.query]
                best = zip(predicted.alternatives, predicted.logits, strict=True)
                explanation["logits"] = [likely(*each) | {"logit": logit} for each, logit in best]
        return {
            "text": self.text,
            "translation": protected.restored(self.hypotheses[0].text),
            "unknown_words": unknown.places,
            "mostly_unknown": unknown.are_most,
            "source": [
                {"id": token, "piece": piece, "word": word, "masked": position in self.intervention.masked}
                for position, (token, piece, word) in enumerate(sources)
            ],
            "target": [
                {**likely(token, probability), "word": word, "alternatives": [likely(*each) for each in alternatives]}
                for (token, probability, alternatives, _), word in zip(observed.target, _words_of(written), strict=True)
            ],
            "hypotheses": [{"text": protected.restored(own.text), "score": own.score} for own in self.hypotheses],
            "heads_off": list(map(dataclasses.asdict, self.intervention.heads_off)),
            "attention": {name: _encoded(weights) for name, weights in attention.items()},
            "beam": [list(map(candidate, step)) for step in self.beam] if self.beam else None,
            "explanation": explanation,
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
    """Translates a sentence, and returns what the network did, and how the attention weights at a place came about.

    Raises UserError if the text has no token or too many, or if a token, position or head does not exist.
    """
    (protected,) = protected_text(translator, [text])
    source = source_tokens(translator, protected)
    _check(translator, len(source), intervention, explained, options)
    changed = dataclasses.replace(translator, params=without_heads(translator, intervention.heads_off))
    limit = length_limit(len(source), len(intervention.prefix), options, translator.max_length)
    hidden, beams = intervention.masked, options.beam_size
    part = Part(protected, source, prefix=intervention.prefix, limit=limit, masked=hidden, num_hypotheses=beams)
    padded = padded_length(translator, len(source))
    batch = RunningBatch(changed, options, [part], 1, padded, is_recorded=record_beam)
    found: dict[int, tuple[Hypothesis, ...]] = {}

    def after_each_step() -> Iterator[SearchState]:
        while batch.num_active:
            found.update(batch.advance(max_steps=1))
            assert batch.progress
            yield batch.progress

    beam = None
    if record_beam:
        penalty = {"alpha": options.length_penalty, "offset": options.penalty_offset}
        beam = recorded_search(after_each_step(), end_token=EOS_ID, **penalty)
    else:
        found.update(batch.advance())
    hypotheses = found[0]
    written = hypotheses[0].tokens
    observation = observe(changed, source, written, intervention.masked)
    explanation = explain(observation, explained, translator.config.norm) if explained else None
    return Inspection(protected, intervention, hypotheses, observation, beam, explanation)


def inspection_of(translator: Translator, translation: Translation) -> Inspection:
    """Returns what the network did while it wrote the best translation; raises UserError as `source_tokens` does."""
    (protected,) = protected_text(translator, [translation.source])
    observation = observe(translator, source_tokens(translator, protected), translation.hypotheses[0].tokens)
    return Inspection(protected, Intervention(), translation.hypotheses, observation)


def without_heads(translator: Translator, heads: Collection[Head]) -> Any:
    """Returns the parameters with these heads switched off: their rows of the output projection are zero."""
    params = params_by_name(translator.params)
    width = translator.config.embed_dim // translator.config.num_heads
    for off in heads:
        stack = "encoder" if off.attention == "encoder" else "decoder"
        kind = "cross_attention" if off.attention == "cross" else "self_attention"
        name = f"{stack}.{off.layer}.{kind}.output.kernel"
        params[name] = params[name].at[off.head * width : (off.head + 1) * width].set(0.0)
    return replace_params(translator.params, params)


def _check(
    translator: Translator, length: int, intervention: Intervention, explained: Place | None, options: DecodingOptions
) -> None:
    """Raises UserError if the intervention is not possible, or there is no such head to explain."""
    vocab_size = translator.tokenizer.target_vocab_size
    limit = length_limit(length, len(intervention.prefix), options, translator.max_length)
    if not all(PAD_ID < token < vocab_size and token not in (BOS_ID, UNK_ID) for token in intervention.prefix):
        raise UserError(f"a prescribed token must be an id from 1 to {vocab_size - 1}, except {BOS_ID} and {UNK_ID}")
    if EOS_ID in intervention.prefix[:-1]:
        raise UserError("the end of the sentence can only be the last of the prescribed tokens")
    if len(intervention.prefix) > limit - (EOS_ID not in intervention.prefix):
        raise UserError(f"{len(intervention.prefix)} tokens are prescribed; the translation has at most {limit}")
    if not all(0 <= position < length for position in intervention.masked):
        raise UserError(f"a masked position must be from 0 to {length - 1}")
    if len(set(intervention.masked)) == length:
        raise UserError("at least one source token must remain visible")
    config = translator.config
    for own in (*intervention.heads_off, *([explained] if explained else [])):
        layers = config.num_encoder_layers if own.attention == "encoder" else config.num_decoder_layers
        if not (0 <= own.layer < layers and 0 <= own.head < config.num_heads):
            raise UserError(
                f"there is no head {own.head} in layer {own.layer} of {own.attention} attention: "
                f"it has {layers} layers of {config.num_heads} heads, counted from 0"
            )
