/** Attention weights as tables: of tokens or of words, of one head or a mean. @module */

import { percent, readable } from "./dom.js";

/** @import { Answer, EncodedWeights, Inspection, Kind } from "./types.js" */

/**
 * What is shown of the attention; in both panels, so that they can be compared. Layer and head are counted from 0 and
 * null for the mean of all; words merge their pieces; sinks are the end of the sentence and punctuation.
 *
 * @typedef {{ kind: Kind, layer: number | null, head: number | null, words: boolean, sinks: boolean }} Selection
 */

/** @typedef {{ name: string, positions: number[] }} Label of a row or a column, with the positions of its tokens */
/** @typedef {{ queries: Label[], keys: Label[], values: number[][] }} Table */
/** @typedef {{ query: number, key: number }} Pair of tokens, by their positions */
/** @typedef {Pair & { layer: number, head: number, weight: number }} Strongest */

const NAMED = 4; // labels that are named in a sentence
/** Scripts without spaces: a word of theirs is not known, and a whole sentence would be one. */
const SPACELESS = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]/u;
const SINK = /^(<\/s>|[^\p{L}\p{M}\p{N}]+)$/u;

/** The attention weights of all heads of one kind. */
export class Weights {
  /** @param {EncodedWeights} encoded */
  constructor({ shape, weights }) {
    this.layers = shape[0];
    this.heads = shape[1];
    this.queries = shape[2];
    this.keys = shape[3];
    const bytes = Uint8Array.from(atob(weights), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    this.values = Float32Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true) / 65535);
  }

  /**
   * Returns the weights of a head, or their mean over the heads of a layer or over all heads, [queries * keys].
   *
   * @type {(layer: number | null, head: number | null) => Float32Array}
   */
  map(layer, head) {
    const size = this.queries * this.keys;
    const mean = new Float32Array(size);
    let count = 0;
    for (let l = 0; l < this.layers; l++) {
      for (let h = 0; h < this.heads; h++) {
        if ((layer !== null && l !== layer) || (head !== null && h !== head)) continue;
        const start = (l * this.heads + h) * size;
        for (let i = 0; i < size; i++) mean[i] += this.values[start + i];
        count++;
      }
    }
    return mean.map((sum) => sum / count);
  }

  /** Returns the head whose largest weights are the largest, on average over all queries. */
  clearest() {
    let best = { layer: 0, head: 0, sum: -1 };
    for (let layer = 0; layer < this.layers; layer++) {
      for (let head = 0; head < this.heads; head++) {
        const map = this.map(layer, head);
        let sum = 0;
        for (let q = 0; q < this.queries; q++) sum += Math.max(...map.subarray(q * this.keys, (q + 1) * this.keys));
        if (sum > best.sum) best = { layer, head, sum };
      }
    }
    return { layer: best.layer, head: best.head };
  }
}

/** @type {(answer: Answer) => Inspection} Decodes the attention weights of an answer of the server */
export function decode(answer) {
  const { encoder, decoder, cross } = answer.attention;
  const attention = { encoder: new Weights(encoder), decoder: new Weights(decoder), cross: new Weights(cross) };
  return { ...answer, attention };
}

/**
 * Returns the tokens that attend and those that are attended to.
 *
 * @param {Inspection} inspection
 * @param {Kind} kind
 * @returns {[{ piece: string, word: number }[], { piece: string, word: number }[]]}
 */
export function tokensOf({ source, target }, kind) {
  const read = [{ piece: "<s>", word: -1 }, ...target.slice(0, -1)];
  if (kind === "encoder") return [source, source];
  return kind === "decoder" ? [read, read] : [target, source];
}

/** @type {(tokens: { piece: string, word: number }[], merged: boolean, sinks: boolean) => Label[]} */
function labels(tokens, merged, sinks) {
  /** @type {{ word: number, pieces: string, positions: number[] }[]} */
  const groups = [];
  tokens.forEach(({ piece, word }, position) => {
    const last = groups.at(-1);
    if (merged && last?.word === word && !SPACELESS.test(last.pieces + piece)) {
      last.pieces += piece;
      last.positions.push(position);
    } else {
      groups.push({ word, pieces: piece, positions: [position] });
    }
  });
  const all = groups.map(({ pieces, positions }) => ({ name: readable(pieces), positions }));
  return sinks ? all : all.filter(({ name }) => !SINK.test(name));
}

/**
 * Returns a table of weights: of words, the mean over the pieces that attend of the sums over those attended to.
 *
 * @type {(inspection: Inspection, selection: Pick<Selection, "kind" | "layer" | "head" | "words" | "sinks">) => Table}
 */
export function tableOf(inspection, { kind, layer, head, words, sinks }) {
  const weights = inspection.attention[kind];
  const map = weights.map(layer, head);
  const [attending, attended] = tokensOf(inspection, kind);
  const [queries, keys] = [labels(attending, words, sinks), labels(attended, words, sinks)];
  const values = queries.map((query) =>
    keys.map((key) => {
      let sum = 0;
      for (const q of query.positions) for (const k of key.positions) sum += map[q * weights.keys + k];
      return sum / query.positions.length;
    })
  );
  return { queries, keys, values };
}

/**
 * Returns the names of the largest weights, with the weights.
 *
 * @param {Label[]} labels
 * @param {number[]} weights
 */
export function largest(labels, weights) {
  const order = labels.map((_, i) => i).sort((a, b) => weights[b] - weights[a]).slice(0, NAMED);
  return order.map((i) => `${labels[i].name} ${percent(weights[i])}`).join(", ");
}

/**
 * Returns where the largest weight is between some positions that attend and some that are attended to.
 *
 * @param {Inspection} inspection
 * @param {Pick<Selection, "kind" | "layer" | "head">} selection among these heads
 * @param {number[]} queries
 * @param {number[]} keys
 * @returns {Strongest}
 */
export function strongest(inspection, { kind, layer, head }, queries, keys) {
  const weights = inspection.attention[kind];
  let best = { layer: 0, head: 0, query: 0, key: 0, weight: -1 };
  for (let l = layer ?? 0; l <= (layer ?? weights.layers - 1); l++) {
    for (let h = head ?? 0; h <= (head ?? weights.heads - 1); h++) {
      const map = weights.map(l, h);
      for (const query of queries) {
        for (const key of keys) {
          const weight = map[query * weights.keys + key];
          if (weight > best.weight) best = { layer: l, head: h, query, key, weight };
        }
      }
    }
  }
  return best;
}

/**
 * Returns, for a word of the translation, which words of the source get more than all others from some head of
 * cross-attention, each with the head that gives it the most; the largest weight comes first.
 *
 * @param {Inspection} inspection
 * @param {Label} query
 * @returns {(Strongest & { name: string })[]}
 */
export function leaders(inspection, query) {
  /** @type {Map<string, Strongest & { name: string }>} */
  const best = new Map();
  const { layers, heads } = inspection.attention.cross;
  for (let layer = 0; layer < layers; layer++) {
    for (let head = 0; head < heads; head++) {
      const { queries, keys, values } = tableOf(inspection, { kind: "cross", layer, head, words: true, sinks: false });
      const row = values[queries.findIndex(({ positions }) => positions[0] === query.positions[0])];
      if (!row?.length) continue;
      const key = row.indexOf(Math.max(...row));
      const { name, positions } = keys[key];
      const id = `${name} ${positions}`;
      if (row[key] <= (best.get(id)?.weight ?? 0)) continue;
      const pair = strongest(inspection, { kind: "cross", layer, head }, query.positions, positions);
      best.set(id, { ...pair, weight: row[key], name });
    }
  }
  return [...best.values()].sort((a, b) => b.weight - a.weight);
}
