/** Documents that are chosen or dropped on the page: the server translates them, and they are offered for download. @module */

import { translateFile } from "./api.js";
import { html } from "./dom.js";

/**
 * Creates a button that translates a document; one that is dropped on the page is translated, too.
 *
 * @param {string[]} formats suffixes of the names of documents
 * @param {HTMLElement} said where it is said what becomes of a document
 * @param {() => [string, string]} languages of source and target
 */
export function documentButton(formats, said, languages) {
  /** @param {File | undefined} file */
  const translate = async (file) => {
    if (!file) return;
    said.replaceChildren(`Translating ${file.name} …`);
    try {
      const { pathname } = new URL(await translateFile(file, ...languages()));
      const name = pathname.replace(/.*\/[^.]*\./, ""); // before the name of the document is a secret
      said.replaceChildren("Translated: ", html("a", { href: pathname, download: name }, name));
    } catch (error) {
      said.replaceChildren(error instanceof Error ? error.message : String(error));
    }
  };
  const accept = formats.join();
  const input = html("input", { type: "file", accept, change: () => translate(input.files?.[0]) });
  addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  addEventListener("drop", (event) => {
    if (event.dataTransfer?.files.length) event.preventDefault();
    translate(event.dataTransfer?.files[0]);
  });
  const click = () => {
    input.value = ""; // or the same document would not be taken twice
    input.click();
  };
  const title = `Or drop one on the page: ${formats.join(", ")}`;
  return html("button", { class: "document", title, click }, "Document");
}
