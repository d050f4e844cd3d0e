// Encodes and decodes, line by line: deno run --allow-read tokenize.js MODEL.json, with JSON on standard input.
const { Tokenizer } = await import(new URL("../../../lingua_flax/export/browser/tokenizer.js", import.meta.url).href);
const { model, charsmap } = JSON.parse(await Deno.readTextFile(Deno.args[0]));
const tokenizer = new Tokenizer(model, Uint8Array.from(charsmap));
let rest = "";
for await (const part of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + part).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    const { texts, sentences } = JSON.parse(line);
    const answer = { ids: texts.map((text) => tokenizer.encode(text)), texts: sentences.map((ids) => tokenizer.decode(ids)) };
    console.log(JSON.stringify(answer));
  }
}
