/** Requests to the server. @module */

/** @import { Answer, Examples, Head, Kept, Place, Run } from "./types.js" */

/** A request that was refused or could not be answered. */
export class RequestError extends Error {
  /** @param {string} message @param {number} status of HTTP; 0 if there is no answer */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * @typedef {{
 *   q: string, sentence?: number, target?: string, prefix?: number[], masked?: number[], heads_off?: Head[],
 *   beam?: boolean, checkpoint?: number, explain?: Place | null
 * }} Question
 */

/** @type {(question: Question, signal?: AbortSignal) => Promise<Answer | Kept>} */
export function inspect(question, signal) {
  const headers = { "Content-Type": "application/json" };
  return request("inspect", { method: "POST", headers, body: JSON.stringify(question), signal });
}

/** @type {() => Promise<Run>} */
export const run = () => request("run");
/** @type {() => Promise<Examples>} */
export const examples = () => request("examples");
/** @type {() => Promise<{ code: string, name: string, targets: string[] }[]>} */
export const languages = () => request("languages");

/** @returns {Promise<string[]>} the suffixes of the documents that are translated; without a server, there are none */
export async function formats() {
  return (await request("frontend/settings"))?.supportedFilesFormat ?? [];
}

/** @type {(file: File, source: string, target: string) => Promise<string>} Returns the address of its translation */
export async function translateFile(file, source, target) {
  const body = new FormData();
  for (const [name, value] of Object.entries({ file, source, target })) body.append(name, value);
  return (await request("translate_file", { method: "POST", body })).translatedFileUrl;
}

/** @typedef {(path: string, options?: RequestInit) => Promise<any>} Request */

/** @type {(answer: Request) => void} Lets something else answer than a server */
export function answerWith(answer) {
  request = answer;
}

/** @type {Request} */
let request = async (path, options) => {
  let response, content;
  try {
    response = await fetch(path, options);
    content = await response.json(); // a proxy may answer in HTML
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new RequestError("The server does not answer.", 0);
  }
  if (!response.ok) throw new RequestError(content.error, response.status);
  return content;
};
