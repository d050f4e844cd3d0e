/** The run: progress, learning curves that move while training goes on, samples, and checkpoints. @module */

import { html, svg } from "./dom.js";

/** @import { Run } from "./types.js" */

const WIDTH = 480; // of a chart, in its own units
const HEIGHT = 200;
const MARGIN = { left: 44, right: 8, top: 8, bottom: 22 };

/** @typedef {{ name: string, style: string, points: [number, number][] }} Curve */

/** @type {(place: HTMLElement, run: Run, compare: (checkpoints: number[]) => void) => void} translations side by side */
export function showRun(place, run, compare) {
  const validations = run.validations;
  /** @type {[number, number][]} */
  const shuffled = validations.flatMap((v) => v.loss_shuffled === null ? [] : [[v.step, v.loss_shuffled]]);
  const focused = document.activeElement?.id;
  place.replaceChildren(
    progress(run),
    chart("Loss, nats per token", [
      { name: "training", style: "training", points: run.training_loss },
      { name: "validation", style: "validation", points: validations.map((v) => [v.step, v.loss]) },
      { name: "validation, sources shuffled", style: "shuffled", points: shuffled },
    ]),
    chart("Validation chrF", [{ name: "chrF", style: "validation", points: validations.map((v) => [v.step, v.chrf]) }]),
    checkpoints(run, compare),
    samples(run),
  );
  if (focused) document.getElementById(focused)?.focus(); // it was replaced
}

/** @param {Run} run */
function progress(run) {
  const total = run.num_steps;
  const seconds = run.step === total ? null : run.seconds_since_change;
  const changed = seconds === null ? "" : seconds < 60 ? "under way" : `last step ${ago(seconds)} ago`;
  return html(
    "div",
    { class: "row" },
    total !== null && html("progress", { max: total, value: run.step, "aria-label": "Progress of the run" }),
    html("span", {}, `step ${run.step.toLocaleString("en")}${total ? ` of ${total.toLocaleString("en")}` : ""}`),
    html("span", { class: "quiet" }, changed),
  );
}

/** @param {number} seconds */
function ago(seconds) {
  if (seconds < 5400) return `${Math.round(seconds / 60)} minutes`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} hours` : `${Math.round(seconds / 86400)} days`;
}

/** @type {(run: Run, compare: (checkpoints: number[]) => void) => HTMLElement} */
function checkpoints(run, compare) {
  const id = "compare-checkpoints";
  const first = run.checkpoints[0];
  const best = run.best_checkpoint ?? run.checkpoints.at(-1) ?? 0;
  const names = run.checkpoints.map((step) => `${step.toLocaleString("en")}${step === best ? " (best)" : ""}`);
  return html(
    "section",
    {},
    html("h2", {}, "Checkpoints"),
    html("p", {}, names.join(", ") || "none yet"),
    run.checkpoints.length > 1 &&
      html("button", { id, click: () => compare([first, best]) }, "Compare the first with the best"),
  );
}

/** @param {Run} run */
function samples(run) {
  return html(
    "section",
    {},
    html("h2", {}, "Samples of the last validation"),
    !run.samples.length && html("p", { class: "quiet" }, "none yet"),
    ...run.samples.map(({ source, reference, translation }) =>
      html(
        "dl",
        { class: "sample" },
        ...[["source", source], ["reference", reference], ["translation", translation]].flatMap(([name, text]) => [
          html("dt", {}, name),
          html("dd", {}, text),
        ]),
      )
    ),
  );
}

/** @type {(title: string, curves: Curve[]) => HTMLElement} Draws curves over the steps, from 0 */
function chart(title, curves) {
  const points = curves.flatMap((curve) => curve.points);
  const caption = html("figcaption", {}, title);
  if (!points.length) return html("figure", {}, caption, html("p", { class: "quiet" }, "none yet"));
  const maxX = Math.max(1, ...points.map(([x]) => x));
  const maxY = Math.max(1, ...points.map(([, y]) => y));
  const x = (/** @type {number} */ step) => MARGIN.left + (WIDTH - MARGIN.left - MARGIN.right) * step / maxX;
  const y = (/** @type {number} */ value) =>
    HEIGHT - MARGIN.bottom - (HEIGHT - MARGIN.top - MARGIN.bottom) * value / maxY;
  const last = curves.filter((curve) => curve.points.length).map((curve) =>
    `${curve.name} ${curve.points[curve.points.length - 1][1].toFixed(2)}`
  );
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    class: "chart",
    role: "img",
    "aria-label": `${title}: ${last.join(", ")}`,
  });
  for (const value of ticks(maxY)) {
    picture.append(
      svg("line", { class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value) }),
      svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)),
    );
  }
  for (const step of ticks(maxX)) {
    picture.append(svg("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, step.toLocaleString("en")));
  }
  for (const { style, points } of curves) {
    if (!points.length) continue;
    picture.append(
      svg("polyline", {
        class: style,
        points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "),
      }),
      ...(style === "training"
        ? []
        : points.map(([a, b]) => svg("circle", { class: style, cx: x(a), cy: y(b), r: 3 }))),
    );
  }
  const legend = curves.map((curve) => html("span", { class: curve.style }, curve.name));
  return html("figure", {}, caption, picture, html("p", { class: "legend" }, ...legend));
}

/** @type {(max: number) => number[]} about five round numbers from 0 to there */
function ticks(max) {
  const rough = max / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  return Array.from({ length: Math.floor(max / step) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}
