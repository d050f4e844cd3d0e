/** The page in a file of its own: a network in a worker answers in the place of the server. @module */

import { answerWith, RequestError } from "../../page/static/api.js";

/** @typedef {{ question: any, signal?: AbortSignal, resolve: (answer: any) => void, reject: (error: Error) => void }} Task */

/** @type {(id: string) => string} */
const contentOf = (id) => document.getElementById(id)?.textContent ?? "";
const answers = JSON.parse(contentOf("answers"));
const worker = new Worker(URL.createObjectURL(new Blob([contentOf("worker")], { type: "text/javascript" })));
worker.postMessage({ packed: contentOf("network").trim() });
/** @type {Task[]} */
const tasks = []; // the first is with the worker

worker.addEventListener("message", ({ data: { answer, error } }) => {
  const { resolve, reject } = /** @type {Task} */ (tasks.shift());
  if (error) reject(new RequestError(error, 400));
  else resolve(answer);
  begin();
});

/** Gives the worker its next task, leaving out those that nobody waits for any more. */
function begin() {
  while (tasks[0]?.signal?.aborted) tasks.shift()?.reject(new DOMException("aborted", "AbortError"));
  if (tasks.length) worker.postMessage({ question: tasks[0].question });
}

answerWith((path, { body, signal } = {}) => {
  if (path !== "inspect") return Promise.resolve(answers[path]);
  return new Promise((resolve, reject) => {
    tasks.push({ question: JSON.parse(String(body)), signal: signal ?? undefined, resolve, reject });
    if (tasks.length === 1) begin();
  });
});
