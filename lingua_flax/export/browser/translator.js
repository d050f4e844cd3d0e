/** Translates a sentence, and says how: what the server answers to POST /inspect. @module */

import { inKnownCharacters } from "./nearest.js";
import { Network } from "./network.js";
import { beamSearch, largest, logSumExp } from "./search.js";
import { Tokenizer } from "./tokenizer.js";
import { KnownWords } from "./words.js";

/** @import { Question } from "../../page/static/api.js" */
/** @import { Answer, Kept, EncodedWeights, Explanation, Kind, Place } from "../../page/static/types.js" */
/** @import { ModelConfig, Observer, Rows, Source, Tensor, Trace } from "./network.js" */
/** @import { Decoding, Hypothesis } from "./search.js" */
/** @import { Model } from "./tokenizer.js" */

/** @typedef {Record<string, Trace>} Traces by the names of the sublayers */

/**
 * @typedef {object} Description everything but the weights
 * @property {ModelConfig} model
 * @property {Decoding} decoding
 * @property {number[]} source_tags ids that stand before each source
 * @property {string} source_language
 * @property {Model[]} tokenizers of both sides, or a joint one
 * @property {string} kept pattern of what stays as it is
 * @property {string[]} alike characters of which any may stand for another
 */

const [EOS, BOS] = [1, 2];
const CONTROL = ["<s>", "</s>"];
const NUM_ALTERNATIVES = 10;

/** A translator without a server. */
export class Translator {
  /**
   * @param {Description} description
   * @param {Record<string, Tensor>} tensors
   * @param {Uint8Array[]} charsmaps of the tokenizers
   * @param {string[]} words of the training text
   */
  constructor({ model, decoding, source_tags, source_language, tokenizers, kept, alike }, tensors, charsmaps, words) {
    this.network = new Network(model, tensors);
    this.decoding = decoding;
    this.tags = source_tags;
    this.source = new Tokenizer(tokenizers[0], charsmaps[0]);
    this.words = new KnownWords(words, kept);
    this.alike = alike;
    this.target = tokenizers[1] ? new Tokenizer(tokenizers[1], charsmaps[1]) : this.source;
    const language = /^[a-z]{2,3}(?![a-z])/i.exec(source_language)?.[0]; // of a code such as pt_BR
    this.segmenter = new Intl.Segmenter(language, { granularity: "sentence" });
    /** @type {Map<string, string>} translations of sentences that were asked for */
    this.known = new Map();
  }

  /** @type {(question: Question) => Answer | Kept} */
  inspect({ q, sentence = 0, prefix = [], masked = [], heads_off = [], beam = false, explain = null }) {
    const sentences = q.split("\n").flatMap((line) =>
      Array.from(this.segmenter.segment(line), (own) => own.segment.trim())
    )
      .filter(Boolean);
    const text = sentences[sentence] ?? q;
    const told = sentences.length > 1
      ? sentences.map((source) => ({ source, translation: this.translate(source) }))
      : [];
    if (this.keeps(text)) return { text, translation: text, kept: true, sentences: told };
    const ids = this.sourceIds(this.inKnown(text));
    const visible = ids.map((_, position) => !masked.includes(position));
    if (!visible.includes(true)) throw new RangeError("at least one source token must remain visible");
    this.network.off = new Set(heads_off.map(({ attention, layer, head }) => `${nameOf(attention, layer)}/${head}`));
    /** @type {Traces} */
    const traces = {};
    const observe = (/** @type {string} */ name, /** @type {Trace} */ trace) => traces[name] = trace;
    const source = this.network.encode(ids, visible, observe);
    const { steps, finished } = this.search(source, ids.length, prefix);
    const written = finished[0].tokens;
    const hidden = this.read(source, written, observe);
    const logits = this.network.logits(hidden);
    const named = (/** @type {number} */ id) => ({ id, piece: this.target.model.pieces[id][0] });
    const target = withWords(written.map(named)).map((token, i) => {
      const offset = -logSumExp(logits[i]);
      const probability = (/** @type {number} */ id) => Math.exp(logits[i][id] + offset);
      const likeliest = largest([logits[i]], [offset], NUM_ALTERNATIVES);
      const alternatives = likeliest.map(({ id }) => ({ ...named(id), probability: probability(id) }));
      return { ...token, probability: probability(token.id), alternatives };
    });
    return {
      text,
      translation: this.target.decode(written),
      ...(this.words.words.size ? this.words.unknownIn(text) : { unknown_words: [], mostly_unknown: false }),
      source: withWords(ids.map((id, i) => ({ id, piece: this.source.model.pieces[id][0], masked: !visible[i] }))),
      target,
      hypotheses: finished.map(({ score, tokens }) => ({ text: this.target.decode(tokens), score })),
      heads_off,
      attention: {
        encoder: this.weights("encoder", traces, visible),
        decoder: this.weights("decoder", traces),
        cross: this.weights("cross", traces),
      },
      beam: beam ? steps.map((step) => step.map((own) => ({ ...own, ...named(own.id) }))) : null,
      explanation: explain && {
        ...this.explained(explain, traces),
        ...(explain.attention === "encoder" ? { logits: [] } : {
          hidden: [...hidden[explain.query]],
          logits: target[explain.query].alternatives.map((own) => ({ ...own, logit: logits[explain.query][own.id] })),
        }),
      },
      sentences: told,
    };
  }

  /** @type {(text: string) => boolean} whether a sentence stays as it is: without letters, or in unknown characters */
  keeps(text) {
    return !/\p{L}/u.test(text) || this.source.isUnknown(this.inKnown(text));
  }

  /** @type {(text: string) => string} */
  inKnown(text) {
    return inKnownCharacters(text, this.source, this.alike);
  }

  /** @type {(text: string) => string} */
  translate(text) {
    if (this.keeps(text)) return text;
    const translation = this.known.get(text) ?? this.target.decode(this.best(this.inKnown(text)).tokens);
    this.known.set(text, translation);
    return translation;
  }

  /** @type {(sentence: string, decoding?: Decoding) => Hypothesis} */
  best(sentence, decoding) {
    const ids = this.sourceIds(sentence);
    this.network.off.clear();
    const source = this.network.encode(ids, ids.map(() => true));
    return this.search(source, ids.length, [], decoding).finished[0];
  }

  /** @type {(text: string) => number[]} */
  sourceIds(text) {
    const ids = [...this.tags, ...this.source.encode(text), EOS];
    const longest = this.network.config.max_length;
    if (ids.length <= longest) return ids;
    throw new RangeError(`“${text.slice(0, 30)}…” has ${ids.length} tokens; the network reads at most ${longest}`);
  }

  /** @type {(source: Source, length: number, prefix: number[], how?: Decoding) => ReturnType<typeof beamSearch>} */
  search(source, length, prefix, how = this.decoding) {
    const limit = Math.min(2 * length + 10 + prefix.length, this.network.config.max_length);
    return beamSearch(this.network, source, how, limit, prefix);
  }

  /** @type {(source: Source, written: number[], observe: Observer) => Rows} the decoder's output, at all positions */
  read(source, written, observe) {
    const past = Array(written.length).fill(this.network.nothing()); // all rows are of the same hypothesis
    const read = [BOS, ...written.slice(0, -1)];
    return this.network.decode(read, read.map((_, i) => i), past, source, (query, key) => key <= query, observe);
  }

  /** @type {(kind: Kind, traces: Traces, visible?: boolean[]) => EncodedWeights} of queries that anything reads */
  weights(kind, traces, visible) {
    const { num_encoder_layers, num_decoder_layers, num_heads } = this.network.config;
    const layers = kind === "encoder" ? num_encoder_layers : num_decoder_layers;
    const all = Array.from({ length: layers }, (_, layer) => traces[nameOf(kind, layer)].weights);
    const [queries, keys] = [all[0].length, all[0][0][0].length];
    const integers = new Uint16Array(layers * num_heads * queries * keys);
    all.forEach((ofLayer, layer) =>
      ofLayer.forEach((heads, query) =>
        heads.forEach((own, head) => {
          const start = ((layer * num_heads + head) * queries + query) * keys;
          if (visible?.[query] ?? true) integers.set(own.map((weight) => Math.round(65535 * weight)), start);
        })
      )
    );
    const bytes = Array.from(new Uint8Array(integers.buffer), (byte) => String.fromCharCode(byte)).join("");
    return { shape: [layers, num_heads, queries, keys], weights: btoa(bytes) };
  }

  /** @type {(place: Place, traces: Traces) => Omit<Explanation, "hidden" | "logits">} */
  explained(place, traces) {
    const { attention, layer, head, query } = place;
    const { memories, mask, weights, queries, ...trace } = traces[nameOf(attention, layer)];
    const { norm } = this.network.config;
    if (query >= queries.length) throw new RangeError(`a query must be from 0 to ${queries.length - 1}`);
    const width = this.network.headWidth;
    const own = (/** @type {Float32Array} */ row) => [...row.subarray(head * width, (head + 1) * width)];
    const { from, keys, values } = memories[query];
    return {
      ...place,
      norm,
      stream: [...trace.stream[query]],
      read: [...trace.read[query]],
      memory: from.map((row) => [...row]),
      query_vector: own(queries[query]),
      keys: keys.map(own),
      values: values.map(own),
      mask: keys.map((_, key) => mask(query, key)),
      weights: [...weights[query][head]],
      heads: [...trace.heads[query]],
      output: [...trace.output[query]],
      after: [...trace.after[query]],
    };
  }
}

/** @type {(kind: Kind, layer: number) => string} */
function nameOf(kind, layer) {
  return `${kind === "encoder" ? kind : "decoder"}.${layer}.${kind === "cross" ? kind : "self"}_attention`;
}

/**
 * Adds to each token which word it belongs to, by the rules of translation/words.py.
 *
 * @template {{ piece: string }} Token
 * @param {Token[]} tokens
 * @returns {(Token & { word: number })[]}
 */
function withWords(tokens) {
  const isLetter = (/** @type {string | undefined} */ character) => /[\p{L}\p{M}\p{N}]/u.test(character ?? "");
  let [number, word] = [-1, ""];
  return tokens.map((token) => {
    const text = token.piece.replaceAll("▁", " ").trim();
    const isOther = word && text && isLetter([...word].at(-1)) !== isLetter([...text][0]);
    if (number < 0 || /^▁/.test(token.piece) || CONTROL.includes(text) || CONTROL.includes(word) || isOther) {
      number++;
      word = "";
    }
    word += text;
    return { ...token, word: number };
  });
}
