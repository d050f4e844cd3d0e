/** A sentence in which the words are marked that the network was never trained on, and what follows from them. @module */

import { html } from "./dom.js";

/** @import { Inspection } from "./types.js" */

/**
 * Marks the unknown words of a sentence in the text that it is part of, and says what follows from them.
 *
 * @param {Pick<Inspection, "text" | "unknown_words" | "mostly_unknown">} inspection
 * @param {string} whole text
 * @param {string[]} words that the network knows
 * @param {(text: string) => void} change takes the text with one of these words in the place of the first unknown one
 * @returns {[(Node | string)[], HTMLElement[]]} nothing, if it knows all words
 */
export function markUnknown({ text, unknown_words, mostly_unknown }, whole, words, change) {
  if (!unknown_words.length) return [[], []];
  const start = Math.max(whole.indexOf(text), 0);
  const [before, after] = [whole.slice(0, start), whole.slice(start + text.length)];
  const characters = [...text];
  const ends = [0, ...unknown_words.flat(), characters.length]; // of what is known and unknown by turns
  const marked = ends.slice(1).map((end, i) => {
    const words = characters.slice(ends[i], end).join("");
    return i % 2 ? html("mark", { title: "not in the training text" }, words) : words;
  });
  const unknown = unknown_words.map(([begin, end]) => characters.slice(begin, end).join(""));
  const guess = mostly_unknown ? "its translation is a guess" : "what it makes of them is a guess";
  const tried = (/** @type {string} */ word) =>
    before + characters.toSpliced(unknown_words[0][0], unknown[0].length, word).join("") + after;
  return [
    [before, ...marked],
    [
      html(
        "p",
        { class: "quiet chips" },
        `Never seen in training: ${unknown.join(", ")}; ${guess}. `,
        words.length > 0 && "Words to try:",
        ...words.filter((word) => !unknown.includes(word)).map((word) =>
          html("button", { click: () => change(tried(word)) }, word)
        ),
      ),
    ],
  ];
}
