/** Small helpers that create elements. @module */

/** @typedef {Record<string, string | number | boolean | ((event: any) => void) | undefined>} Properties */
/** @typedef {Node | string | false | null | undefined} Child; only nodes and strings are shown */

/**
 * Creates an HTML element; `svg` creates one of SVG.
 *
 * A property is an attribute, which false leaves out; a function is a listener, and `--name` a custom property.
 *
 * @type {<T extends keyof HTMLElementTagNameMap>(tag: T, properties?: Properties, ...children: Child[]) => HTMLElementTagNameMap[T]}
 */
export function html(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}

/** @type {<T extends keyof SVGElementTagNameMap>(tag: T, properties?: Properties, ...children: Child[]) => SVGElementTagNameMap[T]} */
export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

/** @type {<T extends HTMLElement | SVGElement>(node: T, properties: Properties, children: Child[]) => T} */
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

/** @type {(title: string, isPressed: boolean, click: () => void, properties?: Properties) => HTMLButtonElement} */
export function toggle(title, isPressed, click, properties = {}) {
  return html("button", { "aria-pressed": String(isPressed), click, ...properties }, title);
}

/** @type {(text: string, checked: boolean, change: (checked: boolean) => void, name?: string) => HTMLElement} with a name for those who do not see where it is */
export function checkbox(text, checked, change, name = text) {
  const box = html("input", { type: "checkbox", "aria-label": name, checked, change: () => change(box.checked) });
  return html("label", {}, box, ` ${text}`);
}

/** @type {(piece: string) => string} as people read it, without SentencePiece's mark of a word's beginning */
export function readable(piece) {
  return piece.replaceAll("▁", " ").trim() || "␣";
}

/** @type {(share: number) => string} such as 87% of 0.87, with more digits near 0 */
export function percent(share) {
  const value = 100 * share;
  return value >= 9.95 || value === 0 ? `${Math.round(value)}%` : value >= 0.095 ? `${value.toFixed(1)}%` : "<0.1%";
}

/**
 * Moves the focus to a neighbor, which stands under the name of the key that leads there.
 *
 * @type {(event: KeyboardEvent, neighbors: Record<string, Element | null | undefined>) => void}
 */
export function moveFocus(event, neighbors) {
  const next = neighbors[event.key];
  if (!(next instanceof HTMLElement || next instanceof SVGElement)) return;
  event.preventDefault();
  next.focus();
}
