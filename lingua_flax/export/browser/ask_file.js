/**
 * Sends messages to the worker in an exported file: deno run --allow-read ask_file.js FILE SECONDS < messages.json
 *
 * After so many seconds, it leaves out the rest. @module
 */

const { Deno } = /** @type {any} */ (globalThis);
const end = performance.now() + 1000 * Deno.args[1];
const file = await Deno.readTextFile(Deno.args[0]);
/** @type {(id: string) => string} */
const contentOf = (id) => file.match(new RegExp(`id="${id}">([^]*?)</script>`))[1];
const code = new Blob([contentOf("worker")], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(code), { type: "module" });
worker.postMessage({ packed: contentOf("network") });
const answers = [];
for (const message of JSON.parse(await new Response(Deno.stdin.readable).text())) {
  const answer = new Promise((resolve) => worker.onmessage = ({ data }) => resolve(data));
  worker.postMessage(message);
  answers.push(await answer);
  if (performance.now() > end) break;
}
console.log(JSON.stringify(answers));
worker.terminate();
