/** Small helpers that create elements. @module */

/** @typedef {Record<string, string | number | boolean | EventListener | undefined>} Properties */

/**
 * Creates an HTML element.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties] attributes; a function is a listener, `--name` a custom property, false leaves out
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Tag]}
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
 * @param {...(Node | string)} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

/**
 * @template {HTMLElement | SVGElement} T
 * @param {T} node
 * @param {Properties} properties
 * @param {(Node | string)[]} children
 * @returns {T}
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
  node.append(...children);
  return node;
}

/**
 * Returns a piece as people read it: SentencePiece's mark of a word's beginning becomes a space, which is left out.
 *
 * @param {string} piece
 * @returns {string}
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
 * Returns the value of a custom property of the theme, such as --ink.
 *
 * @param {string} name
 * @returns {string}
 */
export function themeColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * Offers a file for download.
 *
 * @param {Blob} content
 * @param {string} name
 */
export function download(content, name) {
  const url = URL.createObjectURL(content);
  html("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
