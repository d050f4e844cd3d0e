/** The page: its views, the examples, and one or two panels with a sentence each. @module */

import * as api from "./api.js";
import { html } from "./dom.js";
import { Panel } from "./panel.js";
import { showRun } from "./run.js";

/** @import { View } from "./panel.js" */
/** @import { Examples, Run } from "./types.js" */

const POLL = 2000; // milliseconds between looks at the run
/** @type {[View | "run", string][]} */
const VIEWS = [["translation", "Translation"], ["attention", "Attention"], ["beam", "Beam"], ["run", "Run"]];
const THEMES = ["system", "light", "dark"];

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const place = byId("view");
const panels = html("div", { class: "panels" });
const runPlace = html("div", { class: "run" });
const compareButton = html("button", {
  type: "button",
  click: () => compare([first.text.value, first.text.value]),
}, "Compare with a second sentence or checkpoint");
/** @type {string[]} */
let targets = [""];
/** @type {Panel} */
let first = new Panel(1, "", targets, () => {});
/** @type {Panel | null} */
let second = null;
/** @type {View | "run"} */
let view = "translation";
/** @type {Run | null} */
let latestRun = null;

/** @param {View | "run"} chosen */
function choose(chosen) {
  view = chosen;
  for (const tab of byId("tabs").children) {
    const isChosen = tab.id === `tab-${chosen}`;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.setAttribute("tabindex", isChosen ? "0" : "-1");
  }
  place.setAttribute("aria-labelledby", `tab-${chosen}`);
  byId("examples").hidden = chosen === "run";
  if (chosen === "run") {
    place.replaceChildren(runPlace);
    lookAtRun();
  } else {
    place.replaceChildren(panels, ...(second ? [] : [compareButton]));
    first.show(chosen);
    second?.show(chosen);
  }
}

function drawTabs() {
  byId("tabs").replaceChildren(...VIEWS.map(([name, title], index) =>
    html("button", {
      type: "button",
      role: "tab",
      id: `tab-${name}`,
      "aria-controls": "view",
      click: () => choose(name),
      keydown: (event) => {
        if (!(event instanceof KeyboardEvent)) return;
        const step = { ArrowRight: 1, ArrowLeft: VIEWS.length - 1 }[event.key];
        if (!step) return;
        const [next] = VIEWS[(index + step) % VIEWS.length];
        choose(next);
        byId(`tab-${next}`).focus();
      },
    }, title)
  ));
}

/** @param {string} text */
function translate(text) {
  closeSecond();
  first.text.value = text;
  first.change({ masked: new Set(), prefix: [], sentence: 0 });
  choose(view);
}

/**
 * Shows two sentences side by side.
 *
 * @param {string[]} texts
 */
function compare(texts) {
  closeSecond();
  second = new Panel(2, texts[1], targets, () => {
    closeSecond();
    choose(view);
  });
  if (latestRun) second.offerCheckpoints(latestRun);
  panels.append(second.element);
  first.text.value = texts[0];
  if (view !== "run") second.view = first.view;
  first.change({ masked: new Set(), prefix: [], sentence: 0 });
  second.ask();
  choose(view);
}

function closeSecond() {
  second?.requests.abort();
  second?.element.remove();
  second = null;
}

/** @param {number[]} checkpoints */
function compareCheckpoints(checkpoints) {
  choose("translation");
  compare([first.text.value, first.text.value]);
  [first, second].forEach((panel, index) => {
    if (!panel) return;
    panel.checkpoint.value = String(checkpoints[index]);
    panel.ask();
  });
}

/**
 * Offers the examples; of a run without any, the samples of its last validation.
 *
 * @param {Examples} examples
 */
function drawExamples({ sentences, ambiguous }) {
  const texts = sentences.length ? sentences : latestRun?.samples.map((sample) => sample.source) ?? [];
  const section = byId("examples");
  section.hidden = !texts.length;
  section.replaceChildren(
    html(
      "div",
      { class: "chips" },
      ...texts.map((text) => html("button", { type: "button", click: () => translate(text) }, text)),
    ),
  );
  if (ambiguous.length) {
    const words = ambiguous.map(({ word, sentences }) =>
      html("button", { type: "button", click: () => compare(sentences) }, word)
    );
    section.append(
      html("div", { class: "chips" }, html("span", {}, "Two meanings, side by side:"), ...words),
    );
  }
  if (!first.text.value && texts.length) translate(texts[0]);
}

/** Looks at the run, again and again, more often while its view is shown. */
async function lookAtRun() {
  clearTimeout(timer);
  timer = setTimeout(lookAtRun, view === "run" ? POLL : 10 * POLL);
  try {
    latestRun = await api.run();
  } catch {
    return; // looks again later
  }
  byId("run-name").textContent = latestRun.name;
  document.title = `${latestRun.name} · Lingua Flax`;
  first.offerCheckpoints(latestRun);
  second?.offerCheckpoints(latestRun);
  if (view === "run") showRun(runPlace, latestRun, compareCheckpoints);
}
let timer = 0;

/** @param {string} theme one of THEMES */
function useTheme(theme) {
  localStorage.setItem("theme", theme);
  const isDark = theme === "system" ? systemTheme.matches : theme === "dark";
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  byId("theme").textContent = `Theme: ${theme}`;
  first.draw(); // pictures have the colors of the theme
  second?.draw();
}

/** Draws everything at once: what came later would move what one is about to click. */
async function start() {
  const [known, run, examples] = await Promise.all([api.languages(), api.run(), api.examples()]);
  latestRun = run;
  targets = [...new Set(known.flatMap((language) => language.targets))];
  first = new Panel(1, "", targets, () => {});
  panels.append(first.element);
  drawTabs();
  drawExamples(examples);
  choose("translation");
  const theme = () => localStorage.getItem("theme") ?? THEMES[0];
  useTheme(theme());
  byId("theme").addEventListener("click", () => useTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]));
  systemTheme.addEventListener("change", () => useTheme(theme()));
  await lookAtRun();
}

start().catch((error) => byId("status").textContent = `The page could not be set up: ${error.message}`);
