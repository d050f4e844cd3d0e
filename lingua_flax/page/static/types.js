/** What the server answers; see the documentation of the HTTP interface. @module */

/** @typedef {"encoder" | "decoder" | "cross"} Kind of attention */
/** @typedef {{ attention: Kind, layer: number, head: number }} Head, counted from 0 */
/** @typedef {{ id: number, piece: string, word: number, masked: boolean }} SourceToken */
/** @typedef {{ id: number, piece: string, probability: number }} Alternative */
/** @typedef {Alternative & { word: number, alternatives: Alternative[] }} TargetToken */
/** @typedef {{ shape: [number, number, number, number], weights: string }} EncodedWeights */
/** @typedef {{ source: string, translation: string }} Sentence */
/** @import { Weights } from "./weights.js" */
/** @typedef {{ parent: number, id: number, piece: string, score: number, outcome: string }} Candidate */

/**
 * @typedef {{
 *   text: string, translation: string, unknown_words: [number, number][], mostly_unknown: boolean,
 *   source: SourceToken[], target: TargetToken[],
 *   hypotheses: { text: string, score: number }[], heads_off: Head[], attention: Record<Kind, Weights>,
 *   beam: Candidate[][] | null, explanation: Explanation | null, sentences: Sentence[]
 * }} Inspection its `sentences` are those of the text, none if it is a single one
 */

/** @typedef {{ text: string, translation: string, kept: true, sentences: Sentence[] }} Kept as it is, not translated */
/** @typedef {Omit<Inspection, "attention"> & { attention: Record<Kind, EncodedWeights> }} Answer of POST /inspect */

/**
 * @typedef {{ attention: Kind, layer: number, head: number, query: number }} Place
 * @typedef {Place & {
 *   norm: "pre" | "post", stream: number[], read: number[], memory: number[][], query_vector: number[],
 *   keys: number[][], values: number[][], mask: boolean[], weights: number[], heads: number[], output: number[],
 *   after: number[], hidden?: number[], logits: (Alternative & { logit: number })[]
 * }} Explanation what one head computes at one query; `mask` is true where it may attend, only decoders have `hidden`
 */

/**
 * @typedef {{
 *   name: string, step: number, num_steps: number | null, seconds_since_change: number | null, checkpoints: number[],
 *   best_checkpoint: number | null, label_smoothing: number, loss: number | null, curves: string | null,
 *   validation: { step: number, loss: number, loss_shuffled: number | null, chrf: number } | null,
 *   samples: { source: string, reference: string, translation: string }[]
 * }} Run
 */

/** @typedef {{ word: string, sentences: string[] }} Ambiguous */
/** @typedef {{ sentences: string[], ambiguous: Ambiguous[] }} Examples */

export {};
