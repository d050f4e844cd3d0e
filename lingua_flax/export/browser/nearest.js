/** The nearest characters that a tokenizer knows: the rules of data/nearest_characters.py. @module */

/** @import { Tokenizer } from "./tokenizer.js" */

const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const WITH_ACCENT = /^([\p{sc=Latin}\p{sc=Greek}\p{sc=Cyrillic}])\p{M}+$/u; // decomposed

/** @type {(text: string, tokenizer: Tokenizer, alike: string[]) => string} the text in characters that are known */
export function inKnownCharacters(text, tokenizer, alike) {
  if (tokenizer.knows(text)) return text;
  return Array.from(
    graphemes.segment(text),
    ({ segment }) =>
      tokenizer.knows(segment) ? segment : Array.from(segment, (own) => nearest(own, tokenizer, alike)).join(""),
  ).join("");
}

/** @type {(character: string, tokenizer: Tokenizer, alike: string[]) => string} */
function nearest(character, tokenizer, alike) {
  const [composed, decomposed] = [character.normalize("NFKC"), character.normalize("NFKD")];
  const accented = WITH_ACCENT.exec(decomposed)?.[1] ?? "";
  const likely = [...(alike.find((own) => own.includes(character)) ?? ""), composed, accented, character.toLowerCase()];
  return likely.find((own) => [...own].length === 1 && tokenizer.knows(own)) ?? character;
}
