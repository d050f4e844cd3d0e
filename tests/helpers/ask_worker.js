// Answers questions with the worker in an exported HTML file: deno run --allow-read ask_worker.js FILE < questions.json
const page = await Deno.readTextFile(Deno.args[0]);
const contentOf = (id) => page.match(new RegExp(`id="${id}">([^]*?)</script>`))[1];
const code = new Blob([contentOf("worker")], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(code), { type: "module" });
worker.postMessage({ packed: contentOf("network") });
const answers = [];
for (const question of JSON.parse(await new Response(Deno.stdin.readable).text())) {
  const answer = new Promise((resolve) => worker.onmessage = ({ data }) => resolve(data));
  worker.postMessage({ question });
  answers.push(await answer);
}
console.log(JSON.stringify(answers));
worker.terminate();
