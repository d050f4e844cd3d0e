/** A sentence in which the words are marked that the network was never trained on, and what follows from them. @module */

import { html } from "./dom.js";

/** @import { Inspection } from "./types.js" */

/** @type {(inspection: Inspection) => HTMLElement[]} nothing, if it knows all words */
export function markUnknown({ text, unknown_words, mostly_unknown }) {
  if (!unknown_words.length) return [];
  const characters = [...text];
  const ends = [0, ...unknown_words.flat(), characters.length]; // of what is known and unknown by turns
  const marked = ends.slice(1).map((end, i) => {
    const words = characters.slice(ends[i], end).join("");
    return i % 2 ? html("mark", { title: "not in the training text" }, words) : words;
  });
  const consequence = mostly_unknown
    ? "The network was never trained on most words of this sentence, the marked ones: its translation is a guess."
    : "The network was never trained on the marked words; what it makes of them is a guess.";
  return [
    html("p", { class: "unknown" }, ...marked),
    html("p", { class: "quiet" }, consequence),
  ];
}
