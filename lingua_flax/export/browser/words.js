/** The words that the training text had, and those of a text that it never had: the rules of data/known_words.py. @module */

// Of scripts without spaces between words, where every character is looked up by itself.
const ALONE = String.raw`[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]`;
const WORD = new RegExp(`${ALONE}|(?:(?!${ALONE})[\\p{L}\\p{M}\\p{N}_])+`, "gu");
const LOOKED_UP = /^(?=.*\p{L})\P{N}{1,100}$/su; // but not numbers, punctuation and codes such as MP3

/** A list of words. */
export class KnownWords {
  /**
   * @param {string[]} words without regard to case
   * @param {string} kept pattern of what stays as it is
   */
  constructor(words, kept) {
    this.words = new Set(words);
    this.kept = new RegExp(kept, "gu");
  }

  /** @type {(text: string) => { unknown_words: [number, number][], mostly_unknown: boolean }} places are characters */
  unknownIn(text) {
    const rest = text.replace(this.kept, (span) => " ".repeat(span.length));
    const words = [...rest.matchAll(WORD)].filter(([word]) => LOOKED_UP.test(word));
    const keyOf = (/** @type {string} */ word) =>
      word.normalize("NFKC").toUpperCase().toLowerCase().replaceAll("i\u0307", "i"); // of the Turkish İ
    const unknown = words.filter(([word]) => !this.words.has(keyOf(word)));
    const before = (/** @type {number} */ index) => [...text.slice(0, index)].length;
    return {
      unknown_words: unknown.map(({ 0: word, index }) => [before(index), before(index + word.length)]),
      mostly_unknown: unknown.length > Math.max(1, words.length / 2),
    };
  }
}
