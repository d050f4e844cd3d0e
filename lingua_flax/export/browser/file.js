/** The page in a file of its own: a network in a worker answers in the place of the server. @module */

import { answerWith, RequestError } from "../../page/static/api.js";

/** @type {(id: string) => string} */
const contentOf = (id) => document.getElementById(id)?.textContent ?? "";
const answers = JSON.parse(contentOf("answers"));
const worker = new Worker(URL.createObjectURL(new Blob([contentOf("worker")], { type: "text/javascript" })));
worker.postMessage({ packed: contentOf("network").trim() });

/** @type {(question: unknown) => Promise<any>} */
const ask = (question) =>
  new Promise((resolve, reject) => {
    worker.onmessage = ({ data: { answer, error } }) => error ? reject(new RequestError(error, 400)) : resolve(answer);
    worker.postMessage({ question });
  });

/** @type {Promise<any>} The last answer: the worker takes one question after the other */
let last = Promise.resolve();

answerWith((path, { body, signal } = {}) => {
  if (path !== "inspect") return Promise.resolve(answers[path]);
  return last = last.catch(() => {}).then(() => {
    signal?.throwIfAborted(); // nobody waits for it any more
    return ask(JSON.parse(String(body)));
  });
});
