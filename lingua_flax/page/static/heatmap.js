/** A labelled heat map of attention weights. @module */

import { html, moveFocus } from "./dom.js";
import { largest } from "./weights.js";

/** @import { Table } from "./weights.js" */

/**
 * Draws a table of weights, a row for each query.
 *
 * Arrow keys move between its cells. What no query may attend to is hatched: later keys if it is causal.
 *
 * @param {Table} table
 * @param {boolean} causal
 * @param {string} name
 * @param {(query: number, key: number) => void} [open] called with the numbers of the row and the column of a weight
 * @param {(query: number, key: number) => boolean} [isOpen]
 */
export function drawHeatMap({ queries, keys, values }, causal, name, open, isOpen = () => false) {
  const readout = html("p", { class: "quiet readout" }, open ? "Click a weight to see how it is made." : "");
  const rows = queries.map((query, q) =>
    html(
      "tr",
      {},
      html("th", {
        scope: "row",
        mouseenter: () => readout.textContent = `“${query.name}” looks at ${largest(keys, values[q])}`,
      }, query.name),
      ...keys.map((key, k) => {
        if (causal && Math.min(...key.positions) > Math.max(...query.positions)) {
          return html("td", { class: "masked" }, html("span", { class: "unseen" }, "masked"));
        }
        const says = `${query.name} looks at ${key.name}: ${values[q][k].toFixed(3)}`;
        const show = () => readout.textContent = says;
        const cell = html("button", {
          "aria-label": says,
          "aria-pressed": open && String(isOpen(q, k)),
          tabindex: -1, // but one: arrow keys lead to the others
          "--weight": `${(100 * values[q][k] ** 0.7).toFixed(1)}%`, // small weights are seen, too
          mouseenter: show,
          focus: () => {
            show();
            for (const other of map.querySelectorAll("button")) other.tabIndex = other === cell ? 0 : -1;
          },
          click: () => open?.(q, k),
        });
        return html("td", {}, cell);
      }),
    )
  );
  const map = html(
    "table",
    { class: "heat", "--columns": keys.length, "--rows": queries.length, "aria-label": name, keydown: move },
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
              const weights = values.map((row) => row[k]);
              readout.textContent = `“${key.name}” is looked at by ${largest(queries, weights)}`;
            },
          }, html("span", {}, key.name))
        ),
      ),
    ),
    html("tbody", {}, ...rows),
  );
  const stop = map.querySelector("[aria-pressed=true]") ?? map.querySelector("button");
  stop?.setAttribute("tabindex", "0");
  const legend = html("p", { class: "quiet legend-of-heat" }, "0% ", html("span", { class: "scale" }), " 100%");
  return html("div", { class: "heat-map" }, html("div", { class: "heat-place" }, map), legend, readout);
}

/** @param {KeyboardEvent} event */
function move(event) {
  const cell = document.activeElement?.closest("td");
  const row = cell?.parentElement;
  if (!cell || !row) return;
  const column = [...row.children].indexOf(cell);
  moveFocus(event, {
    ArrowLeft: cell.previousElementSibling?.querySelector("button"),
    ArrowRight: cell.nextElementSibling?.querySelector("button"),
    ArrowUp: row.previousElementSibling?.children[column].querySelector("button"),
    ArrowDown: row.nextElementSibling?.children[column].querySelector("button"),
  });
}
