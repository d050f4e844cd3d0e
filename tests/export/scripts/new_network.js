// Makes networks, line by line: deno run new_network.js, with configs on standard input; answers why it does not.
const { Network } = await import(new URL("../../../lingua_flax/export/browser/network.js", import.meta.url).href);
for await (const part of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  let answer = "";
  try {
    new Network(JSON.parse(part), {});
  } catch (error) {
    answer = error.message;
  }
  console.log(JSON.stringify(answer));
}
