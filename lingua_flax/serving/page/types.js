/** What the server answers; see the documentation of the HTTP interface. @module */

/** @typedef {"encoder" | "decoder" | "cross"} Kind of attention */
/** @typedef {{ attention: Kind, layer: number, head: number }} Head, counted from 0 */
/** @typedef {{ id: number, piece: string, word: number, masked: boolean }} SourceToken */
/** @typedef {{ id: number, piece: string, probability: number }} Alternative */
/** @typedef {Alternative & { word: number, alternatives: Alternative[] }} TargetToken */
/** @typedef {{ shape: [number, number, number, number], weights: string }} EncodedWeights */
/** @import { Weights } from "./weights.js" */
/** @typedef {{ parent: number, id: number, piece: string, score: number, outcome: string }} Candidate */

/**
 * @typedef {object} Inspection
 * @property {string} text
 * @property {string} translation
 * @property {SourceToken[]} source
 * @property {TargetToken[]} target
 * @property {{ text: string, score: number }[]} hypotheses
 * @property {Head[]} heads_off
 * @property {Record<Kind, Weights>} attention
 * @property {Candidate[][] | null} beam
 * @property {Explanation | null} explanation
 * @property {{ source: string, translation: string }[]} sentences of the text; none if it is a single one
 */

/** @typedef {Omit<Inspection, "attention"> & { attention: Record<Kind, EncodedWeights> }} Answer of POST /inspect */

/**
 * @typedef {object} Explanation what one head computes at one query
 * @property {Kind} attention
 * @property {number} layer
 * @property {number} head
 * @property {number} query
 * @property {"pre" | "post"} norm
 * @property {number[]} stream
 * @property {number[]} read
 * @property {number[][]} memory
 * @property {number[]} query_vector
 * @property {number[][]} keys
 * @property {number[][]} values
 * @property {boolean[]} mask true where the query may attend
 * @property {number[]} weights
 * @property {number[]} heads
 * @property {number[]} output
 * @property {number[]} after
 * @property {number[]} [hidden] only of the decoder
 * @property {(Alternative & { logit: number })[]} logits
 */

/**
 * @typedef {object} Run
 * @property {string} name
 * @property {number} step
 * @property {number | null} num_steps
 * @property {number | null} seconds_since_change
 * @property {number[]} checkpoints
 * @property {number | null} best_checkpoint
 * @property {number} label_smoothing
 * @property {[number, number][]} training_loss
 * @property {{ step: number, loss: number, loss_shuffled: number | null, bleu: number }[]} validations
 * @property {{ source: string, reference: string, translation: string }[]} samples
 */

/** @typedef {{ word: string, sentences: string[] }} Ambiguous */
/** @typedef {{ sentences: string[], ambiguous: Ambiguous[] }} Examples */

export {};
