/** A labelled heat map of attention weights. @module */

import { html, percent } from "./dom.js";

/** @import { Label, Table } from "./weights.js" */

/**
 * Draws a table of weights, a row for each query.
 *
 * Arrow keys move between its cells. What no query may attend to is hatched.
 *
 * @param {Table} table
 * @param {boolean} causal whether queries attend to their own and earlier positions only
 * @param {string} name
 * @param {(query: number, key: number) => void} [open] called with the numbers of the row and the column of a weight
 * @param {(query: number, key: number) => boolean} [isOpen]
 * @returns {HTMLElement}
 */
export function drawHeatMap({ queries, keys, values }, causal, name, open, isOpen = () => false) {
  const readout = html("p", { class: "quiet readout" }, open ? "Click a weight to see how it is made." : "");
  /** @type {(line: string, labels: Label[], weights: number[]) => string} */
  const strongest = (line, labels, weights) =>
    `${line} ${
      labels.map(({ name }, i) => ({ name, weight: weights[i] })).sort((a, b) => b.weight - a.weight).slice(0, 4)
        .map(({ name, weight }) => `${name} ${percent(weight)}`).join(", ")
    }`;
  const rows = queries.map((query, q) =>
    html(
      "tr",
      {},
      html("th", {
        scope: "row",
        mouseenter: () => readout.textContent = strongest(`“${query.name}” looks at`, keys, values[q]),
      }, query.name),
      ...keys.map((key, k) => {
        if (causal && Math.min(...key.positions) > Math.max(...query.positions)) {
          return html("td", { class: "masked" }, html("span", { class: "unseen" }, "masked"));
        }
        const says = `${query.name} looks at ${key.name}: ${values[q][k].toFixed(3)}`;
        const show = () => readout.textContent = says;
        const cell = html("button", {
          type: "button",
          "aria-label": says,
          "aria-pressed": open && String(isOpen(q, k)),
          tabindex: isOpen(q, k) ? 0 : -1,
          "--weight": `${(100 * values[q][k] ** 0.7).toFixed(1)}%`, // small weights are seen, too
          mouseenter: show,
          focus: show,
          click: () => open?.(q, k),
        });
        return html("td", {}, cell);
      }),
    )
  );
  const map = html(
    "table",
    { class: "heat", "--columns": keys.length, "aria-label": name, keydown: move },
    html(
      "thead",
      {},
      html(
        "tr",
        {},
        html("td", {}),
        ...keys.map((key, k) =>
          html("th", {
            scope: "col",
            mouseenter: () => {
              readout.textContent = strongest(`“${key.name}” is looked at by`, queries, values.map((row) => row[k]));
            },
          }, html("span", {}, key.name))
        ),
      ),
    ),
    html("tbody", {}, ...rows),
  );
  const first = map.querySelector("button");
  if (first && !map.querySelector("button[tabindex='0']")) first.tabIndex = 0;
  const legend = html("p", { class: "quiet" }, "0% ", html("span", { class: "scale" }), " 100%");
  return html("div", {}, html("div", { class: "heat-place" }, map), legend, readout);
}

/** @param {Event} event */
function move(event) {
  const cell = document.activeElement?.closest("td");
  const row = cell?.parentElement;
  if (!(event instanceof KeyboardEvent) || !cell || !row) return;
  const column = [...row.children].indexOf(cell);
  const next = {
    ArrowLeft: cell.previousElementSibling,
    ArrowRight: cell.nextElementSibling,
    ArrowUp: row.previousElementSibling?.children[column],
    ArrowDown: row.nextElementSibling?.children[column],
  }[event.key]?.querySelector("button");
  if (!next) return;
  event.preventDefault();
  for (const button of row.parentElement?.querySelectorAll("button") ?? []) button.tabIndex = button === next ? 0 : -1;
  next.focus();
}
