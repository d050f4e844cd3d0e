/** The attention of one sentence in a file of its own, as lingua-flax translate --attention FILE.html writes it. @module */

import { DEFAULT, showAttention } from "./attention.js";
import { decode } from "./weights.js";

/** @import { Selection } from "./weights.js" */

const place = document.getElementById("view");
const inspection = decode(JSON.parse(document.getElementById("inspection")?.textContent ?? ""));

/** @param {Selection} selection */
function draw(selection) {
  if (place) showAttention(place, inspection, selection, { change: (changes) => draw({ ...selection, ...changes }) });
}

draw({ ...DEFAULT, ...inspection.attention.cross.clearest() });
