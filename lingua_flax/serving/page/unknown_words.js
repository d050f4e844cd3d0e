/** A sentence in which the words are marked that the network was never trained on, and what follows from them. @module */

import { html } from "./dom.js";

/** @import { Inspection } from "./types.js" */

/** @type {(inspection: Inspection) => HTMLElement[]} nothing, if it knows all words */
export function markUnknown({ text, unknown_words, mostly_unknown }) {
  if (!unknown_words.length) return [];
  const characters = [...text];
  const between = (/** @type {number} */ begin, /** @type {number | undefined} */ end) =>
    characters.slice(begin, end).join("");
  const marked = unknown_words.flatMap(([begin, end], i) => [
    between(unknown_words[i - 1]?.[1] ?? 0, begin),
    html("mark", { title: "not in the training text" }, between(begin, end)),
  ]);
  const consequence = mostly_unknown
    ? "The network was never trained on most words of this sentence, the marked ones: its translation is a guess."
    : "The network was never trained on the marked words; what it makes of them is a guess.";
  return [
    html("p", { class: "unknown" }, ...marked, between(unknown_words.at(-1)?.[1] ?? 0, undefined)),
    html("p", { class: "quiet" }, consequence),
  ];
}
