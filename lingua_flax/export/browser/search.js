/** Beam search that keeps every continuation it considers: the rules of recorded_search.py. @module */

/** @import { Candidate } from "../../page/static/types.js" */
/** @import { Memory, Network, Rows, Source } from "./network.js" */

const [PAD, EOS, BOS, UNK] = [0, 1, 2, 3];

/** @typedef {{ beam_size: number, length_penalty: number, length_penalty_form?: "wu" | "length" }} Decoding */
/** @typedef {Omit<Candidate, "piece">} Step a candidate without its text */
/** @typedef {{ score: number, tokens: number[] }} Hypothesis with its end token */
/** @typedef {{ rank: number, score: number, tokens: number[], past: Memory[] }} Alive of the last step */

/** @type {(logits: Float32Array) => number} of what may be written: not padding, start and unknown, which become -∞ */
export function logSumExp(logits) {
  for (const id of [PAD, BOS, UNK]) logits[id] = -Infinity;
  const most = logits.reduce((a, b) => Math.max(a, b));
  let sum = 0;
  for (let id = 0; id < logits.length; id++) sum += Math.exp(logits[id] - most);
  return most + Math.log(sum);
}

/** @typedef {{ row: number, id: number, score: number }[]} Scored */

/**
 * Returns the largest finite sums of a logit and the offset of its row, largest first, equal ones in their order.
 *
 * @type {(rows: Float32Array[], offsets: number[], count: number, only?: number | null) => Scored} of one token only
 */
export function largest(rows, offsets, count, only = null) {
  /** @type {Scored} */
  const found = [];
  for (let row = 0; row < rows.length; row++) {
    for (let id = only ?? 0; id < (only === null ? rows[row].length : only + 1); id++) {
      const score = rows[row][id] + offsets[row];
      if (score === -Infinity || (found.length === count && score <= found[count - 1].score)) continue;
      let place = found.length;
      while (place && found[place - 1].score < score) place--;
      found.splice(place, 0, { row, id, score });
      found.length = Math.min(found.length, count);
    }
  }
  return found;
}

/** @typedef {{ steps: Step[][], finished: Hypothesis[] }} Found */

/**
 * Searches until no hypothesis in the beam can become one of the best finished ones.
 *
 * The limit is a number of tokens, the end token included; the prefix is prescribed.
 *
 * @type {(network: Network, source: Source, decoding: Decoding, limit: number, prefix: number[]) => Found}
 */
export function beamSearch(network, source, decoding, limit, prefix) {
  const { beam_size: beams, length_penalty: alpha } = decoding;
  const offset = decoding.length_penalty_form === "length" ? 0 : 5;
  const penalty = (/** @type {number} */ length) => ((offset + length) / (offset + 1)) ** alpha;
  /** @type {Step[][]} */
  const steps = [];
  /** @type {Hypothesis[]} */
  let finished = [];
  /** @type {Alive[]} */
  let alive = [{ rank: -1, score: 0, tokens: [], past: network.nothing() }];
  for (let position = 0; position < limit; position++) {
    const read = alive.map(({ tokens }) => tokens.at(-1) ?? BOS);
    const hidden = network.decode(read, read.map(() => position), alive.map(({ past }) => past), source, () => true);
    const logits = network.logits(hidden);
    const offsets = alive.map(({ score }, row) => score - logSumExp(logits[row]));
    const forced = prefix[position] ?? (position === limit - 1 ? EOS : null);
    /** @type {Alive[]} */
    const continued = [];
    const candidates = largest(logits, offsets, forced === null ? 2 * beams : beams, forced).map(
      ({ row, id, score }, rank) => {
        const parent = alive[row];
        const tokens = [...parent.tokens, id];
        /** @type {Candidate["outcome"]} */
        let outcome = "dropped";
        if (id === EOS && rank < beams) {
          score /= penalty(tokens.length);
          outcome = "finished";
          finished.push({ score, tokens });
        } else if (id !== EOS && continued.length < beams) {
          outcome = "kept";
          const past = parent.past.map(({ from, keys, values }) => ({
            from: [...from],
            keys: [...keys],
            values: [...values],
          }));
          continued.push({ rank, score, tokens, past });
        }
        return { parent: parent.rank, id, score, outcome };
      },
    );
    steps.push(candidates);
    finished = finished.sort((a, b) => b.score - a.score).slice(0, beams);
    alive = continued;
    // No log-probability can rise, and no penalty exceeds that of the limit.
    const possible = alive.length ? alive[0].score / penalty(limit) : -Infinity;
    if (!alive.length || (finished.length === beams && (beams === 1 || finished[beams - 1].score >= possible))) break;
  }
  return { steps, finished };
}
