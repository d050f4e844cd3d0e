/** A sentence and what the network makes of it, in the view that is chosen. @module */

import { inspect, RequestError } from "./api.js";
import { KINDS, showAttention } from "./attention.js";
import { showBeam } from "./beam.js";
import { html, readable } from "./dom.js";
import { showTranslation } from "./translation.js";

/** @import { Selection } from "./attention.js" */
/** @import { Head, Inspection, Run } from "./types.js" */

const RETRY = 1000; // milliseconds

/** @typedef {"translation" | "attention" | "beam"} View */

/** One of the at most two panels. */
export class Panel {
  /**
   * @param {number} number 1 or 2
   * @param {string} text
   * @param {string[]} targets codes of the languages to translate into
   * @param {() => void} close removes the panel
   */
  constructor(number, text, targets, close) {
    /** @type {View} */
    this.view = "translation";
    /** @type {Inspection | null} */
    this.inspection = null;
    /** @type {Inspection | null} */
    this.unchanged = null;
    /** @type {Selection} */
    this.selection = { kind: "cross", layer: null, head: null };
    /** @type {Head[]} */
    this.headsOff = [];
    /** @type {Set<number>} */
    this.masked = new Set();
    /** @type {number[]} */
    this.prefix = [];
    /** Which of the sentences of the text is shown. */
    this.sentence = 0;
    this.requests = new AbortController();
    this.text = html("textarea", {
      id: `text-${number}`,
      rows: 2,
      spellcheck: "false",
      input: () => this.change({ masked: new Set(), prefix: [], sentence: 0 }),
    });
    this.text.value = text;
    this.target = html(
      "select",
      { id: `target-${number}`, change: () => this.change({ prefix: [] }) },
      ...targets.map((code) => html("option", { value: code }, code)),
    );
    this.checkpoint = html("select", { id: `checkpoint-${number}`, change: () => this.change({}) });
    this.sentences = html("ol", { class: "sentences" });
    this.changes = html("p", { class: "changes" });
    this.message = html("p", { class: "message", role: "status" });
    this.content = html("div", { class: "content" });
    this.element = html(
      "section",
      { class: "panel", "aria-label": `Sentence ${number}` },
      html("label", { for: `text-${number}` }, "Sentence"),
      this.text,
      html(
        "div",
        { class: "row" },
        ...(targets.length > 1 ? [html("label", { for: `target-${number}` }, "Into "), this.target] : []),
        html("label", { for: `checkpoint-${number}` }, "Checkpoint "),
        this.checkpoint,
        ...(number === 2 ? [html("button", { type: "button", click: close }, "Close")] : []),
      ),
      this.sentences,
      this.changes,
      this.message,
      this.content,
    );
  }

  /**
   * Offers the checkpoints of the run.
   *
   * @param {Run} run
   */
  offerCheckpoints(run) {
    const chosen = this.checkpoint.value;
    const options = run.checkpoints.map((step) =>
      html("option", { value: step }, `${step.toLocaleString("en")}${step === run.best_checkpoint ? " (best)" : ""}`)
    );
    this.checkpoint.replaceChildren(html("option", { value: "" }, "as served"), ...options);
    this.checkpoint.value = chosen;
  }

  /**
   * Changes what is asked, and asks.
   *
   * @param {{ masked?: Set<number>, prefix?: number[], headsOff?: Head[], sentence?: number }} changes
   */
  change(changes) {
    Object.assign(this, changes);
    this.ask();
  }

  /** @param {View} view */
  show(view) {
    this.view = view;
    if (view === "beam" && !this.inspection?.beam) this.ask();
    this.draw();
  }

  get isChanged() {
    return this.masked.size > 0 || this.prefix.length > 0 || this.headsOff.length > 0;
  }

  /** Asks the server; an answer that is no longer wanted is never shown. */
  async ask() {
    this.requests.abort();
    this.requests = new AbortController();
    const { signal } = this.requests;
    const text = this.text.value;
    if (!text.trim()) {
      this.inspection = this.unchanged = null;
      this.draw();
      return;
    }
    const question = {
      q: text,
      sentence: this.sentence,
      target: this.target.value,
      beam: this.view === "beam",
      ...(this.checkpoint.value ? { checkpoint: Number(this.checkpoint.value) } : {}),
    };
    const changed = { ...question, masked: [...this.masked], prefix: this.prefix, heads_off: this.headsOff };
    try {
      const [inspection, unchanged] = await Promise.all([
        inspect(changed, signal),
        this.isChanged ? inspect({ ...question, beam: false }, signal) : null,
      ]);
      this.inspection = inspection;
      this.unchanged = unchanged;
      this.message.textContent = "";
      this.draw();
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof RequestError)) throw error;
      this.message.textContent = error.message;
      if (error.mayRetry) setTimeout(() => signal.aborted || this.ask(), RETRY);
    }
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
    const label = document.activeElement?.getAttribute("aria-label");
    const hadFocus = this.content.contains(document.activeElement);
    if (this.view === "translation") {
      showTranslation(this.content, inspection, this.unchanged, this.prefix.length, {
        toggleMasked: (position) => this.change({ masked: this.masked.symmetricDifference(new Set([position])) }),
        choose: (prefix) => this.change({ prefix }),
      });
    } else if (this.view === "attention") {
      showAttention(
        this.content,
        inspection,
        this.selection,
        (selection) => {
          this.selection = selection;
          this.draw();
        },
        (head, off) => this.change({ headsOff: [...without(this.headsOff, head), ...(off ? [head] : [])] }),
      );
    } else {
      showBeam(this.content, inspection);
    }
    if (hadFocus && label) {
      const again = this.content.querySelector(`[aria-label="${CSS.escape(label)}"]`);
      if (again instanceof HTMLElement) again.focus(); // the element with the focus was replaced
    }
  }

  /** Lists the sentences of the text with their translations; a click shows what the network does with one. */
  drawSentences() {
    const sentences = this.inspection?.sentences ?? [];
    this.sentences.replaceChildren(
      ...sentences.map(({ source, translation }, number) =>
        html(
          "li",
          {},
          html("button", {
            type: "button",
            "aria-pressed": String(number === this.sentence),
            click: () => this.change({ masked: new Set(), prefix: [], sentence: number }),
          }, source),
          ` ${translation}`,
        )
      ),
    );
  }

  /** Lists what was changed, with buttons that undo it. */
  drawChanges() {
    const source = this.inspection?.source ?? [];
    /** @type {(name: string, undo: () => void) => HTMLElement} */
    const change = (name, undo) =>
      html("button", { type: "button", "aria-label": `Undo: ${name}`, click: undo }, `${name} ×`);
    this.changes.replaceChildren(
      ...[...this.masked].filter((position) => source[position]).map((position) =>
        change(
          `masked: ${readable(source[position].piece)}`,
          () => this.change({ masked: this.masked.symmetricDifference(new Set([position])) }),
        )
      ),
      ...(this.prefix.length ? [change("chosen tokens", () => this.change({ prefix: [] }))] : []),
      ...this.headsOff.map((head) =>
        change(headName(head), () => this.change({ headsOff: without(this.headsOff, head) }))
      ),
    );
  }
}

/**
 * @param {Head[]} heads
 * @param {Head} head
 * @returns {Head[]} the others
 */
function without(heads, { attention, layer, head }) {
  return heads.filter((other) => other.attention !== attention || other.layer !== layer || other.head !== head);
}

/**
 * @param {Head} head
 * @returns {string}
 */
function headName({ attention, layer, head }) {
  const kind = KINDS.find(([known]) => known === attention)?.[1];
  return `off: ${kind}, layer ${layer + 1}, head ${head + 1}`;
}
