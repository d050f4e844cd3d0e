/** The page: its views, the examples, and one or two panels with a sentence each. @module */

import * as api from "./api.js";
import { DEFAULT, KINDS } from "./attention.js";
import { documentButton } from "./documents.js";
import { html } from "./dom.js";
import { NO_CHOICES, Panel } from "./panel.js";
import { showRun } from "./run.js";
import { drawTour } from "./tour.js";

/** @import { Asked, Shared, View } from "./panel.js" */
/** @import { Examples, Head, Run } from "./types.js" */
/** @import { Selection } from "./weights.js" */

const POLL = 2000; // milliseconds between looks at the run
/** @type {[View | "run", string][]} */
const VIEWS = [["translation", "Translation"], ["attention", "Attention"], ["beam", "Beam"], ["run", "Run"]];
const THEMES = ["system", "light", "dark"];
const HERE = 2; // examples beside the sentence
const TO_TRY = 8; // words in the place of an unknown one
const NOTHING = { text: "", target: "", checkpoint: "", ...NO_CHOICES };

/** @type {(id: string) => HTMLElement} */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

const place = byId("view");
const panels = html("div", { class: "panels" });
const runPlace = html("div", { class: "run" });
const closing = { popovertarget: "examples", popovertargetaction: "hide" };
const chips = html("div", { class: "chips" });
const tools = [
  chips,
  html("button", { popovertarget: "examples" }, "Examples"),
  html("button", { class: "compare", click: () => translate(first.text.value, first.text.value) }, "Compare"),
];
/** @type {string[]} */
let targets = [""];
/** @type {Shared} */
const shared = {
  selection: { ...DEFAULT },
  isChosen: false,
  headsOff: [],
  smoothing: 0,
  words: [],
  select(changes) {
    const { kind, layer, head } = shared.selection;
    Object.assign(shared.selection, changes);
    shared.isChosen = true;
    const isOther = shared.selection.kind !== kind;
    const isMoved = isOther || shared.selection.layer !== layer || shared.selection.head !== head;
    shared.remember();
    for (const panel of panelsShown()) {
      const { pair, step } = panel.choices;
      if (pair && isMoved) panel.change({ pair: isOther ? null : pair, step });
      panel.draw();
    }
  },
  switchHead(head, off) {
    const isSame = (/** @type {typeof head} */ other) => JSON.stringify(other) === JSON.stringify(head);
    shared.headsOff = [...shared.headsOff.filter((other) => !isSame(other)), ...(off ? [head] : [])];
    for (const panel of panelsShown()) panel.change({ step: panel.choices.step });
  },
  choose: (chosen) => choose(chosen),
  remember() {
    if (!isReady) return; // before, there is no state that the address could hold
    const { selection, headsOff } = shared;
    const state = { view, selection, headsOff, panels: panelsShown().map((panel) => panel.asked) };
    history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(state))}`);
  },
};
/** @type {Panel} */
let first = new Panel(1, shared, targets, []);
/** @type {Panel | null} */
let second = null;
/** @type {View | "run"} */
let view = "translation";
/** @type {Run | null} */
let latestRun = null;
let isReady = false;

/** @returns {Panel[]} */
function panelsShown() {
  return second ? [first, second] : [first];
}

/** @param {View | "run"} chosen */
function choose(chosen) {
  view = chosen;
  for (const tab of byId("tabs").children) {
    const isChosen = tab.id === `tab-${chosen}`;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.setAttribute("tabindex", isChosen ? "0" : "-1");
  }
  place.setAttribute("aria-labelledby", `tab-${chosen}`);
  place.tabIndex = chosen === "run" ? 0 : -1; // what has no buttons is scrolled by its own focus
  if (chosen === "run") {
    place.replaceChildren(runPlace);
    lookAtRun();
  } else {
    place.replaceChildren(panels);
    for (const panel of panelsShown()) panel.show(chosen);
  }
  shared.remember();
}

function drawTabs() {
  byId("tabs").replaceChildren(...VIEWS.map(([name, title], index) =>
    html("button", {
      role: "tab",
      id: `tab-${name}`,
      "aria-controls": "view",
      click: () => choose(name),
      keydown: (/** @type {KeyboardEvent} */ event) => {
        const step = { ArrowRight: 1, ArrowLeft: VIEWS.length - 1 }[event.key];
        if (!step) return;
        const [next] = VIEWS[(index + step) % VIEWS.length];
        choose(next);
        byId(`tab-${next}`).focus();
      },
    }, title)
  ));
}

/** @type {(...texts: string[]) => void} Shows a sentence, or two side by side */
function translate(...texts) {
  const { target, checkpoint } = first.asked;
  show(view, texts.map((text, index) => ({ ...NOTHING, text, target, checkpoint: index ? "" : checkpoint })));
}

/** @type {(chosen: View | "run", asked: Asked[]) => void} of one panel or two */
function show(chosen, asked) {
  if (chosen !== "run") view = chosen;
  second?.requests.abort();
  second?.element.remove();
  second = null;
  if (asked[1]) {
    second = new Panel(2, shared, targets, [html("button", { click: () => show(view, [first.asked]) }, "Close")]);
    if (latestRun) second.offerCheckpoints(latestRun);
    panels.append(second.element);
  }
  panelsShown().forEach((panel, index) => {
    if (view !== "run") panel.view = view;
    panel.asked = asked[index];
  });
  choose(chosen);
}

/**
 * What the page shows; the address holds it as JSON, so that it can be bookmarked and shared.
 *
 * @typedef {{ view?: string, selection?: Partial<Selection>, headsOff?: Head[], panels?: Partial<Asked>[] }} State
 */

/** @param {State} state */
function open({ view: name, selection = {}, headsOff = [], panels = [] }) {
  const known = VIEWS.find(([known]) => known === name)?.[0] ?? "translation";
  const isKind = KINDS.some(([kind]) => kind === selection.kind);
  shared.selection = { ...DEFAULT, ...(isKind ? selection : {}) };
  shared.isChosen = isKind && selection.layer !== undefined;
  shared.headsOff = headsOff;
  show(known, panels.map((asked) => ({ ...NOTHING, ...asked })));
}

/** Shows what the address holds, unless it makes no sense. */
function openAddress() {
  try {
    open(JSON.parse(decodeURIComponent(location.hash.slice(1))));
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof URIError || error instanceof TypeError)) throw error;
  }
}

/** @param {number[]} checkpoints */
function compareCheckpoints(checkpoints) {
  const { text, target } = first.asked;
  show("translation", checkpoints.map((step) => ({ ...NOTHING, text, target, checkpoint: String(step) })));
}

/** @type {(examples: Examples) => void} Offers them; of a run without any, the samples of its last validation */
function drawExamples({ sentences, ambiguous }) {
  const texts = sentences.length ? sentences : latestRun?.samples.map((sample) => sample.source) ?? [];
  const [here, there] = [texts.slice(0, HERE), texts].map((some) =>
    some.map((text) => html("button", { ...closing, click: () => translate(text) }, text))
  );
  const words = ambiguous.map(({ word, sentences }) =>
    html("button", { ...closing, click: () => translate(...sentences) }, word)
  );
  const known = ambiguous.flatMap(({ sentences }) => sentences.join(" ").match(/\p{L}{4,}/gu) ?? []);
  shared.words = [...new Set(known)].slice(0, TO_TRY);
  chips.replaceChildren(...here);
  byId("guide").hidden = !sentences.length;
  byId("examples").replaceChildren(
    html("div", { class: "chips" }, ...there),
    ...(words.length ? [html("h2", {}, "Two meanings, side by side"), html("div", { class: "chips" }, ...words)] : []),
  );
  if (!first.text.value && texts.length) translate(texts[0]);
}

function startTour() {
  byId("tour").replaceChildren(drawTour(open, () => byId("tour").replaceChildren()));
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
  for (const panel of panelsShown()) panel.offerCheckpoints(latestRun);
  if (view === "run") showRun(runPlace, latestRun, compareCheckpoints);
}
let timer = 0;

/** @param {string} theme one of THEMES */
function useTheme(theme) {
  localStorage.setItem("theme", theme);
  document.documentElement.dataset.theme = theme;
  byId("theme").replaceChildren("◐", html("span", {}, ` Theme: ${theme}`));
  for (const panel of panelsShown()) panel.draw(); // pictures have the colors of the theme
}

/** Draws the page. */
async function start() {
  const [known, run, examples, formats] = await Promise.all([
    api.languages(),
    api.run(),
    api.examples(),
    api.formats(),
  ]);
  latestRun = run;
  targets = [...new Set(known.flatMap((language) => language.targets))];
  shared.smoothing = run.label_smoothing;
  if (formats.length) {
    tools.push(documentButton(formats, byId("status"), () => {
      const { target } = first.asked;
      return [known.find((language) => language.targets.includes(target))?.code ?? "auto", target];
    }));
  }
  first = new Panel(1, shared, targets, tools);
  panels.append(first.element);
  first.offerCheckpoints(run);
  drawTabs();
  openAddress();
  isReady = true;
  byId("status").replaceChildren();
  choose(view);
  addEventListener("hashchange", openAddress);
  byId("guide").addEventListener("click", startTour);
  const theme = () => localStorage.getItem("theme") ?? THEMES[0];
  useTheme(theme());
  byId("theme").addEventListener("click", () => useTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => useTheme(theme()));
  drawExamples(examples);
  await lookAtRun();
}

start().catch(({ message }) => {
  const again = html("button", { click: () => location.reload() }, "Try again");
  byId("status").replaceChildren(`The page could not be set up: ${message} `, again);
});
