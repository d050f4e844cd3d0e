// Draws sentences with their unknown words: deno run --allow-read mark_unknown.js < inspections.json, with enough of a DOM.
globalThis.document = {
  createElement: (tag) => ({
    tag,
    attributes: {},
    children: [],
    setAttribute(name, value) {
      this.attributes[name] = value;
    },
    append(child) {
      this.children.push(child);
    },
  }),
};
const page = new URL("../../../lingua_flax/serving/page/unknown_words.js", import.meta.url).href;
const { markUnknown } = await import(page);
const inspections = JSON.parse(await new Response(Deno.stdin.readable).text());
console.log(JSON.stringify(inspections.map(markUnknown)));
