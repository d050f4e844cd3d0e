/**
 * The translation of one sentence: its tokens with their probabilities and alternatives, and the other hypotheses.
 *
 * @module
 */

import { DEFAULT, describe } from "./attention.js";
import { html, moveFocus, percent, readable, toggle } from "./dom.js";
import { largest, leaders, tableOf } from "./weights.js";

/** @import { Alternative, Answer, Inspection, TargetToken } from "./types.js" */
/** @import { Properties } from "./dom.js" */
/** @import { Strongest } from "./weights.js" */

const MIN_SHARE = 0.02;
const MIN_LEAD = 0.1; // of a single head that is named

/**
 * What one can do with a translation.
 *
 * @typedef {object} Actions
 * @property {(position: number) => void} toggleMasked hides a source token, or shows it again
 * @property {(prefix: number[]) => void} choose prescribes the first tokens of the translation
 * @property {(weight: Strongest) => void} open shows how a weight of cross-attention is made
 */

/**
 * Shows a translation.
 *
 * @param {HTMLElement} place
 * @param {Inspection} inspection
 * @param {Answer | null} unchanged the translation without interventions, if there are any
 * @param {number} chosen number of tokens that are prescribed
 * @param {number} smoothing of labels in training, from 0 to 1
 * @param {Actions} actions
 */
export function showTranslation(place, inspection, unchanged, chosen, smoothing, actions) {
  const source = inspection.source.map(({ piece, masked }, position) =>
    toggle(readable(piece), masked, () => actions.toggleMasked(position), {
      class: tokenClass(piece),
      "aria-label": `Hide ${readable(piece)}`,
    })
  );
  const target = drawTarget(inspection.target, chosen, actions.choose);
  const looks = html("p", { class: "looks", "aria-live": "polite" });
  lightUp(inspection, source, target.map(({ button }) => button), looks, actions.open);
  const note =
    `Label smoothing of ${smoothing} in training asks for ${percent(1 - smoothing)} on the right token and ` +
    "leaves the rest to all others. So a network that is certain says little more than that, and never 100%.";
  place.replaceChildren(
    looks, // above the tokens, whose alternatives unfold below
    html("h2", {}, "Source ", html("small", {}, "click a token to hide it")),
    html("div", { class: "tokens", role: "group", "aria-label": "Source tokens" }, ...source),
    html("h2", {}, "Translation ", html("small", {}, "choose another token, and the rest is translated anew")),
    html("p", { class: "text", "aria-live": "polite" }, inspection.translation),
    html(
      "div",
      { class: "tokens target", role: "group", "aria-label": "Target tokens" },
      ...target.map(({ place }) => place),
    ),
    ...(smoothing ? [html("p", { class: "quiet" }, note)] : []),
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
 * Lets a token light up what it looked at, or what looked at it, with the mean of all heads of cross-attention.
 *
 * @param {Inspection} inspection
 * @param {HTMLElement[]} source its tokens
 * @param {HTMLElement[]} target
 * @param {HTMLElement} looks where it is said in words
 * @param {(weight: Strongest) => void} open
 */
function lightUp(inspection, source, target, looks, open) {
  const { queries, keys, values } = tableOf(inspection, { ...DEFAULT, sinks: true });
  looks.textContent = "Hover over a token of either side: the words that it looked at light up, or that looked at it.";
  /** @type {(tokens: HTMLElement[], labels: typeof keys, shares: number[]) => void} */
  const light = (tokens, labels, shares) => {
    for (const token of [...source, ...target]) {
      token.style.removeProperty("--share");
      token.classList.remove("lit");
      delete token.dataset.share;
    }
    labels.forEach(({ positions }, index) =>
      positions.forEach((position, part) => {
        tokens[position].style.setProperty("--share", `${(100 * shares[index]).toFixed(1)}%`);
        tokens[position].classList.toggle("lit", shares[index] >= MIN_SHARE);
        if (!part && shares[index] >= MIN_SHARE) tokens[position].dataset.share = percent(shares[index]);
      })
    );
  };
  /** @type {(tokens: HTMLElement[], positions: number[], show: () => void) => void} */
  const listen = (tokens, positions, show) => {
    for (const position of positions) {
      for (const event of ["mouseenter", "focus"]) tokens[position].addEventListener(event, show);
    }
  };
  queries.forEach((query, q) =>
    listen(target, query.positions, () => {
      light(source, keys, values[q]);
      const heads = leaders(inspection, query).filter(({ weight }) => weight >= MIN_LEAD).map((leader) =>
        html("button", {
          "aria-label": `${query.name} looks at ${leader.name}: ${describe({ kind: "cross", ...leader })}`,
          click: () => open(leader),
        }, `${leader.name} ${percent(leader.weight)}: layer ${leader.layer + 1}, head ${leader.head + 1}`)
      );
      looks.replaceChildren(
        `“${query.name}” looked at ${largest(keys, values[q])} (mean of all heads). `,
        ...(heads.length ? ["Single heads that look at one word most: ", ...heads] : []),
      );
    })
  );
  keys.forEach((key, k) =>
    listen(source, key.positions, () => {
      const shares = values.map((row) => row[k]);
      light(target, queries, shares);
      looks.textContent = `“${key.name}” was looked at by ${largest(queries, shares)} (mean of all heads).`;
    })
  );
}

/** @param {string} piece */
function tokenClass(piece) {
  return piece.startsWith("▁") ? "token begins" : "token";
}

/**
 * Creates a button with a token and its probability.
 *
 * @type {(token: Alternative, properties: Properties) => HTMLButtonElement}
 */
function tokenButton({ piece, probability }, properties) {
  return html(
    "button",
    { "--probability": `${(100 * probability).toFixed(1)}%`, ...properties },
    html("span", {}, readable(piece)),
    html("small", {}, percent(probability)),
  );
}

/**
 * Draws the tokens of the translation. One that is hovered, focused or tapped shows the likeliest tokens in its place.
 *
 * @param {TargetToken[]} tokens
 * @param {number} chosen number of tokens that are prescribed
 * @param {(prefix: number[]) => void} choose
 */
function drawTarget(tokens, chosen, choose) {
  let hide = () => {};
  return tokens.map((token, position) => {
    const before = tokens.slice(0, position).map(({ id }) => id);
    const button = tokenButton(token, {
      class: tokenClass(token.piece) + (position < chosen ? " chosen" : ""),
      "aria-label": `${readable(token.piece)}, probability ${percent(token.probability)}, alternatives`,
      "aria-expanded": "false",
      mouseenter: show,
      focus: show,
      click: show,
    });
    const place = html("span", {
      class: "choice",
      mouseleave: () => place.contains(document.activeElement) || hide(),
      focusout: (/** @type {FocusEvent} */ event) =>
        event.relatedTarget instanceof Node && place.contains(event.relatedTarget) || hide(),
      keydown: (/** @type {KeyboardEvent} */ event) => {
        const own = document.activeElement;
        if (own === button && event.key === "ArrowDown") show();
        moveFocus(event, {
          ArrowDown: own === button ? place.querySelector(".alternatives button") : own?.nextElementSibling,
          ArrowUp: own?.previousElementSibling,
          Escape: button,
        });
        if (event.key === "Escape") hide();
      },
    }, button);
    function show() {
      hide();
      const alternatives = token.alternatives.map((alternative) =>
        tokenButton(alternative, {
          "aria-label": `${readable(alternative.piece)}, probability ${percent(alternative.probability)}`,
          "aria-current": alternative.id === token.id && "true",
          click: () => choose([...before, alternative.id]),
        })
      );
      const list = html("div", { class: "alternatives", role: "group", "aria-label": "Alternatives" }, ...alternatives);
      place.append(list);
      const room = (place.parentElement?.clientWidth ?? 0) - list.offsetWidth;
      list.style.left = `${Math.max(0, Math.min(button.offsetLeft, room))}px`;
      list.style.top = `${button.offsetTop + button.offsetHeight}px`;
      button.ariaExpanded = "true";
      hide = () => {
        list.remove();
        button.ariaExpanded = "false";
      };
    }
    return { button, place };
  });
}

/**
 * Shows a translation beside the one without interventions; words that only one of them has are marked.
 *
 * @param {string} before
 * @param {string} after
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
