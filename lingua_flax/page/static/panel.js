/** A sentence and what the network makes of it, in the view that is chosen. @module */

import { inspect, RequestError } from "./api.js";
import { describe, showAttention } from "./attention.js";
import { showBeam } from "./beam.js";
import { html, readable, toggle } from "./dom.js";
import { drawSteps, invite } from "./steps.js";
import { showTranslation } from "./translation.js";
import { markUnknown } from "./unknown_words.js";
import { decode } from "./weights.js";

/** @import { Answer, Explanation, Head, Inspection, Run, Sentence } from "./types.js" */
/** @import { Pair, Selection, Strongest } from "./weights.js" */

const RETRY = 1000; // milliseconds
const PLAY = 1400; // milliseconds between steps: enough to read what is written
const KEPT = "This sentence stays as it is: it has no words, or the network has never seen most of its characters.";

/** @typedef {"translation" | "attention" | "beam"} View */

/**
 * What a panel asks for and shows.
 *
 * @typedef {object} Asked
 * @property {string} text
 * @property {string} target
 * @property {string} checkpoint
 * @property {number} sentence of the text that is shown
 * @property {number[]} masked
 * @property {number[]} prefix
 * @property {Pair | null} pair tokens of the attention weight that is explained
 * @property {number | null} step how many tokens of the translation are shown with their attention; null for all
 */

/**
 * What both panels have in common.
 *
 * @typedef {object} Shared
 * @property {Selection} selection
 * @property {boolean} isChosen whether somebody has chosen the map; otherwise it is a clear one
 * @property {Head[]} headsOff
 * @property {number} smoothing of labels, from 0 to 1
 * @property {string[]} words that the network knows, to try
 * @property {(changes: Partial<Selection>) => void} select
 * @property {(head: Head, off: boolean) => void} switchHead
 * @property {(view: View) => void} choose
 * @property {() => void} remember writes the address of the page
 */

/** @typedef {Omit<Asked, "text" | "target" | "checkpoint">} Choices */
/** @type {Choices} */
export const NO_CHOICES = { sentence: 0, masked: [], prefix: [], pair: null, step: null };

/** One of the at most two panels. */
export class Panel {
  /**
   * @param {number} number 1 or 2
   * @param {Shared} shared
   * @param {string[]} targets codes of the languages to translate into
   * @param {HTMLElement[]} tools beside the sentence
   */
  constructor(number, shared, targets, tools) {
    this.shared = shared;
    /** @type {View} */
    this.view = "translation";
    /** @type {Inspection | null} */
    this.inspection = null;
    /** @type {Answer | null} */
    this.unchanged = null;
    this.told = /** @type {Sentence[]} */ ([]);
    this.choices = NO_CHOICES;
    this.answered = ""; // the question of which the answer is shown
    this.requests = new AbortController();
    /** @type {[Inspection, Explanation, number] | null} */
    this.explained = null; // of a weight, with the position of its key
    this.stage = 0; // of that explanation
    this.isPlaying = false;
    this.timer = 0;
    this.text = html("textarea", {
      id: `text-${number}`,
      rows: 1,
      placeholder: "Write a sentence",
      spellcheck: "false",
      input: () => {
        this.marks.replaceChildren();
        this.change(NO_CHOICES);
      },
    });
    this.target = html(
      "select",
      { id: `target-${number}`, change: () => this.change({ prefix: [] }) },
      ...targets.map((code) => html("option", { value: code }, code)),
    );
    this.checkpoint = html("select", { id: `checkpoint-${number}`, change: () => this.change({}) });
    this.checkpoints = html("label", { class: "checkpoint" }, "Checkpoint ", this.checkpoint);
    this.sentences = html("ol", { class: "sentences" });
    this.changes = html("p", { class: "changes" });
    this.message = html("p", { class: "message", role: "status" });
    this.retry = html("button", { click: () => this.ask(), hidden: true }, "Try again");
    this.marks = html("p", { class: "unknown", "aria-hidden": "true" }); // over the text
    this.unknown = html("div", { "aria-live": "polite" });
    this.content = html("div", { class: "content" });
    this.content.addEventListener("click", (event) => {
      if (this.answered !== this.question) event.stopPropagation(); // what is clicked may not be there any more
    }, true);
    this.element = html(
      "section",
      { class: "panel", "aria-label": `Sentence ${number}` },
      html(
        "div",
        { class: "line" },
        html("label", { for: `text-${number}`, class: "unseen" }, "Sentence"),
        html("div", { class: "field" }, this.text, this.marks),
        targets.length > 1 && html("label", { for: `target-${number}` }, "Into "),
        targets.length > 1 && this.target,
        this.checkpoints,
        ...tools,
      ),
      this.sentences,
      this.changes,
      this.message,
      this.retry,
      this.unknown,
      this.content,
    );
  }

  /** @param {Run} run whose checkpoints are offered */
  offerCheckpoints(run) {
    const chosen = this.checkpoint.value;
    const options = run.checkpoints.map((step) =>
      html("option", { value: step }, `${step.toLocaleString("en")}${step === run.best_checkpoint ? " (best)" : ""}`)
    );
    this.checkpoint.replaceChildren(html("option", { value: "" }, "as served"), ...options);
    this.checkpoint.value = chosen;
    this.checkpoints.hidden = run.checkpoints.length < 2;
  }

  /** @type {(changes: Partial<Choices>) => void} Asks anew; what is explained may no longer be there */
  change(changes) {
    this.choices = { ...this.choices, pair: null, step: null, ...changes };
    this.ask();
  }

  /** @type {(position: number) => void} Hides a source token, or shows it again */
  toggleMasked(position) {
    const { masked } = this.choices;
    const others = masked.filter((other) => other !== position);
    this.change({ masked: others.length < masked.length ? others : [...others, position] });
  }

  /** What the tokens of the source depend on. */
  get question() {
    const { text, target, checkpoint, sentence } = this.asked;
    return JSON.stringify([text, target, checkpoint, sentence]);
  }

  /** @returns {Asked} */
  get asked() {
    const [text, target, checkpoint] = [this.text.value, this.target.value, this.checkpoint.value];
    return { text, target, checkpoint, ...this.choices };
  }

  /** @param {Asked} asked */
  set asked({ text, target, checkpoint, ...choices }) {
    this.text.value = text;
    if (target) this.target.value = target;
    this.checkpoint.value = checkpoint;
    this.change(choices);
  }

  /** @param {View} view */
  show(view) {
    this.view = view;
    const lacksBeam = view === "beam" && !this.inspection?.beam;
    if (lacksBeam || (view === "attention" && this.choices.pair && !this.explanation)) this.ask();
    this.draw();
  }

  /** The explanation of what is open, if it has been answered. */
  get explanation() {
    const [found, { kind, layer, head }] = [this.inspection?.explanation, this.shared.selection];
    const isIt = found?.attention === kind && found.layer === layer && found.head === head &&
      found.query === this.choices.pair?.query;
    return isIt ? found : null;
  }

  /** Asks the server; an answer that is no longer wanted is never shown. */
  async ask() {
    this.requests.abort();
    this.requests = new AbortController();
    const { signal } = this.requests;
    const text = this.text.value;
    this.shared.remember();
    if (!text.trim()) {
      this.answer(null);
      return;
    }
    this.element.ariaBusy = "true";
    const { selection: { kind, layer, head }, headsOff } = this.shared;
    const { sentence, masked, prefix, pair } = this.choices;
    const hasPlace = pair && layer !== null && head !== null;
    const explain = hasPlace ? { attention: kind, layer, head, query: pair.query } : null;
    const checkpoint = this.checkpoint.value ? Number(this.checkpoint.value) : undefined;
    const question = { q: text, sentence, target: this.target.value, beam: this.view === "beam", checkpoint };
    const changed = { ...question, masked, prefix, heads_off: headsOff, explain };
    const isChanged = masked.length > 0 || prefix.length > 0 || headsOff.length > 0;
    try {
      const [inspection, unchanged] = await Promise.all([
        inspect(changed, signal),
        isChanged ? inspect({ ...question, beam: false }, signal) : null,
      ]);
      const { sentences } = inspection;
      if ("kept" in inspection || (unchanged && "kept" in unchanged)) this.answer(null, null, KEPT, sentences);
      else this.answer(decode(inspection), unchanged, "", sentences);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof RequestError)) throw error;
      if (pair && error.status === 400) return this.change({}); // it was of a longer translation
      this.answer(null, null, error.message);
      this.retry.hidden = error.status >= 400 && error.status < 500; // it would be refused again
      if ([0, 503].includes(error.status)) setTimeout(() => signal.aborted || this.ask(), RETRY);
    }
  }

  /**
   * Shows an answer, or that there is none: nothing of an earlier text stays.
   *
   * @type {(inspection: Inspection | null, unchanged?: Answer | null, message?: string, told?: Sentence[]) => void}
   */
  answer(inspection, unchanged = null, message = "", told = []) {
    this.inspection = inspection;
    this.answered = this.question;
    this.unchanged = unchanged;
    this.told = told;
    this.message.textContent = message;
    this.retry.hidden = true;
    const change = (/** @type {string} */ text) => {
      this.text.value = text;
      this.change(NO_CHOICES);
    };
    const none = { text: "", unknown_words: [], mostly_unknown: false };
    const [marked, said] = markUnknown(inspection ?? none, this.text.value, this.shared.words, change);
    this.marks.replaceChildren(...marked);
    this.unknown.replaceChildren(...said);
    this.element.ariaBusy = "false";
    this.draw();
  }

  /** @type {(weight: Strongest) => void} Opens an attention weight of cross-attention or of the kind that is shown */
  open({ layer, head, query, key }) {
    Object.assign(this.shared.selection, { layer, head });
    this.shared.isChosen = true;
    this.choices = { ...this.choices, pair: { query, key } };
    this.shared.choose("attention");
  }

  /** @type {(step: number | null) => void} Shows so many tokens only; what is explained goes on to the last of them */
  goTo(step) {
    const { kind } = this.shared.selection;
    const last = (step ?? this.inspection?.target.length ?? 1) - 1;
    const { pair } = this.choices;
    const moved = pair && kind !== "encoder" ? { query: last, key: kind === "decoder" ? last : pair.key } : pair;
    this.choices = { ...this.choices, pair: moved, step };
    if (moved) {
      this.ask();
    } else {
      this.shared.remember();
      this.draw();
    }
  }

  /** Chooses a map that is worth a look, unless somebody has chosen one that exists. */
  chooseMap() {
    const { selection } = this.shared;
    if (!this.inspection) return;
    const weights = this.inspection.attention[selection.kind];
    const exists = (selection.layer ?? 0) < weights.layers && (selection.head ?? 0) < weights.heads;
    if (this.shared.isChosen && exists) return;
    Object.assign(selection, weights.clearest());
    this.shared.isChosen = this.element.ariaBusy !== "true"; // otherwise it is clear in the sentence before
  }

  /** Draws the chosen view. */
  draw() {
    const inspection = this.inspection;
    this.drawSentences();
    this.drawChanges();
    if (!inspection) {
      this.content.replaceChildren();
      return;
    }
    const label = CSS.escape(document.activeElement?.getAttribute("aria-label") ?? "");
    const named = () => [...this.content.querySelectorAll(`[aria-label="${label}"]`)];
    const place = named().findIndex((element) => element === document.activeElement); // -1 if it is elsewhere
    this.chooseMap();
    if (this.view === "translation") {
      showTranslation(this.content, inspection, this.unchanged, this.choices.prefix.length, this.shared.smoothing, {
        toggleMasked: (position) => this.toggleMasked(position),
        choose: (prefix) => this.change({ prefix }),
        open: (weight) => {
          this.shared.selection.kind = "cross";
          this.open(weight);
        },
      });
    } else if (this.view === "attention") {
      this.drawAttention(inspection);
    } else {
      showBeam(this.content, inspection);
    }
    const again = named()[place];
    if (again instanceof HTMLElement || again instanceof SVGElement) again.focus(); // the element with the focus was replaced
  }

  /** @param {Inspection} inspection */
  drawAttention(inspection) {
    const { selection } = this.shared;
    const { pair, step } = this.choices;
    const length = inspection.target.length;
    const written = { ...inspection, target: inspection.target.slice(0, step ?? undefined) };
    const { explanation } = this;
    if (explanation && pair) this.explained = [inspection, explanation, pair.key];
    if (!pair) this.explained = null; // otherwise, the old one stays until there is an answer
    const choose = (/** @type {number} */ key) => {
      this.choices = { ...this.choices, pair: { query: pair?.query ?? 0, key } };
      this.shared.remember();
      this.draw();
    };
    const light = (/** @type {number} */ stage) => this.content.dataset.stage = `${this.stage = stage}`;
    const close = () => this.change({ step });
    if (!this.explained) this.stage = 0;
    if (!this.explained) delete this.content.dataset.stage;
    showAttention(this.content, written, selection, {
      change: (changes) => this.shared.select(changes),
      switchHead: (head, off) => this.shared.switchHead(head, off),
      open: (weight) => this.open(weight),
      pair,
      explanation: this.explained ? drawSteps(...this.explained, this.stage, { choose, light, close }) : invite(),
      goTo: (step) => {
        this.isPlaying = false;
        this.goTo(step);
      },
      length,
      isPlaying: this.isPlaying,
      play: () => {
        this.isPlaying = !this.isPlaying;
        this.goTo(this.isPlaying && (step ?? length) === length ? 1 : step);
      },
    });
    clearTimeout(this.timer);
    if (!this.isPlaying || this.element.ariaBusy === "true") return; // an answer draws again
    if (step === null || step >= length) this.isPlaying = false;
    this.timer = setTimeout(
      () => this.isPlaying && this.view === "attention" ? this.goTo((step ?? 0) + 1) : this.draw(),
      PLAY,
    );
  }

  /** Lists the sentences of the text with their translations; a click shows what the network does with one. */
  drawSentences() {
    const { sentence } = this.choices;
    this.sentences.replaceChildren(
      ...this.told.map(({ source, translation }, number) =>
        html(
          "li",
          {},
          toggle(source, number === sentence, () => this.change({ ...NO_CHOICES, sentence: number })),
          ` ${translation}`,
        )
      ),
    );
  }

  /** Lists what was changed, with buttons that undo it. */
  drawChanges() {
    const source = this.inspection?.source ?? [];
    const { masked, prefix } = this.choices;
    /** @type {(name: string, undo: () => void) => HTMLElement} */
    const change = (name, undo) => html("button", { "aria-label": `Undo: ${name}`, click: undo }, `${name} ×`);
    this.changes.replaceChildren(
      ...masked.map((position) =>
        change(`masked: ${readable(source[position]?.piece ?? `${position + 1}`)}`, () => this.toggleMasked(position))
      ),
      ...(prefix.length ? [change("chosen tokens", () => this.change({ prefix: [] }))] : []),
      ...this.shared.headsOff.map((head) =>
        change(`off: ${describe({ kind: head.attention, ...head })}`, () => this.shared.switchHead(head, false))
      ),
    );
  }
}
