/** SentencePiece, unigram and BPE: the same tokens as the library has, for any text. @module */

/**
 * @typedef {object} Model what is needed of a SentencePiece model
 * @property {"unigram" | "bpe"} kind
 * @property {[string, number, "normal" | "user" | "byte" | "control" | "unknown" | "unused"][]} pieces with their scores and types
 * @property {boolean} byte_fallback
 * @property {string} unk_surface what unknown tokens are decoded as
 */

const SPACE = "▁";
const [EOS, UNK] = [1, 3];
const UNKNOWN_PENALTY = 10; // how far a character without a piece is below the lowest score
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Text to token ids, and back. */
export class Tokenizer {
  /**
   * @param {Model} model
   * @param {Uint8Array} charsmap normalization rules: a double array, which begins with its size in bytes, and strings
   */
  constructor(model, charsmap) {
    this.model = model;
    const size = charsmap.length ? new DataView(charsmap.buffer).getUint32(0, true) : 0;
    this.units = new Uint32Array(charsmap.buffer, 4 * Number(size > 0), size / 4);
    this.replacements = charsmap.subarray(4 + size);
    const ofText = new Set(["normal", "user", "byte"]);
    this.ids = new Map(model.pieces.flatMap(([piece, , type], id) => ofText.has(type) ? [[piece, id]] : []));
    // Those of the other side, whose ids are the same.
    this.others = new Map(model.pieces.flatMap(([piece, , type], id) => type === "unused" ? [[piece, id]] : []));
    const normal = model.pieces.filter(([, , type]) => type === "normal");
    const scores = normal.map(([, score]) => score);
    this.least = Math.min(...scores);
    this.most = Math.max(...scores);
    this.longest = Math.max(...normal.map(([piece]) => [...piece].length));
  }

  /** @type {(text: string) => number[]} */
  encode(text) {
    const characters = [...this.normalize(text)];
    /** @type {number[]} */
    const ids = [];
    let unknown = ""; // a run of unknown characters is one token
    for (const symbol of this.model.kind === "bpe" ? this.merged(characters) : this.likeliest(characters)) {
      const id = this.idOf(symbol);
      if (id === UNK && this.model.byte_fallback) {
        for (const byte of encoder.encode(symbol)) {
          ids.push(this.ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`) ?? UNK);
        }
      } else {
        if (!unknown || id !== UNK) ids.push(id);
        unknown = id === UNK ? unknown + symbol : "";
        if (unknown) ids[ids.length - 1] = this.others.get(unknown) ?? UNK;
      }
    }
    return ids;
  }

  /** @type {(text: string) => boolean} */
  knows(text) {
    return !this.encode(text).includes(UNK);
  }

  /** @type {(text: string) => boolean} whether there are pieces for less than half of its characters */
  isUnknown(text) {
    const known = this.encode(text).filter((id) => id !== UNK).map((id) => this.model.pieces[id][0]).join("");
    const [some, all] = [known, this.normalize(text)].map((own) => [...own.replaceAll(SPACE, "")].length);
    return some < all / 2;
  }

  /** @type {(ids: number[]) => string} always a single line */
  decode(ids) {
    let text = "";
    /** @type {number[]} */
    let bytes = [];
    for (const id of [...ids, EOS]) {
      const [piece, , type] = this.model.pieces[id];
      if (type === "byte") {
        bytes.push(Number(piece.slice(1, -1)));
        continue;
      }
      text += textOf(bytes);
      bytes = [];
      if (type === "unknown") text += this.model.unk_surface;
      else if (type !== "control") text += (text ? piece : piece.replace(/^▁/, "")).replaceAll(SPACE, " ");
    }
    return text.replace(/[\n\r]/g, " ");
  }

  /** @type {(symbol: string) => number} */
  idOf(symbol) {
    const id = this.ids.get(symbol) ?? UNK;
    return this.model.pieces[id][2] === "byte" ? UNK : id; // "<0x41>" in a text is six characters
  }

  /** @type {(text: string) => string} by the model's rules, with a space before it and no others but between words */
  normalize(text) {
    const bytes = encoder.encode(text);
    let result = SPACE;
    let isAfterSpace = true;
    for (let at = 0; at < bytes.length;) {
      const { normal, length } = this.rule(bytes, at);
      /** @type {string} */
      const added = isAfterSpace ? normal.replace(/^ +/, "") : normal;
      if (added) isAfterSpace = added.endsWith(" ");
      result += added.replaceAll(" ", SPACE);
      at += length;
    }
    return result.replace(/▁+$/, "");
  }

  /**
   * Returns what the longest rule that applies at a place makes of how many bytes; without a rule, of a character.
   *
   * @type {(bytes: Uint8Array, at: number) => { normal: string, length: number }}
   */
  rule(bytes, at) {
    const length = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    const character = decoder.decode(bytes.subarray(at, at + length));
    let found = { normal: character, length };
    if (!this.units.length || this.model.pieces[this.idOf(character)][2] === "user") return found;
    let node = childrenOf(this.units[0], 0);
    for (let end = at; end < bytes.length; end++) {
      node ^= bytes[end];
      const unit = this.units[node];
      if ((unit & 0x800000ff) !== bytes[end]) break;
      node = childrenOf(unit, node);
      if (!(unit & 0x100)) continue;
      const start = this.units[node] & 0x7fffffff;
      const normal = decoder.decode(this.replacements.subarray(start, this.replacements.indexOf(0, start)));
      found = { normal, length: end + 1 - at };
    }
    return found;
  }

  /** @type {(symbols: string[]) => string[]} merges the pair with the highest score, again and again */
  merged(symbols) {
    const scores = symbols.slice(1).map((symbol, i) => this.pairScore(symbols[i], symbol));
    while (scores.length) {
      const best = scores.reduce((a, score, i) => score > scores[a] ? i : a, 0);
      if (scores[best] === -Infinity) break;
      symbols.splice(best, 2, symbols[best] + symbols[best + 1]);
      scores.splice(best, 1);
      if (best) scores[best - 1] = this.pairScore(symbols[best - 1], symbols[best]);
      if (best < scores.length) scores[best] = this.pairScore(symbols[best], symbols[best + 1]);
    }
    return symbols;
  }

  /** @type {(left: string, right: string) => number} */
  pairScore(left, right) {
    const [, score, type] = this.model.pieces[this.idOf(left + right)];
    return type === "normal" ? score : -Infinity;
  }

  /** @type {(characters: string[]) => string[]} with the library's arithmetic: sums of doubles, kept as floats */
  likeliest(characters) {
    const best = Array.from({ length: characters.length + 1 }, (_, end) => ({ score: end ? -Infinity : 0, start: 0 }));
    characters.forEach((_, start) => {
      const consider = (/** @type {number} */ end, /** @type {number} */ score) => {
        if (score > best[end].score) best[end] = { score: Math.fround(score), start };
      };
      let piece = "";
      for (let end = start + 1; end <= characters.length && end - start <= this.longest; end++) {
        piece += characters[end - 1];
        const id = this.idOf(piece);
        const [, score, type] = this.model.pieces[id];
        if (type === "user") consider(end, best[start].score + encoder.encode(piece).length * this.most - 0.1);
        else if (id !== UNK) consider(end, best[start].score + score);
        else if (end === start + 1) consider(end, Math.fround(best[start].score + this.least - UNKNOWN_PENALTY));
      }
    });
    const symbols = [];
    for (let end = characters.length; end; end = best[end].start) {
      symbols.unshift(characters.slice(best[end].start, end).join(""));
    }
    return symbols;
  }
}

/** @type {(unit: number, node: number) => number} where the children of a node of the double array begin */
function childrenOf(unit, node) {
  return (node ^ ((unit >>> 10) << ((unit & 0x200) >>> 6))) >>> 0;
}

/** @type {(bytes: number[]) => string} each byte that is part of no character becomes U+FFFD */
function textOf(bytes) {
  if (!bytes.length) return "";
  for (const length of [1, 2, 3, 4]) {
    try {
      return decoder.decode(Uint8Array.from(bytes.slice(0, length))) + textOf(bytes.slice(length));
    } catch { /* more bytes may make a character */ }
  }
  return "\ufffd" + textOf(bytes.slice(1));
}
