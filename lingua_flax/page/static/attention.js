/** The attention of a sentence: its place in the network, small maps of all heads, one of them in large. @module */

import { drawDiagram } from "./diagram.js";
import { checkbox, html, percent, readable, toggle } from "./dom.js";
import { drawHeatMap } from "./heatmap.js";
import { strongest, tableOf } from "./weights.js";

/** @import { Head, Inspection, Kind } from "./types.js" */
/** @import { Heads, Pair, Selection, Strongest, Weights } from "./weights.js" */

/** @type {[Kind, string, string][]} */
export const KINDS = [
  ["cross", "Cross-attention", "Each word of the translation looks at the source, for what it is to say next."],
  ["encoder", "Encoder self-attention", "The words of the source look at each other: what each means depends on them."],
  [
    "decoder",
    "Masked self-attention",
    "Each word of the translation looks at the words before it. Later ones are masked (hatched): while it translates, " +
    "the network has not written them yet.",
  ],
];
/** @type {Selection} */
export const DEFAULT = { kind: "cross", layer: null, head: null, words: true, sinks: false };

/**
 * What one can do with the attention; without a server, only change what is shown.
 *
 * @typedef {object} Actions
 * @property {(changes: Partial<Selection>) => void} change shows something else
 * @property {(head: Head, off: boolean) => void} [switchHead] switches a head off or on
 * @property {(weight: Strongest) => void} [open] shows how a weight is made
 * @property {Pair | null} [pair] the tokens of the weight that is open
 * @property {HTMLElement} [explanation] of that weight, or how to get one
 * @property {(step: number | null) => void} [goTo] shows only the first tokens of the translation, or all
 * @property {number} [length] number of tokens of the whole translation
 * @property {() => void} [play] goes on step by step, or pauses
 * @property {boolean} [isPlaying]
 */

/** @type {(place: HTMLElement, inspection: Inspection, selection: Selection, actions: Actions) => void} */
export function showAttention(place, inspection, selection, actions) {
  const { kind, head } = selection;
  const table = tableOf(inspection, selection);
  const kinds = KINDS.map(([name, title]) =>
    toggle(title, name === kind, () => actions.change({ kind: name, ...inspection.attention[name].clearest() }))
  );
  /** @param {number} query @param {number} key */
  const open = (query, key) => {
    const { positions } = table.queries[query];
    if (kind === "encoder" && positions.every((position) => inspection.source[position].masked)) return;
    actions.open?.(strongest(inspection, selection, positions, table.keys[key].positions));
  };
  /** @param {number} query @param {number} key */
  const isOpen = (query, key) =>
    !!actions.pair && table.queries[query].positions.includes(actions.pair.query) &&
    table.keys[key].positions.includes(actions.pair.key);
  /** @type {(name: "words" | "sinks", title: string) => HTMLElement} */
  const option = (name, title) => checkbox(title, selection[name], (checked) => actions.change({ [name]: checked }));
  const scrolled = [".attention", ".overview"].map((part) => place.querySelector(part)?.scrollTop ?? 0);
  place.replaceChildren(
    ...(actions.goTo ? [drawProgress(inspection, actions, actions.goTo)] : []),
    html(
      "div",
      { class: "attention", "data-kind": kind },
      html(
        "div",
        { class: "overview" },
        drawDiagram(inspection, selection, (kind, layer) => actions.change({ kind, layer, head: head ?? 0 })),
        drawStrip(inspection, selection, actions),
      ),
      html(
        "figure",
        {},
        html("div", { class: "segments", role: "group", "aria-label": "Kind of attention" }, ...kinds),
        html("p", { class: "purpose" }, KINDS.find(([name]) => name === kind)?.[2] ?? ""),
        html("figcaption", {}, describe(selection)),
        html(
          "div",
          { class: "row options" },
          option("words", "whole words"),
          option("sinks", "</s> and punctuation"),
        ),
        drawHeatMap(table, kind === "decoder", describe(selection), actions.open && open, isOpen),
      ),
      actions.explanation,
    ),
  );
  place.querySelector(".map[aria-pressed=true]")?.scrollIntoView({ block: "nearest", inline: "center" });
  [".attention", ".overview"].forEach((part, i) => place.querySelector(part)?.scrollTo(0, scrolled[i]));
  place.querySelector(".heat [aria-pressed=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** @type {(inspection: Inspection, actions: Actions, goTo: (step: number | null) => void) => HTMLElement} word by word */
function drawProgress({ target }, { length = 0, play, isPlaying = false }, goTo) {
  const step = target.length;
  const read = ["<s>", ...target.slice(0, -1).map(({ piece }) => piece)].join("");
  const next = target[step - 1];
  /** @type {(title: string, sign: string, off: boolean, to: number | null) => HTMLElement} */
  const button = (title, sign, off, to) =>
    html("button", { disabled: off, "aria-label": title, "data-sign": sign, click: () => goTo(to) }, title);
  return html(
    "div",
    { class: "row progress", role: "group", "aria-label": "Word by word" },
    toggle("Play", isPlaying, () => play?.(), { class: "play", "aria-label": "Play" }),
    button("From the start", "⇤", step === 1, 1),
    button("Back", "←", step === 1, step - 1),
    button("Next step", "→", step === length, step + 1),
    button("Whole sentence", "⇥", step === length, null),
    html(
      "p",
      { role: "status" },
      `Step ${step} of ${length}: `,
      html("span", { class: "read" }, `having read “${readable(read)}”, `),
      `the network writes “${readable(next.piece)}” (${percent(next.probability)}).`,
    ),
  );
}

/** @param {Heads} heads */
export function describe({ kind, layer, head }) {
  const name = KINDS.find(([known]) => known === kind)?.[1];
  if (layer === null) return `${name}, mean of all heads`;
  return head === null ? `${name}, layer ${layer + 1}, mean` : `${name}, layer ${layer + 1}, head ${head + 1}`;
}

/** @type {(inspection: Inspection, selection: Selection, actions: Actions) => HTMLElement} small maps, in rows of layers */
function drawStrip(inspection, selection, { change, switchHead }) {
  const { kind } = selection;
  const weights = inspection.attention[kind];
  /** @type {(layer: number | null, head: number | null, name: string) => HTMLElement} */
  const choice = (layer, head, name) => {
    const title = describe({ kind, layer, head });
    const isChosen = selection.layer === layer && selection.head === head;
    const button = toggle(name, isChosen, () => change({ layer, head }), { class: "map", "aria-label": title });
    button.prepend(drawMap(weights, layer, head));
    if (layer === null || head === null || !switchHead) return button;
    const isOff = inspection.heads_off.some((h) => h.attention === kind && h.layer === layer && h.head === head);
    const turn = (/** @type {boolean} */ isOn) => switchHead({ attention: kind, layer, head }, !isOn);
    return html("span", { class: "head" }, button, checkbox("on", !isOff, turn, `${title}: on`));
  };
  const rows = Array.from({ length: weights.layers }, (_, layer) => [
    html("span", { class: "quiet" }, `Layer ${layer + 1}`),
    choice(layer, null, "mean"),
    ...Array.from({ length: weights.heads }, (_, head) => choice(layer, head, String(head + 1))),
  ]);
  return html(
    "div",
    { class: "strip", role: "group", "aria-label": "Heads" },
    html("div", { class: "layer" }, html("span", { class: "quiet" }, "All layers"), choice(null, null, "mean")),
    ...rows.map((row) => html("div", { class: "layer" }, ...row)),
  );
}

/** @type {(weights: Weights, layer: number | null, head: number | null) => HTMLElement} */
function drawMap(weights, layer, head) {
  const canvas = html("canvas", { width: weights.keys, height: weights.queries, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const image = context.createImageData(weights.keys, weights.queries);
  const color = getComputedStyle(document.documentElement).accentColor; // such as rgb(11, 110, 99)
  const [red, green, blue] = (color.match(/\d+/g) ?? []).map(Number);
  weights.map(layer, head).forEach((weight, i) => image.data.set([red, green, blue, 255 * Math.sqrt(weight)], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}
