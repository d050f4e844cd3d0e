/** The architecture as a map: each attention sublayer is a button that opens its weights. @module */

import { html, toggle } from "./dom.js";

/** @import { Inspection, Kind } from "./types.js" */
/** @import { Selection } from "./weights.js" */

/** @type {(inspection: Inspection, selection: Selection, open: (kind: Kind, layer: number) => void) => HTMLElement} */
export function drawDiagram(inspection, selection, open) {
  /** @type {(text: string, use?: string) => HTMLElement} use: for the stages that it is lit in */
  const part = (text, use = "") => html("li", { class: `part ${use}` }, text);
  /** @type {(kind: Kind, layer: number, text: string) => HTMLElement} */
  const attention = (kind, layer, text) => {
    const isShown = selection.kind === kind && (selection.layer ?? layer) === layer;
    const name = { "aria-label": `Open layer ${layer + 1}, ${text}` };
    return html("li", { class: kind }, toggle(text, isShown, () => open(kind, layer), name));
  };
  /** @type {(kind: "encoder" | "decoder", sublayers: (layer: number) => HTMLElement[]) => HTMLElement[]} */
  const layers = (kind, sublayers) =>
    Array.from(
      { length: inspection.attention[kind].layers },
      (_, layer) =>
        html("li", { class: "block" }, `Layer ${layer + 1}`, html("ol", {}, ...sublayers(layer), part("feed-forward"))),
    );
  return html(
    "div",
    { class: "diagram", role: "group", "aria-label": "Architecture" },
    html(
      "ol",
      { "aria-label": "Encoder" },
      part("source: embedding + position", "from-encoder"),
      ...layers("encoder", (layer) => [attention("encoder", layer, "self-attention")]),
      part("encoder's output", "output"),
    ),
    html("p", { class: "memory from-cross" }, "memory: keys and values"),
    html(
      "ol",
      { "aria-label": "Decoder" },
      part("translation so far: embedding + position", "from-cross from-decoder"),
      ...layers("decoder", (layer) => [
        attention("decoder", layer, "masked self-attention"),
        attention("cross", layer, "cross-attention"),
      ]),
      part("logits → softmax → next word", "last"),
    ),
  );
}
