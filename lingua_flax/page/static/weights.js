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

  /** @type {(layer: number | null, head: number | null) => { layer: number, head: number }[]} null for all */
  headsOf(layer, head) {
    const all = Array.from({ length: this.layers * this.heads }, (_, i) => (
      { layer: Math.floor(i / this.heads), head: i % this.heads }
    ));
    return all.filter((own) => (layer ?? own.layer) === own.layer && (head ?? own.head) === own.head);
  }

  /** @type {(layer: number | null, head: number | null) => Float32Array} [queries * keys], the mean of these heads */
  map(layer, head) {
    const size = this.queries * this.keys;
    const mean = new Float32Array(size);
    const heads = this.headsOf(layer, head);
    for (const own of heads) {
      const start = (own.layer * this.heads + own.head) * size;
      for (let i = 0; i < size; i++) mean[i] += this.values[start + i];
    }
    return mean.map((sum) => sum / heads.length);
  }

  /** Returns the head whose largest weights are the largest, on average over all queries. */
  clearest() {
    const heads = this.headsOf(null, null);
    const sums = heads.map(({ layer, head }) => {
      const map = this.map(layer, head);
      const rows = Array.from({ length: this.queries }, (_, q) => map.subarray(q * this.keys, (q + 1) * this.keys));
      return rows.reduce((sum, row) => sum + Math.max(...row), 0);
    });
    return heads[sums.indexOf(Math.max(...sums))];
  }
}

/** @type {(answer: Answer) => Inspection} Decodes the attention weights of an answer of the server */
export function decode(answer) {
  const { encoder, decoder, cross } = answer.attention;
  const attention = { encoder: new Weights(encoder), decoder: new Weights(decoder), cross: new Weights(cross) };
  return { ...answer, attention };
}

/** @typedef {{ piece: string, word: number }[]} Tokens */

/** @type {(inspection: Inspection, kind: Kind) => [Tokens, Tokens]} those that attend, and those that are attended to */
export function tokensOf({ source, target }, kind) {
  const read = [{ piece: "<s>", word: -1 }, ...target.slice(0, -1)];
  if (kind === "encoder") return [source, source];
  return kind === "decoder" ? [read, read] : [target, source];
}

/** @type {(tokens: Tokens, merged: boolean, sinks: boolean) => Label[]} */
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

/** @type {(labels: Label[], weights: number[]) => string} the names of the largest weights, with the weights */
export function largest(labels, weights) {
  const order = labels.map((_, i) => i).sort((a, b) => weights[b] - weights[a]).slice(0, NAMED);
  return order.map((i) => `${labels[i].name} ${percent(weights[i])}`).join(", ");
}

/** @typedef {Pick<Selection, "kind" | "layer" | "head">} Heads one, those of a layer, or all */

/**
 * Returns where the largest weight is between some positions that attend and some that are attended to.
 *
 * @type {(inspection: Inspection, heads: Heads, queries: number[], keys: number[]) => Strongest}
 */
export function strongest(inspection, { kind, layer, head }, queries, keys) {
  const weights = inspection.attention[kind];
  let best = { layer: 0, head: 0, query: 0, key: 0, weight: -1 };
  for (const own of weights.headsOf(layer, head)) {
    const map = weights.map(own.layer, own.head);
    for (const query of queries) {
      for (const key of keys) {
        const weight = map[query * weights.keys + key];
        if (weight > best.weight) best = { ...own, query, key, weight };
      }
    }
  }
  return best;
}

/**
 * Returns, for a word of the translation, which words of the source get more than all others from some head of
 * cross-attention, each with the head that gives it the most; the largest weight comes first.
 *
 * @type {(inspection: Inspection, query: Label) => (Strongest & { name: string })[]}
 */
export function leaders(inspection, query) {
  /** @type {Map<string, Strongest & { name: string }>} */
  const best = new Map();
  for (const own of inspection.attention.cross.headsOf(null, null)) {
    const selection = { kind: /** @type {const} */ ("cross"), ...own, words: true, sinks: false };
    const { queries, keys, values } = tableOf(inspection, selection);
    const row = values[queries.findIndex(({ positions }) => positions[0] === query.positions[0])];
    if (!row?.length) continue;
    const key = row.indexOf(Math.max(...row));
    const { name, positions } = keys[key];
    const id = `${name} ${positions}`;
    if (row[key] <= (best.get(id)?.weight ?? 0)) continue;
    best.set(id, { ...strongest(inspection, selection, query.positions, positions), weight: row[key], name });
  }
  return [...best.values()].sort((a, b) => b.weight - a.weight);
}
