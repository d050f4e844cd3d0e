// Answers line by line, with JSON on standard input: deno run --allow-read answer.js [MODEL.json]; with a model, what its
// tokenizer makes of texts and of ids, otherwise which words of texts are unknown.
const code = new URL("../../../lingua_flax/export/browser/", import.meta.url).href;
const { Tokenizer } = await import(`${code}tokenizer.js`);
const { KnownWords } = await import(`${code}words.js`);
const { model, charsmap } = Deno.args.length ? JSON.parse(await Deno.readTextFile(Deno.args[0])) : {};
const tokenizer = model && new Tokenizer(model, Uint8Array.from(charsmap));
let rest = "";
for await (const part of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + part).split("\n");
  rest = lines.pop();
  for (const { texts, sentences, words, kept } of lines.map((line) => JSON.parse(line))) {
    const answer = tokenizer
      ? { ids: texts.map((text) => tokenizer.encode(text)), texts: sentences.map((ids) => tokenizer.decode(ids)) }
      : texts.map((text) => new KnownWords(words, kept).unknownIn(text));
    console.log(JSON.stringify(answer));
  }
}
