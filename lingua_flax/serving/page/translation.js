/**
 * The translation of one sentence: its tokens with their probabilities and alternatives, and the other hypotheses.
 *
 * @module
 */

import { html, percent, readable } from "./dom.js";

/** @import { Inspection, TargetToken } from "./types.js" */

/**
 * What one can do with a translation.
 *
 * @typedef {object} Actions
 * @property {(position: number) => void} toggleMasked hides a source token, or shows it again
 * @property {(prefix: number[]) => void} choose prescribes the first tokens of the translation
 */

/**
 * Shows a translation.
 *
 * @param {HTMLElement} place
 * @param {Inspection} inspection
 * @param {Inspection | null} unchanged the translation without interventions, if there are any
 * @param {number} chosen number of tokens that are prescribed
 * @param {Actions} actions
 */
export function showTranslation(place, inspection, unchanged, chosen, actions) {
  const source = inspection.source.map((token, position) =>
    html("button", {
      type: "button",
      class: tokenClass(token.piece),
      "aria-pressed": String(token.masked),
      "aria-label": `Hide ${readable(token.piece)}`,
      click: () => actions.toggleMasked(position),
    }, readable(token.piece))
  );
  const alternatives = new Alternatives();
  const prefix = inspection.target.map((token) => token.id);
  const target = inspection.target.map((token, position) =>
    alternatives.button(token, position < chosen, (id) => actions.choose([...prefix.slice(0, position), id]))
  );
  place.replaceChildren(
    html("h2", {}, "Source ", html("small", {}, "click a token to hide it")),
    html("div", { class: "tokens", role: "group", "aria-label": "Source tokens" }, ...source),
    html("h2", {}, "Translation ", html("small", {}, "choose another token, and the rest is translated anew")),
    html("p", { class: "text", "aria-live": "polite" }, inspection.translation),
    html(
      "div",
      { class: "tokens target", role: "group", "aria-label": "Target tokens" },
      ...target,
      alternatives.element,
    ),
    ...(unchanged ? [comparison(unchanged.translation, inspection.translation)] : []),
    html("h2", {}, "Hypotheses ", html("small", {}, "with their scores")),
    html(
      "ol",
      { class: "hypotheses" },
      ...inspection.hypotheses.map(({ text, score }) =>
        html("li", {}, html("span", {}, text), " ", html("span", { class: "quiet" }, score.toFixed(3)))
      ),
    ),
  );
}

/**
 * @param {string} piece
 * @returns {string} class names
 */
function tokenClass(piece) {
  return piece.startsWith("▁") ? "token begins" : "token";
}

/** The list of the likeliest tokens in the place of a target token, shown below it. */
class Alternatives {
  constructor() {
    this.element = html("div", {
      class: "alternatives",
      role: "group",
      "aria-label": "Alternatives",
      hidden: true,
      mouseleave: (event) => this.leave(event),
      focusout: (event) => this.leave(event),
      keydown: (event) => event instanceof KeyboardEvent && this.move(event),
    });
    /** @type {HTMLElement | null} */
    this.owner = null;
  }

  /**
   * Creates the button of a target token; hovered, focused or tapped, it shows the alternatives.
   *
   * @param {TargetToken} token
   * @param {boolean} isChosen
   * @param {(id: number) => void} choose
   * @returns {HTMLElement}
   */
  button(token, isChosen, choose) {
    const name = readable(token.piece);
    const button = html(
      "button",
      {
        type: "button",
        class: tokenClass(token.piece) + (isChosen ? " chosen" : ""),
        "aria-label": `${name}, probability ${percent(token.probability)}, alternatives`,
        "aria-expanded": "false",
        "--probability": `${(100 * token.probability).toFixed(1)}%`,
        mouseleave: (event) => this.leave(event),
        blur: (event) => this.leave(event),
      },
      html("span", {}, name),
      html("small", {}, percent(token.probability)),
    );
    const show = () => this.show(button, token, choose);
    button.addEventListener("mouseenter", show);
    button.addEventListener("focus", show);
    button.addEventListener("click", show);
    button.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.hide();
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      show();
      if (this.element.firstElementChild instanceof HTMLElement) this.element.firstElementChild.focus();
    });
    return button;
  }

  /**
   * @param {HTMLElement} owner
   * @param {TargetToken} token
   * @param {(id: number) => void} choose
   */
  show(owner, token, choose) {
    this.hide();
    this.owner = owner;
    owner.setAttribute("aria-expanded", "true");
    const choices = token.alternatives.map(({ id, piece, probability }) =>
      html(
        "button",
        {
          type: "button",
          "aria-label": `${readable(piece)}, probability ${percent(probability)}`,
          "aria-current": id === token.id && "true",
          "--probability": `${(100 * probability).toFixed(1)}%`,
          click: () => choose(id),
        },
        html("span", {}, readable(piece)),
        html("small", {}, percent(probability)),
      )
    );
    this.element.replaceChildren(...choices);
    this.element.hidden = false;
    const room = (this.element.parentElement?.clientWidth ?? 0) - this.element.offsetWidth;
    this.element.style.left = `${Math.max(0, Math.min(owner.offsetLeft, room))}px`;
    this.element.style.top = `${owner.offsetTop + owner.offsetHeight}px`;
  }

  hide() {
    this.element.hidden = true;
    this.owner?.setAttribute("aria-expanded", "false");
  }

  /**
   * Hides the alternatives unless the pointer or the focus is still on them or on their token.
   *
   * @param {Event} event
   */
  leave(event) {
    const next = event instanceof MouseEvent || event instanceof FocusEvent ? event.relatedTarget : null;
    const isInside = (/** @type {unknown} */ node) =>
      node instanceof Node && (this.element.contains(node) || this.owner?.contains(node));
    if (!isInside(next) && !(event instanceof MouseEvent && isInside(document.activeElement))) this.hide();
  }

  /**
   * Moves the focus among the alternatives with the arrow keys; Escape returns to the token.
   *
   * @param {KeyboardEvent} event
   */
  move(event) {
    const own = document.activeElement;
    const next = event.key === "ArrowDown" ? own?.nextElementSibling : own?.previousElementSibling;
    if (event.key === "Escape") {
      this.owner?.focus();
      this.hide();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && next instanceof HTMLElement) {
      event.preventDefault();
      next.focus();
    }
  }
}

/**
 * Shows a translation beside the one without interventions; words that only one of them has are marked.
 *
 * @param {string} before
 * @param {string} after
 * @returns {HTMLElement}
 */
function comparison(before, after) {
  /** @type {(text: string, other: string, tag: "del" | "ins") => (Node | string)[]} */
  const marked = (text, other, tag) => {
    const known = new Set(other.split(" "));
    return text.split(" ").flatMap((word) => [known.has(word) ? word : html(tag, {}, word), " "]);
  };
  return html(
    "dl",
    { class: "comparison" },
    html("dt", {}, "Unchanged"),
    html("dd", {}, ...marked(before, after, "del")),
    html("dt", {}, "With your changes"),
    html("dd", {}, ...marked(after, before, "ins")),
  );
}
