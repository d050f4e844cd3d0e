/** The beam search as a tree: what was kept, what was dropped, and at which score. @module */

import { html, moveFocus, readable, svg } from "./dom.js";

/** @import { Candidate, Inspection } from "./types.js" */

const GAP = 0.18; // between the nodes of two steps, of the width of a step; as in style.css

/** @type {(place: HTMLElement, inspection: Inspection) => void} */
export function showBeam(place, inspection) {
  const steps = inspection.beam;
  if (!steps) {
    place.replaceChildren(html("p", { class: "quiet" }, "Recording the search …"));
    return;
  }
  const said = html("p", { role: "status" }, "Click a node to read its hypothesis.");
  place.replaceChildren(
    html(
      "p",
      { class: "legend" },
      html("span", { class: "kept" }, "kept"),
      html("span", { class: "finished" }, "finished"),
      html("span", { class: "dropped" }, "dropped"),
      html("span", { class: "best" }, "best hypothesis"),
    ),
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Beam search" }, drawTree(steps, said)),
    said,
    html(
      "p",
      { class: "quiet" },
      "Each column is a step; the number is the log-probability of the hypothesis so far, for a finished one divided " +
        "by the length penalty.",
    ),
  );
}

/** @type {(steps: Candidate[][]) => Set<string>} the nodes of the best finished hypothesis, as `step,index` */
function bestPath(steps) {
  let best = { step: -1, index: -1, score: -Infinity };
  steps.forEach((candidates, step) =>
    candidates.forEach(({ outcome, score }, index) => {
      if (outcome === "finished" && score > best.score) best = { step, index, score };
    })
  );
  /** @type {Set<string>} */
  const path = new Set();
  for (let { step, index } = best; step >= 0; step--) {
    path.add(`${step},${index}`);
    index = steps[step][index].parent;
  }
  return path;
}

/** @type {(steps: Candidate[][], step: number, index: number) => string} the pieces from the first to a candidate */
function hypothesis(steps, step, index) {
  const { parent, piece } = steps[step][index];
  return (step ? hypothesis(steps, step - 1, parent) : "") + piece;
}

/**
 * Draws the tree. A node that is clicked says what it stands for; arrow keys move among the nodes.
 *
 * @type {(steps: Candidate[][], said: HTMLElement) => HTMLElement}
 */
function drawTree(steps, said) {
  const path = bestPath(steps);
  const rows = Math.max(...steps.map(({ length }) => length));
  const edges = svg("svg", { class: "edges", viewBox: `0 0 ${steps.length} ${rows}`, preserveAspectRatio: "none" });
  /** @type {HTMLElement[][]} */
  const drawn = steps.map((candidates, step) =>
    candidates.map(({ parent, piece, score, outcome }, index) => {
      const isBest = path.has(`${step},${index}`);
      const kind = outcome + (isBest ? " best" : "");
      const [left, middle, from, to] = [step - GAP, step - GAP / 2, parent + 0.5, index + 0.5];
      const d = `M${left} ${from} C${middle} ${from} ${middle} ${to} ${step} ${to}`;
      if (step) edges.append(svg("path", { class: kind, d }));
      const name = readable(piece);
      const text = readable(hypothesis(steps, step, index));
      const show = () => said.textContent = `Step ${step + 1}, ${outcome}: “${text}”, ${score.toFixed(3)}`;
      return html(
        "button",
        {
          class: kind,
          "--step": step + 1,
          "--row": index + 1,
          tabindex: isBest ? 0 : -1,
          title: `${text}  ${score.toFixed(3)}  ${outcome}`,
          "aria-label": `step ${step + 1}: ${name}, ${score.toFixed(2)}, ${outcome}${isBest ? ", best" : ""}`,
          click: show,
          focus: show,
          keydown: (event) =>
            moveFocus(event, {
              ArrowDown: drawn[step][index + 1],
              ArrowUp: drawn[step][index - 1],
              ArrowLeft: drawn[step - 1]?.[parent],
              ArrowRight: drawn[step + 1]?.[steps[step + 1].findIndex((candidate) => candidate.parent === index)],
            }),
        },
        html("span", {}, name),
        html("small", {}, score.toFixed(2)),
      );
    })
  );
  return html("div", { class: "beam", "--steps": steps.length, "--rows": rows }, edges, ...drawn.flat());
}
