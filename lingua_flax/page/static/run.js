/** The run: progress, learning curves, samples, and checkpoints. @module */

import { html } from "./dom.js";

/** @import { Run } from "./types.js" */

/** @type {(place: HTMLElement, run: Run, compare: (checkpoints: number[]) => void) => void} translations side by side */
export function showRun(place, run, compare) {
  const focused = document.activeElement?.id;
  place.replaceChildren(
    progress(run),
    drawCurves(run),
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

/** @param {Run} run */
function drawCurves({ loss, validation, curves }) {
  if (!validation || !curves) return html("p", { class: "quiet" }, "Learning curves: none yet");
  const said = { training: loss, validation: validation.loss, "sources shuffled": validation.loss_shuffled };
  const losses = Object.entries(said).flatMap(([name, value]) => value === null ? [] : [`${name} ${value.toFixed(2)}`]);
  const alt = `Learning curves. Loss: ${losses.join(", ")}; validation chrF: ${validation.chrf.toFixed(2)}`;
  return html("img", { class: "curves", src: curves, alt });
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
