// Finds unknown words, line by line: deno run unknown_words.js, with JSON on standard input; begins with the words.
const { KnownWords } = await import(new URL("../../../lingua_flax/export/browser/words.js", import.meta.url).href);
let rest = "";
for await (const part of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + part).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    const { words, kept, texts } = JSON.parse(line);
    const known = new KnownWords(words, kept);
    console.log(JSON.stringify(texts.map((text) => known.unknownIn(text))));
  }
}
