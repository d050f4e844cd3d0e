/** The beam search as a tree: what was kept, what was dropped, and at which score. @module */

import { html, readable, svg } from "./dom.js";

/** @import { Candidate, Inspection } from "./types.js" */

const COLUMN = 118; // pixels
const ROW = 26;
const NODE = 92; // width

/**
 * @param {HTMLElement} place
 * @param {Inspection} inspection
 */
export function showBeam(place, inspection) {
  const steps = inspection.beam;
  if (!steps) {
    place.replaceChildren(html("p", { class: "quiet" }, "Recording the search …"));
    return;
  }
  place.replaceChildren(
    html(
      "p",
      { class: "legend" },
      html("span", { class: "kept" }, "kept"),
      html("span", { class: "finished" }, "finished"),
      html("span", { class: "dropped" }, "dropped"),
      html("span", { class: "best" }, "best hypothesis"),
    ),
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Beam search" }, drawTree(steps)),
    html(
      "p",
      { class: "quiet" },
      "Each column is a step; the number is the log-probability of the hypothesis so far, for a finished one divided " +
        "by the length penalty.",
    ),
  );
}

/**
 * Returns the nodes of the best finished hypothesis, as `step,index`.
 *
 * @param {Candidate[][]} steps
 * @returns {Set<string>}
 */
function bestPath(steps) {
  let best = { step: -1, index: -1, score: -Infinity };
  steps.forEach((candidates, step) =>
    candidates.forEach(({ outcome, score }, index) => {
      if (outcome === "finished" && score > best.score) best = { step, index, score };
    })
  );
  const path = new Set();
  for (let { step, index } = best; step >= 0; step--) {
    path.add(`${step},${index}`);
    index = steps[step][index].parent;
  }
  return path;
}

/**
 * @param {Candidate[][]} steps
 * @returns {SVGSVGElement}
 */
function drawTree(steps) {
  const path = bestPath(steps);
  const width = COLUMN * steps.length;
  const height = ROW * Math.max(...steps.map((candidates) => candidates.length)) + 4;
  const edges = svg("g", { class: "edges" });
  const nodes = svg("g");
  steps.forEach((candidates, step) =>
    candidates.forEach(({ parent, piece, score, outcome }, index) => {
      const [x, y] = [COLUMN * step + 4, ROW * index + 2];
      const isBest = path.has(`${step},${index}`);
      const kind = outcome + (isBest ? " best" : "");
      if (step) {
        const [fromX, fromY] = [x - COLUMN + NODE, ROW * parent + 2 + ROW / 2 - 2];
        const toY = y + ROW / 2 - 2;
        const middle = (fromX + x) / 2;
        edges.append(
          svg("path", { class: kind, d: `M${fromX} ${fromY} C${middle} ${fromY} ${middle} ${toY} ${x} ${toY}` }),
        );
      }
      const name = readable(piece);
      nodes.append(
        svg(
          "g",
          {
            class: kind,
            role: "img",
            "aria-label": `step ${step + 1}: ${name}, ${score.toFixed(2)}, ${outcome}${isBest ? ", best" : ""}`,
          },
          svg("title", {}, `${name}  ${score.toFixed(3)}  ${outcome}`),
          svg("rect", { x, y, width: NODE, height: ROW - 4, rx: 5 }),
          svg("text", { x: x + 5, y: y + 15 }, name.length > 7 ? `${name.slice(0, 6)}…` : name),
          svg("text", { x: x + NODE - 4, y: y + 15, "text-anchor": "end", class: "score" }, score.toFixed(2)),
        ),
      );
    })
  );
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "beam" }, edges, nodes);
}
