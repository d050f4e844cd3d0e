/** A guided tour of five minutes: what to look at, and the page set so that one sees it. @module */

import { html } from "./dom.js";

/** @import { State } from "./main.js" */

const RIVER = "I swam across the river to get to the other bank.";
const PAYCHECK = "I deposited my paycheck at the bank yesterday.";
const WALK = "I walked along the river to the bank.";
const CAT = "The cat sat on the mat because it was tired.";

/** @type {[string, State, string][]} title, what the page shows, text */
const STOPS = [
  [
    "One word, two meanings",
    { panels: [{ text: RIVER }, { text: PAYCHECK }] },
    "“bank” becomes “rive” beside a river and “banque” where a paycheck goes. No rule says so: the network has learned " +
    "it from sentences. How does it know?",
  ],
  [
    "Look where it looks",
    { panels: [{ text: WALK }] },
    "Hover over “rive”: the words of the source light up by how much attention they got. Above them, the page names " +
    "heads in which one word leads. Click “river” in the source to hide it: what becomes of “rive”? (The network has " +
    "not learned such sentences, so its French is clumsy.)",
  ],
  [
    "Cross-attention",
    { view: "attention", panels: [{ text: RIVER }] },
    "A row for each word of the translation, a column for each word of the source. With </s> and punctuation, a row " +
    "adds up to 100%. Click the small maps: each head looks for something else.",
  ],
  [
    "Who was tired?",
    { panels: [{ text: CAT }] },
    "French must know whether “it” is a he or a she. Hover over “il”: is there a head that looks at “cat” rather than " +
    "at “it”? Click its name to see the map of that head.",
  ],
  [
    "Self-attention of the encoder",
    { view: "attention", selection: { kind: "encoder" }, panels: [{ text: CAT }] },
    "The words of the source look at each other before anything is translated. Click the small maps: some heads look " +
    "at the word before or after, others spread over the sentence.",
  ],
  [
    "The mask",
    { view: "attention", selection: { kind: "decoder" }, panels: [{ text: CAT, step: 8 }] },
    "The decoder reads its own words, but only those before: the triangle is hatched. Press “Play” to see the " +
    "translation grow word by word, until the network writes </s>.",
  ],
  [
    "Every number",
    { view: "attention", panels: [{ text: RIVER }] },
    "Click any weight and follow it: the vectors of both words, query times key, the softmax, the values, the heads " +
    "side by side, and what is added to the stream.",
  ],
  [
    "The search",
    { view: "beam", panels: [{ text: PAYCHECK }] },
    "The network only gives probabilities. The beam search keeps the best few beginnings at every step; click a node " +
    "to read its hypothesis. That is all: probabilities, attention, and a search.",
  ],
];

/** @type {(open: (state: State) => void, end: () => void) => HTMLElement} */
export function drawTour(open, end) {
  let number = 0;
  const title = html("h2", {});
  const text = html("p", {});
  const back = html("button", { click: () => go(number - 1) }, "Back");
  const next = html("button", { click: () => number < STOPS.length - 1 ? go(number + 1) : end() });
  /** @param {number} to */
  function go(to) {
    number = to;
    const [name, state, says] = STOPS[to];
    open(state);
    title.textContent = `${to + 1} of ${STOPS.length}: ${name}`;
    text.textContent = says;
    back.disabled = to === 0;
    next.textContent = to < STOPS.length - 1 ? "Next" : "End";
  }
  go(0);
  const close = html("button", { click: end }, "Leave");
  return html("div", { class: "tour" }, title, text, html("div", { class: "row" }, back, next, close));
}
