/**
 * The attention of one sentence: where it is in the network, small maps of all heads, and one of them as a large map or
 * as lines between tokens.
 *
 * @module
 */

import { drawDiagram } from "./diagram.js";
import { download, html, percent, readable, svg, themeColor } from "./dom.js";
import { drawHeatMap } from "./heatmap.js";
import { strongest, tableOf, weightsOf } from "./weights.js";

/** @import { Head, Inspection, Kind } from "./types.js" */
/** @import { Selection, Strongest, Table } from "./weights.js" */

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
export const DEFAULT = {
  kind: "cross",
  layer: null,
  head: null,
  picture: "map",
  words: true,
  sinks: false,
  least: 0.1,
};
const LEAST = [0.02, 0.05, 0.1, 0.2, 0.4];
const ROW = 24; // pixels
const NAMES = 112; // width of a column of tokens
const LINES = [110, 420]; // smallest and largest width of the space between them
const TOP = 26;

/**
 * What one can do with the attention; without a server, only change what is shown.
 *
 * @typedef {object} Actions
 * @property {(changes: Partial<Selection>) => void} change shows something else
 * @property {(head: Head, off: boolean) => void} [switchHead] switches a head off or on
 * @property {(weight: Strongest) => void} [open] shows how a weight is made
 * @property {{ query: number, key: number } | null} [pair] the tokens of the weight that is open
 * @property {(step: number | null) => void} [goTo] shows only the first tokens of the translation, or all
 * @property {number} [length] number of tokens of the whole translation
 */

/**
 * Shows the attention of a sentence.
 *
 * @param {HTMLElement} place
 * @param {Inspection} inspection
 * @param {Selection} selection
 * @param {Actions} actions
 */
export function showAttention(place, inspection, selection, actions) {
  const { kind, head } = selection;
  const weights = weightsOf(inspection, kind);
  const table = tableOf(inspection, selection);
  const kinds = KINDS.map(([name, title]) =>
    html("button", {
      type: "button",
      "aria-pressed": String(name === kind),
      click: () => actions.change({ kind: name, ...weightsOf(inspection, name).clearest() }),
    }, title)
  );
  /** @param {number} query @param {number} key */
  const open = (query, key) =>
    actions.open?.(strongest(inspection, selection, table.queries[query].positions, table.keys[key].positions));
  /** @param {number} query @param {number} key */
  const isOpen = (query, key) =>
    !!actions.pair && table.queries[query].positions.includes(actions.pair.query) &&
    table.keys[key].positions.includes(actions.pair.key);
  const room = place.clientWidth - (place.clientWidth > 800 ? 420 : 0); // the heads are beside it or above it
  const picture = selection.picture === "map"
    ? drawHeatMap(table, kind === "decoder", describe(selection), actions.open && open, isOpen)
    : drawLines(table, selection, Math.min(Math.max(room - 2 * NAMES, LINES[0]), LINES[1]));
  place.replaceChildren(
    html("div", { class: "segments", role: "group", "aria-label": "Kind of attention" }, ...kinds),
    html("p", { class: "purpose" }, KINDS.find(([name]) => name === kind)?.[2] ?? ""),
    ...(actions.goTo ? [drawProgress(inspection, actions.goTo, actions.length ?? 0)] : []),
    html(
      "div",
      { class: "attention" },
      html(
        "div",
        { class: "overview" },
        drawDiagram(inspection, selection, (kind, layer) => actions.change({ kind, layer, head: head ?? 0 })),
        drawStrip(inspection, selection, weights, (layer, head) => actions.change({ layer, head }), actions.switchHead),
      ),
      html(
        "figure",
        {},
        html("figcaption", {}, describe(selection)),
        drawOptions(selection, actions.change),
        picture,
        ...(picture instanceof SVGSVGElement
          ? [html(
            "div",
            { class: "row" },
            html("button", { type: "button", click: () => save(picture, selection, "svg") }, "Save as SVG"),
            html("button", { type: "button", click: () => save(picture, selection, "png") }, "Save as PNG"),
          )]
          : []),
      ),
    ),
  );
}

/**
 * @param {Selection} selection
 * @param {(changes: Partial<Selection>) => void} change
 * @returns {HTMLElement}
 */
function drawOptions(selection, change) {
  /** @type {(name: "map" | "lines", title: string) => HTMLElement} */
  const picture = (name, title) =>
    html("button", {
      type: "button",
      "aria-pressed": String(selection.picture === name),
      click: () => change({ picture: name }),
    }, title);
  /** @type {(name: "words" | "sinks", title: string) => HTMLElement} */
  const option = (name, title) =>
    html(
      "label",
      {},
      html("input", {
        type: "checkbox",
        "aria-label": title,
        checked: selection[name],
        change: () => change({ [name]: !selection[name] }),
      }),
      ` ${title}`,
    );
  const least = html(
    "select",
    { "aria-label": "Smallest weight", change: () => change({ least: Number(least.value) }) },
    ...LEAST.map((weight) => html("option", { value: weight, selected: weight === selection.least }, percent(weight))),
  );
  return html(
    "div",
    { class: "row options" },
    html(
      "span",
      { class: "segments", role: "group", "aria-label": "Picture" },
      picture("map", "Map"),
      picture("lines", "Lines"),
    ),
    option("words", "whole words"),
    option("sinks", "</s> and punctuation"),
    ...(selection.picture === "lines" ? [html("label", {}, "lines from ", least)] : []),
  );
}

/**
 * Draws how far the translation has got, with buttons that go on, word by word.
 *
 * @param {Inspection} inspection
 * @param {(step: number | null) => void} goTo
 * @param {number} length
 * @returns {HTMLElement}
 */
function drawProgress({ target }, goTo, length) {
  const step = target.length;
  const read = ["<s>", ...target.slice(0, -1).map(({ piece }) => piece)].join("");
  const next = target[step - 1];
  const button = (/** @type {string} */ title, /** @type {boolean} */ off, /** @type {number | null} */ to) =>
    html("button", { type: "button", disabled: off, click: () => goTo(to) }, title);
  return html(
    "div",
    { class: "row progress", role: "group", "aria-label": "Word by word" },
    button("From the start", step === 1, 1),
    button("Back", step === 1, step - 1),
    button("Next step", step === length, step + 1),
    button("Whole sentence", step === length, null),
    html(
      "span",
      { role: "status" },
      `Step ${step} of ${length}: having read “${readable(read)}”, the network writes “${readable(next.piece)}” ` +
        `(${percent(next.probability)}).`,
    ),
  );
}

/**
 * @param {Pick<Selection, "kind" | "layer" | "head">} selection
 * @returns {string}
 */
export function describe({ kind, layer, head }) {
  const name = KINDS.find(([known]) => known === kind)?.[1];
  if (layer === null) return `${name}, mean of all heads`;
  return head === null ? `${name}, layer ${layer + 1}, mean` : `${name}, layer ${layer + 1}, head ${head + 1}`;
}

/**
 * Draws the small maps, a row for each layer.
 *
 * @param {Inspection} inspection
 * @param {Selection} selection
 * @param {ReturnType<typeof weightsOf>} weights
 * @param {(layer: number | null, head: number | null) => void} select
 * @param {((head: Head, off: boolean) => void) | undefined} switchHead
 * @returns {HTMLElement}
 */
function drawStrip(inspection, selection, weights, select, switchHead) {
  const { kind } = selection;
  /** @type {(layer: number | null, head: number | null, name: string) => HTMLElement} */
  const choice = (layer, head, name) => {
    const chosen = selection.layer === layer && selection.head === head;
    const button = html("button", {
      type: "button",
      class: "map",
      "aria-pressed": String(chosen),
      "aria-label": describe({ kind, layer, head }),
      click: () => select(layer, head),
    });
    button.append(drawMap(weights, layer, head), html("span", {}, name));
    if (layer === null || head === null || !switchHead) return button;
    const off = inspection.heads_off.some((h) => h.attention === kind && h.layer === layer && h.head === head);
    const box = html("input", {
      type: "checkbox",
      checked: !off,
      "aria-label": `${describe({ kind, layer, head })}: on`,
      change: (event) => {
        const on = event.target instanceof HTMLInputElement && event.target.checked;
        switchHead({ attention: kind, layer, head }, !on);
      },
    });
    return html("span", { class: "head" }, button, html("label", {}, box, " on"));
  };
  const rows = Array.from({ length: weights.layers }, (_, layer) =>
    html(
      "div",
      { class: "layer" },
      html("span", { class: "quiet" }, `Layer ${layer + 1}`),
      choice(layer, null, "mean"),
      ...Array.from({ length: weights.heads }, (_, head) => choice(layer, head, String(head + 1))),
    ));
  return html(
    "div",
    { class: "strip", role: "group", "aria-label": "Heads" },
    html("div", { class: "layer" }, html("span", { class: "quiet" }, "All layers"), choice(null, null, "mean")),
    ...rows,
  );
}

/**
 * @param {ReturnType<typeof weightsOf>} weights
 * @param {number | null} layer
 * @param {number | null} head
 * @returns {HTMLCanvasElement}
 */
function drawMap(weights, layer, head) {
  const canvas = html("canvas", { width: weights.keys, height: weights.queries, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const image = context.createImageData(weights.keys, weights.queries);
  const [red, green, blue] = channels(themeColor("--accent"));
  weights.map(layer, head).forEach((weight, i) => image.data.set([red, green, blue, 255 * Math.sqrt(weight)], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * @param {string} color such as #0b6e63
 * @returns {number[]} red, green and blue, from 0 to 255
 */
function channels(color) {
  return [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
}

/**
 * Draws the queries on the left, the keys on the right, and a line for each weight between them.
 *
 * A token that is hovered, focused or clicked shows where it looks, or which tokens look at it.
 *
 * @param {Table} table
 * @param {Selection} selection
 * @param {number} between width of the space between them
 * @returns {SVGSVGElement}
 */
function drawLines(table, selection, between) {
  const [queries, keys] = [table.queries, table.keys].map((labels) => labels.map(({ name }) => name));
  const values = table.values.flat();
  const width = 2 * NAMES + between;
  const height = TOP + ROW * Math.max(queries.length, keys.length) + 6;
  const ink = themeColor("--ink");
  const accent = themeColor("--accent");
  const font = { fill: ink, "font-family": "system-ui, sans-serif", "font-size": 13 };
  const center = (/** @type {number} */ index) => TOP + ROW * (index + 0.5);
  const lines = svg("g", { stroke: accent, "stroke-linecap": "round" });
  /** @type {{ line: SVGLineElement, query: number, key: number, weight: number }[]} */
  const drawn = [];
  values.forEach((weight, i) => {
    if (weight < selection.least) return;
    const [query, key] = [Math.floor(i / keys.length), i % keys.length];
    const line = svg("line", { x1: NAMES, y1: center(query), x2: NAMES + between, y2: center(key) });
    line.setAttribute("stroke-width", (0.6 + 3.4 * weight).toFixed(2));
    drawn.push({ line, query, key, weight });
    lines.append(line);
  });
  const sides = selection.kind === "cross" ? ["translation", "source"] : ["looks", "at"];
  const picture = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "group",
    "aria-label": describe(selection),
    class: "lines",
  });
  picture.append(
    svg("rect", { width, height, fill: themeColor("--paper") }),
    svg("text", { x: NAMES - 6, y: 16, "text-anchor": "end", ...font, "font-style": "italic" }, sides[0]),
    svg("text", { x: NAMES + between + 6, y: 16, ...font, "font-style": "italic" }, sides[1]),
    lines,
  );
  /** @type {{ side: string, index: number, group: SVGGElement, bar: SVGRectElement }[]} */
  const tokens = [];
  for (const [side, names] of /** @type {[string, string[]][]} */ ([["query", queries], ["key", keys]])) {
    names.forEach((name, index) => {
      const left = side === "query";
      const bar = svg("rect", {
        x: left ? 0 : NAMES + between,
        y: center(index) - ROW / 2 + 1,
        width: NAMES,
        height: ROW - 2,
        rx: 4,
        fill: accent,
        "fill-opacity": 0,
      });
      const text = svg("text", {
        x: left ? NAMES - 6 : NAMES + between + 6,
        y: center(index) + 4.5,
        "text-anchor": left ? "end" : "start",
        ...font,
      }, name.length > 14 ? `${name.slice(0, 13)}…` : name);
      const strongest = drawn.filter((d) => (left ? d.query : d.key) === index).sort((a, b) => b.weight - a.weight);
      const others = strongest.slice(0, 4).map((d) =>
        `${(left ? keys[d.key] : queries[d.query])} ${d.weight.toFixed(2)}`
      );
      const group = svg(
        "g",
        {
          tabindex: 0,
          role: "button",
          "aria-pressed": "false",
          "aria-label": `${name}: ${left ? "looks at" : "is looked at by"} ${others.join(", ") || "nothing much"}`,
        },
        bar,
        text,
      );
      tokens.push({ side, index, group, bar });
      picture.append(group);
    });
  }
  /** @type {(typeof tokens)[number] | null} */
  let pinned = null;
  /** @param {(typeof tokens)[number] | null} token */
  const emphasize = (token) => {
    const isOwn = (/** @type {typeof drawn[number]} */ d) =>
      !token || (token.side === "query" ? d.query : d.key) === token.index;
    for (const d of drawn) d.line.setAttribute("stroke-opacity", (isOwn(d) ? 0.12 + 0.88 * d.weight : 0.03).toFixed(3));
    for (const other of tokens) {
      let opacity = 0;
      if (token && other.side !== token.side) {
        const [query, key] = token.side === "query" ? [token.index, other.index] : [other.index, token.index];
        opacity = 0.55 * values[query * keys.length + key];
      } else if (token === other) {
        opacity = 0.3;
      }
      other.bar.setAttribute("fill-opacity", opacity.toFixed(3));
      other.group.setAttribute("aria-pressed", String(other === pinned));
    }
  };
  for (const token of tokens) {
    const pin = () => {
      pinned = pinned === token ? null : token;
      emphasize(pinned ?? token);
    };
    token.group.addEventListener("mouseenter", () => emphasize(token));
    token.group.addEventListener("mouseleave", () => emphasize(pinned));
    token.group.addEventListener("focus", () => emphasize(token));
    token.group.addEventListener("blur", () => emphasize(pinned));
    token.group.addEventListener("click", pin);
    token.group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pin();
    });
  }
  emphasize(null);
  return picture;
}

/**
 * Offers a picture for download.
 *
 * @param {SVGSVGElement} picture
 * @param {Selection} selection
 * @param {"svg" | "png"} type
 */
async function save(picture, { kind, layer, head }, type) {
  const map = layer === null ? ["mean"] : [layer + 1, ...(head === null ? [] : [head + 1])];
  const name = ["attention", kind, ...map].join("-");
  const drawing = new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" });
  if (type === "svg") return download(drawing, `${name}.svg`);
  const scale = 2; // readable on dense screens
  const image = new Image();
  const url = URL.createObjectURL(drawing);
  image.src = url;
  await image.decode();
  const { width, height } = picture.viewBox.baseVal;
  const canvas = html("canvas", { width: scale * width, height: scale * height });
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  canvas.toBlob((content) => content && download(content, `${name}.png`));
}
