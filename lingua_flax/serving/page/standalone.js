/** The attention of one sentence in a file of its own, as lingua-flax translate --attention FILE.html writes it. @module */

import { showAttention } from "./attention.js";

/** @import { Selection } from "./attention.js" */

const place = document.getElementById("view");
const inspection = JSON.parse(document.getElementById("inspection")?.textContent ?? "");

/** @param {Selection} selection */
function draw(selection) {
  if (place) showAttention(place, inspection, selection, draw);
}

draw({ kind: "cross", layer: null, head: null });
