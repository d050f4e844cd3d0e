/** The beam search as a tree: what was kept, what was dropped, and at which score. @module */

import { html, moveFocus, readable, svg } from "./dom.js";

/** @import { Candidate, Inspection } from "./types.js" */

const COLUMN = [80, 118]; // smallest and largest width of a step, in pixels
const ROW = 26;
const GAP = 0.18; // of a column
const LETTER = 8;
const SCORE = 36; // width

/** @type {(place: HTMLElement, inspection: Inspection) => void} */
export function showBeam(place, inspection) {
  const steps = inspection.beam;
  if (!steps) {
    place.replaceChildren(html("p", { class: "quiet" }, "Recording the search …"));
    return;
  }
  const said = html("p", { role: "status" }, "Click a node to read its hypothesis.");
  const column = Math.min(Math.max((place.clientWidth - 12) / steps.length, COLUMN[0]), COLUMN[1]);
  place.replaceChildren(
    html(
      "p",
      { class: "legend" },
      html("span", { class: "kept" }, "kept"),
      html("span", { class: "finished" }, "finished"),
      html("span", { class: "dropped" }, "dropped"),
      html("span", { class: "best" }, "best hypothesis"),
    ),
    html(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Beam search" },
      drawTree(steps, column, said),
    ),
    said,
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
 * Returns the pieces of a hypothesis, from its first to the candidate.
 *
 * @type {(steps: Candidate[][], step: number, index: number) => string}
 */
function hypothesis(steps, step, index) {
  const { parent, piece } = steps[step][index];
  return (step ? hypothesis(steps, step - 1, parent) : "") + piece;
}

/**
 * Draws the tree. A node that is clicked says what it stands for; arrow keys move among the nodes.
 *
 * @param {Candidate[][]} steps
 * @param {number} column width
 * @param {HTMLElement} said where the hypothesis of a node is written
 */
function drawTree(steps, column, said) {
  const path = bestPath(steps);
  const gap = GAP * column;
  const node = column - gap;
  const hasScores = node > 2 * SCORE;
  const letters = Math.floor((node - 10 - (hasScores ? SCORE : 0)) / LETTER);
  const height = ROW * Math.max(...steps.map((candidates) => candidates.length)) + 4;
  const edges = svg("g", { class: "edges" });
  const nodes = svg("g");
  /** @type {SVGGElement[][]} */
  const drawn = steps.map((candidates, step) =>
    candidates.map(({ parent, piece, score, outcome }, index) => {
      const [x, y] = [column * step + 4, ROW * index + 2];
      const isBest = path.has(`${step},${index}`);
      const kind = outcome + (isBest ? " best" : "");
      if (step) {
        const [fromX, fromY] = [x - gap, ROW * parent + 2 + ROW / 2 - 2];
        const toY = y + ROW / 2 - 2;
        const middle = (fromX + x) / 2;
        edges.append(
          svg("path", { class: kind, d: `M${fromX} ${fromY} C${middle} ${fromY} ${middle} ${toY} ${x} ${toY}` }),
        );
      }
      const name = readable(piece);
      const shown = [...name].length > letters ? `${[...name].slice(0, letters - 1).join("")}…` : name;
      const text = readable(hypothesis(steps, step, index));
      const show = () => said.textContent = `Step ${step + 1}, ${outcome}: “${text}”, ${score.toFixed(3)}`;
      return svg(
        "g",
        {
          class: kind,
          role: "button",
          tabindex: isBest ? 0 : -1,
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
        svg("title", {}, `${text}  ${score.toFixed(3)}  ${outcome}`),
        svg("rect", { x, y, width: node, height: ROW - 4, rx: 5 }),
        svg("text", { x: x + 5, y: y + 15 }, shown),
        hasScores &&
          svg("text", { x: x + node - 4, y: y + 15, "text-anchor": "end", class: "score" }, score.toFixed(2)),
      );
    })
  );
  nodes.append(...drawn.flat());
  const width = column * steps.length - gap + 8;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "beam" }, edges, nodes);
}
