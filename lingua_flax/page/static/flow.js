/** The way of one weight as a picture: which vectors go where, from both words to the next one. @module */

import { svg } from "./dom.js";

const [WIDTH, HEIGHT, BOX] = [420, 142, 36]; // the last is the height of a box
const [RIGHT, DOWN, UP] = ["l-5-3m5 3l-5 3", "l-3-5m3 5l3-5", "l-3 5m3-5l3 5"]; // heads of arrows
/** @type {[string, number, number, number][][]} name, left, top and width of the boxes of each stage */
const BOXES = [
  [["looks", 0, 3, 88], ["is looked at", 0, 53, 88]],
  [["× W_Q", 108, 3, 52], ["× W_K", 108, 53, 52], ["q · k ÷ √H", 182, 28, 70]],
  [["softmax", 272, 28, 64]],
  [["× W_V", 108, 103, 52], ["× weight, Σ", 260, 103, 74]],
  [["× W_O", 350, 103, 70], ["add & norm", 350, 53, 70]],
  [["next word", 350, 3, 70]],
];
const VECTORS = [ // their paths
  "",
  `M88 21H108${RIGHT}M88 71H108${RIGHT}M160 21H171V40H182${RIGHT}M160 71H171V52H182${RIGHT}`,
  `M252 46H272${RIGHT}`,
  `M304 64V103${DOWN}M44 89V121H108${RIGHT}M160 121H260${RIGHT}`,
  `M334 121H350${RIGHT}M385 103V89${UP}`,
  `M385 53V39${UP}`,
];

/**
 * Draws the stages of a weight, with what stands in the boxes of each; a click on one calls `choose`.
 *
 * @type {(titles: string[], values?: string[][], choose?: (stage: number) => void) => SVGElement}
 */
export function drawFlow(titles, values, choose) {
  const stages = titles.slice(0, values?.length).map((title, stage) => {
    const boxes = BOXES[stage].flatMap(([name, x, y, width], i) => {
      const middle = { x: x + width / 2, "text-anchor": "middle" };
      const [letters, most] = [[...(values?.[stage][i] ?? "…")], Math.floor(width / 7)];
      const shown = letters.length > most ? [...letters.slice(0, most - 1), "…"] : letters;
      return [
        svg("rect", { x, y, width, height: BOX, rx: 6 }),
        svg("text", { ...middle, y: y + 14, class: "name" }, name),
        svg("text", { ...middle, y: y + 29 }, shown.join("")),
      ];
    });
    const button = choose && {
      role: "button",
      tabindex: 0,
      click: () => choose(stage),
      keydown: (/** @type {KeyboardEvent} */ { key }) => key === "Enter" && choose(stage),
    };
    return svg("g", { ...button, "aria-label": title }, svg("path", { d: VECTORS[stage] }), ...boxes);
  });
  return svg("svg", { class: "flow", viewBox: `0 0 ${WIDTH} ${HEIGHT}` }, ...stages);
}
