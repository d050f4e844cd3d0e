/** Small helpers that create elements. @module */

/** @typedef {Record<string, string | number | boolean | ((event: any) => void) | undefined>} Properties */
/** @typedef {Node | string | false | null | undefined} Child; only nodes and strings are shown */

/**
 * Creates an HTML element.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties] attributes; a function is a listener, `--name` a custom property, false leaves out
 * @param {...Child} children
 */
export function html(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}

/**
 * Creates an SVG element; like `html`.
 *
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties]
 * @param {...Child} children
 */
export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

/**
 * @template {HTMLElement | SVGElement} T
 * @param {T} node
 * @param {Properties} properties
 * @param {Child[]} children
 */
function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") {
      node.addEventListener(name, value);
    } else if (name.startsWith("--")) {
      node.style.setProperty(name, String(value));
    } else if (value !== false && value !== undefined) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children) if (child) node.append(child);
  return node;
}

/**
 * Creates a button that is pressed or not.
 *
 * @type {(title: string, isPressed: boolean, click: () => void, properties?: Properties) => HTMLButtonElement}
 */
export function toggle(title, isPressed, click, properties = {}) {
  return html("button", { "aria-pressed": String(isPressed), click, ...properties }, title);
}

/**
 * Creates a checkbox with a text beside it.
 *
 * @param {string} text
 * @param {boolean} checked
 * @param {(checked: boolean) => void} change
 * @param {string} [name] for those who do not see where it is
 */
export function checkbox(text, checked, change, name = text) {
  const box = html("input", { type: "checkbox", "aria-label": name, checked, change: () => change(box.checked) });
  return html("label", {}, box, ` ${text}`);
}

/**
 * Returns a piece as people read it: SentencePiece's mark of a word's beginning becomes a space, which is left out.
 *
 * @param {string} piece
 */
export function readable(piece) {
  return piece.replaceAll("▁", " ").trim() || "␣";
}

/**
 * @param {number} share from 0 to 1
 * @returns {string} such as 87%, with more digits near 0
 */
export function percent(share) {
  const value = 100 * share;
  return value >= 9.95 || value === 0 ? `${Math.round(value)}%` : value >= 0.095 ? `${value.toFixed(1)}%` : "<0.1%";
}

/**
 * Moves the focus with the keys that lead somewhere.
 *
 * @param {KeyboardEvent} event
 * @param {Record<string, Element | null | undefined>} neighbors by the name of the key that leads to each
 */
export function moveFocus(event, neighbors) {
  const next = neighbors[event.key];
  if (!(next instanceof HTMLElement || next instanceof SVGElement)) return;
  event.preventDefault();
  next.focus();
}
