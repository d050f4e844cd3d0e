/** The worker that translates, so that the page never waits. @module */

import { Translator } from "./translator.js";

/** @import { Tensor } from "./network.js" */
/** @import { Description } from "./translator.js" */

/** @typedef {{ dtype: "I8" | "F32" | "U8", shape: number[], data_offsets: [number, number] }} Entry */

/** @type {(packed: string) => Promise<ConstructorParameters<typeof Translator>>} given safetensors that the exporter has compressed, in base64 */
async function unpacked(packed) {
  const compressed = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer(); // fails if a bit has changed: gzip has a checksum
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(buffer.slice(8, start)));
  const bytes = (/** @type {string} */ name) => {
    const [begin, end] = entries[name].data_offsets;
    return buffer.slice(start + begin, start + end);
  };
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const [name, { dtype, shape }] of /** @type {[string, Entry][]} */ (Object.entries(entries))) {
    if (dtype === "F32") tensors[name] = { shape, values: new Float32Array(bytes(name)) };
    if (dtype !== "I8") continue;
    const scales = new Float32Array(bytes(`${name}.row_scale`));
    const integers = new Int8Array(bytes(name));
    tensors[name] = {
      shape,
      values: Float32Array.from(integers, (value, i) => value * scales[Math.floor(i / shape[1])]),
    };
  }
  /** @type {Description} */
  const description = JSON.parse(metadata.description);
  const charsmaps = description.tokenizers.map((_, i) => new Uint8Array(bytes(`charsmap.${i}`)));
  const words = new TextDecoder().decode(bytes("words")).split("\n").filter(Boolean);
  return [description, tensors, charsmaps, words];
}

/** @type {Promise<Translator>} */
let translator;

addEventListener("message", async ({ data: { packed, question, line, beam_size } }) => {
  if (packed) {
    translator = unpacked(packed).catch(() => Promise.reject(new Error("this file is damaged; copy it again")))
      .then((content) => new Translator(...content));
  }
  try {
    if (question) postMessage({ answer: (await translator).inspect(question) });
    // As the exporter compares: a line is a single sentence.
    if (line) postMessage({ answer: (await translator).best(line, { beam_size, length_penalty: 0 }) });
  } catch (error) {
    postMessage({ error: error instanceof Error ? error.message : String(error) });
  }
});
