/** How one attention weight is made, step by step, with the numbers of the network. @module */

import { describe } from "./attention.js";
import { html, percent, readable } from "./dom.js";
import { drawFlow } from "./flow.js";
import { tokensOf } from "./weights.js";

/** @import { Child } from "./dom.js" */
/** @import { Explanation, Inspection } from "./types.js" */

const SHOWN_VALUES = 5; // keys whose values are drawn
const SHOWN_LOGITS = 6;
const NEAR = 20; // pixels from the upper edge, for the stage that is lit
const STAGES = [
  "What both words bring",
  "Query times key",
  "Softmax of the row",
  "Weighted sum of values",
  "Heads, W_O, add & norm",
  "At the top of the stack",
];

/** @param {number} number */
function fixed(number) {
  return number.toFixed(3).replace("-", "−");
}

/**
 * Draws a vector as a slider whose track has a cell for each number; the one that it stands at, or that is hovered, is
 * shown. `groups` equal parts are set apart, and the largest number has the full color.
 *
 * @type {(name: string, values: number[], groups?: number, largest?: number) => HTMLElement}
 */
function vector(name, values, groups = 1, largest = Math.max(...values.map(Math.abs), 1e-9)) {
  const { length } = values;
  const about = `${length} numbers, ${fixed(Math.min(...values))} to ${fixed(Math.max(...values))}`;
  const output = html("output", {}, about);
  const cells = values.flatMap((value, i) => { // of a gradient: a thousand elements take 13 ms more
    const gap = i && i % (length / groups) === 0 ? [`var(--paper) 0 calc(${100 * i / length}% + 2px)`] : [];
    const color = `var(--${value < 0 ? "second" : "accent"}) ${Math.round(100 * Math.abs(value) / largest)}%`;
    return [...gap, `color-mix(in srgb, ${color}, var(--paper)) 0 ${100 * (i + 1) / length}%`];
  });
  const slider = html("input", {
    type: "range",
    "aria-label": name,
    "aria-valuetext": about,
    min: 1,
    max: length,
    value: 1,
    "--cells": `linear-gradient(to right, ${cells})`,
    input: () => show(slider.valueAsNumber),
    mousemove: ({ target, offsetX }) => show(Math.ceil(length * offsetX / target.clientWidth)),
    mouseleave: () => output.textContent = about,
  });
  /** @param {number} place from 1 */
  function show(place) {
    slider.value = String(place); // which keeps it in range
    slider.ariaValueText = output.textContent = `${slider.value}: ${fixed(values[slider.valueAsNumber - 1])}`;
  }
  return html("div", { class: "vector" }, html("span", {}, name), slider, output);
}

/** @type {(a: number[], b: number[]) => number[]} */
const product = (a, b) => a.map((value, i) => value * b[i]);
/** @type {(a: number[], b: number[]) => number[]} */
const plus = (a, b) => a.map((value, i) => value + b[i]);
/** @type {(values: number[]) => number} */
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Draws how any weight is made, as long as none is chosen. */
export function invite() {
  return html(
    "aside",
    { class: "explanation" },
    html("h2", {}, "How a weight is made"),
    html("p", {}, "Click a weight of the map: here, you follow it from both words to the next one, number by number."),
    drawFlow(STAGES),
  );
}

/**
 * Draws how the weight between a query and a key is made, and what becomes of it.
 *
 * @param {Inspection} inspection with an explanation
 * @param {Explanation} explanation
 * @param {number} key position of the key
 * @param {number} stage that is shown first
 * @param {{ choose: (key: number) => void, light: (stage: number) => void, close: () => void }} actions `choose` shows
 *   another key of the same query; `light` is told which stage is shown
 */
export function drawSteps(inspection, explanation, key, stage, { choose, light, close }) {
  const { attention, layer, head, query, norm, weights } = explanation;
  const [queryName, ...names] = [tokensOf(inspection, attention)[0][query], ...tokensOf(inspection, attention)[1]]
    .map(({ piece }) => readable(piece));
  const width = explanation.query_vector.length;
  const root = Math.sqrt(width);
  const products = explanation.keys.map((vector) => product(explanation.query_vector, vector));
  const scores = products.map(sum);
  const from = attention === "cross" ? "the encoder's output at" : "x of";
  const read = norm === "pre" ? "x, layer normalized, of" : "x of";
  const place = attention === "cross" ? "the place of " : ""; // the decoder has not read the word that is named
  const [next] = explanation.logits;
  const list = html(
    "ol",
    { scroll: lightShown },
    step(
      STAGES[0],
      `The vector of ${place}“${queryName}” asks, and that of “${names[key]}” answers.`,
      vector(`${read} ${place}${queryName}`, explanation.read),
      vector(`${attention === "cross" ? from : read} ${names[key]}`, explanation.memory[key]),
    ),
    step(
      STAGES[1],
      `This head multiplies them by its matrices W_Q and W_K, and then normalizes or rotates them if the run says so ` +
        `(qk_norm, rotary positions). The products of both, element by element, add up to ` +
        `${fixed(scores[key])}; divided by √${width} = ${fixed(root)}, the score is ${fixed(scores[key] / root)}.`,
      vector("query", explanation.query_vector),
      vector("key", explanation.keys[key]),
      vector("query × key", products[key]),
    ),
    step(
      STAGES[2],
      "Each score becomes e to its power, divided by the sum of all: the weights of a row add up to 100%.",
      table(
        ["key", "query · key", "÷ √H", "weight"],
        names.map((name, i) => ({
          name: html("button", { click: () => choose(i) }, name),
          numbers: [fixed(scores[i]), explanation.mask[i] ? fixed(scores[i] / root) : "−∞ (masked)"],
          weight: weights[i],
          isCurrent: i === key,
        })),
      ),
    ),
    step(STAGES[3], "", ...weightedValues(names, explanation)),
    step(
      STAGES[4],
      "The heads lie side by side; the matrix W_O mixes them, and the result is added to the stream x." +
        (norm === "post" ? " Layer normalization follows." : ""),
      vector("all heads", explanation.heads, explanation.heads.length / width),
      vector("times W_O", explanation.output),
      vector("x", explanation.stream),
      norm === "post" && vector("sum", plus(explanation.stream, explanation.output)),
      vector(norm === "pre" ? "sum: x for what follows" : "normalized: x for what follows", explanation.after),
    ),
    next && prediction(explanation),
  );
  const flow = drawFlow(STAGES, [
    [queryName, names[key]],
    ["query", "key", fixed(scores[key] / root)],
    [percent(weights[key])],
    ["value", "this head"],
    ["all heads", "x + …"],
    ...(next ? [[readable(next.piece)]] : []),
  ], show);
  const stages = /** @type {HTMLElement[]} */ ([...list.children]);
  function lightShown() {
    const shown = Math.max(stages.findLastIndex((own) => own.offsetTop <= list.scrollTop + NEAR), 0);
    [...flow.children].forEach((own, i) => own.classList.toggle("lit", i === shown));
    light(shown);
  }
  /** @type {(stage: number, behavior?: ScrollBehavior) => void} */
  function show(stage, behavior = "auto") {
    list.scrollTo({ top: stages[stage]?.offsetTop - NEAR / 2, behavior });
    lightShown();
  }
  requestAnimationFrame(() => show(stage, "instant")); // once it has a size
  return html(
    "section",
    { class: "explanation steps", "aria-label": "How this weight is made" },
    html("h2", {}, `How “${queryName}” comes to look at “${names[key]}” with ${percent(weights[key])}`),
    html("button", { click: close }, "Close"),
    html("p", { class: "quiet" }, `${describe({ kind: attention, layer, head })}. Hover over a cell to read a number.`),
    flow,
    list,
  );
}

/** @type {(title: string, text: string, ...content: Child[]) => HTMLElement} */
function step(title, text, ...content) {
  return html("li", {}, html("h3", {}, title), html("p", {}, text), ...content);
}

/** @typedef {{ name: Node | string, numbers: string[], weight: number, isCurrent?: boolean }} Row */

/**
 * Draws a table whose last column is a share, as a number and as a bar.
 *
 * @type {(titles: string[], rows: Row[]) => HTMLElement}
 */
function table(titles, rows) {
  const drawn = rows.map(({ name, numbers, weight, isCurrent = false }) =>
    html(
      "tr",
      { class: isCurrent && "current" },
      html("th", { scope: "row" }, name),
      ...numbers.map((number) => html("td", {}, number)),
      html("td", { class: "bar", "--weight": `${100 * weight}%` }, weight.toFixed(3)),
    )
  );
  const head = html("tr", {}, ...titles.map((title) => html("th", { scope: "col" }, title)));
  return html("table", { class: "scores" }, html("thead", {}, head), html("tbody", {}, ...drawn));
}

/** @type {(names: string[], explanation: Explanation) => HTMLElement[]} */
function weightedValues(names, { weights, values }) {
  const order = weights.map((_, i) => i).sort((a, b) => weights[b] - weights[a]);
  const weighted = values.map((value, i) => value.map((number) => weights[i] * number));
  const rest = order.slice(SHOWN_VALUES);
  const total = weighted.reduce(plus);
  const largest = Math.max(...weighted.flat().map(Math.abs), ...total.map(Math.abs)); // all have the same scale
  return [
    ...order.slice(0, SHOWN_VALUES).map((i) =>
      vector(`${weights[i].toFixed(3)} × value of ${names[i]}`, weighted[i], 1, largest)
    ),
    ...(rest.length ? [vector(`${rest.length} others`, rest.map((i) => weighted[i]).reduce(plus), 1, largest)] : []),
    vector("their sum: what this head says", total, 1, largest),
  ];
}

/** @param {Explanation} explanation */
function prediction({ hidden, logits, layer }) {
  const rows = logits.slice(0, SHOWN_LOGITS).map(({ piece, logit, probability }) => (
    { name: readable(piece), numbers: [fixed(logit)], weight: probability }
  ));
  return step(
    STAGES[5],
    `After layer ${layer + 1}, its feed-forward network and all further layers, the product of the decoder's output ` +
      "with the embedding of each token is its logit; softmax makes them probabilities.",
    vector("decoder's output", hidden ?? []),
    table(["token", "logit", "softmax"], rows),
  );
}
