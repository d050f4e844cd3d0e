"""Writes docs/attention.md and its pictures: attention told with this code's functions and a trained phrasebook run.

Run from the repository's root, after `make train`:

    python docs/attention.py --workdir checkpoints/tiny

What the trained network gave is kept in docs/attention.json; a test writes the page again from that file and the
worked examples, and compares. The page says of the network only what `check` has found true.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from data.corpora import open_corpus
from evaluation.contrast import source_words, translate_hiding
from evaluation.evaluate import EvaluationSet, evaluate
from host.errors import RunError
from host.figures import save_figure
from model.attention import MultiHeadAttention, scaled_dot_product_attention
from model.layers import ResidualConnection
from model.masks import causal_mask
from model.positions import sinusoidal_positions
from options.config_files import read_workdir_config
from options.schema import DecodingOptions, ModelConfig
from translation.attention_figures import attention_figures, labelled_heat_map, positions_figure
from translation.attention_maps import AttentionMaps, attention_maps, position_table
from translation.translator import Translator
from translation.words import Word, words_of

ROOT = Path(__file__).parent.parent

EXAMPLES = json.loads((ROOT / "tests" / "worked_examples.json").read_text(encoding="utf-8"))
# Name of its pictures, sentence, a word of it, and the French word whose heads are shown.
SENTENCES = (
    ("rive", "I swam across the river to get to the other bank.", "bank", "rive"),
    ("banque", "I deposited my paycheck at the bank yesterday.", "bank", "banque"),
    ("elle", "The cow sat on the carpet because it was tired.", "it", "elle"),
    ("il", "The cow sat on the carpet because it was soft.", "it", "il"),
    ("cat", "The cat sat on the mat because it was tired.", "it", "il"),
)
# Sentences translated again with words hidden from every layer.
HIDDEN = (
    ("I swam across the river to get to the other bank.", "river"),
    ("I swam across the river to get to the other bank.", "bank"),
    ("Alice went across the stream to get to the other bank.", ""),
    ("Alice went across the avenue to get to the other bank.", ""),
    ("Alice went across the stream to get to the other bank.", "stream"),
    ("Alice went across the avenue to get to the other bank.", "avenue"),
    ("The cow sat on the carpet because it was soft.", ""),
    ("The cow sat on the carpet because it was soft.", "soft"),
)
COLOURS = 256  # of the pictures: enough for a heat map, and half of the bytes


# --- the worked examples, computed by the functions of the network --------------------------------------------------


def one_head(
    query: Any, keys: Any, values: Any, mask: jax.Array | None = None, *, scaled: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The network's attention for one sentence and head: [T, H], [S, H], [S, V] -> outputs, weights."""
    query, keys, values = (jnp.asarray(array, jnp.float32)[None, None] for array in (query, keys, values))
    query = query if scaled else query * np.sqrt(query.shape[-1])  # undoes the scaling
    output, weights = scaled_dot_product_attention(query, keys, values, mask)
    return np.asarray(output[0, 0]), np.asarray(weights[0, 0])


def worked_numbers() -> dict[str, str]:
    """The numbers of the page's first part, as blocks of text."""
    without = EXAMPLES["parameter_free_self_attention"]
    x = np.array(without["X"])
    output, weights = one_head(x, x, x, scaled=False)
    numbers = {"plain_weights": table(["I", "play", "football"], weights), "plain_output": row(output[0]).strip()}

    example = EXAMPLES["self_attention_i_play_football"]
    projected = (np.array(example["X"]) @ np.array(example[name]) for name in ("WQ", "WK", "WV"))
    output, weights = one_head(*projected)
    numbers |= {"head_weights": table(["I", "play", "football"], weights), "head_output": row(output[0]).strip()}

    example = EXAMPLES["self_attention_the_cat_eats_fish"]
    projected = (np.array(example["X"]) @ np.array(example[name]).T for name in ("WQ", "WK", "WV"))
    output, weights = one_head(*projected, scaled=False)
    numbers |= {"eats_weights": table(["The", "cat", "eats", "fish"], weights), "eats_output": row(output[2]).strip()}

    scores, identity = np.array(EXAMPLES["scaling"]["scores"], np.float32), np.eye(4, dtype=np.float32)

    def weights_of(scores: Any, scaled: bool) -> jax.Array:
        """A head of width 4: the scores come out of the product, and are divided by 2 where they are scaled."""
        arrays = (jnp.asarray(array)[None, None] for array in (scores[None], identity, identity))
        query, keys, values = arrays
        return scaled_dot_product_attention(query * (1 if scaled else 2), keys, values)[1][0, 0, 0]

    for name, scaled in (("unscaled", False), ("scaled", True)):
        gradient = jax.jacobian(lambda scores, scaled=scaled: weights_of(scores, scaled))(scores)
        numbers[name] = row(weights_of(scores, scaled))
        # By the scores that the softmax is given, which are halved where they are scaled.
        numbers[f"{name}_gradient"] = row(np.diag(gradient) * (2 if scaled else 1))

    example = EXAMPLES["masked_self_attention_write_a_poem"]
    _, weights = one_head(example["scores"], np.eye(3), np.eye(3), causal_mask(3), scaled=False)
    numbers["masked_weights"] = table(["write", "a", "poem"], weights)

    numbers |= _heads() | _cross()
    example = EXAMPLES["positional_encoding_i_am_a_robot"]
    numbers["positions"] = table(["I", "am", "a", "robot"], sinusoidal_positions(4, 4, example["base"]))
    config = ModelConfig(embed_dim=3, num_heads=1, positions="learned", norm="post")
    around = ResidualConnection(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    rows = jnp.array(EXAMPLES["layer_norm"]["input"])
    numbers["layer_norm"] = table([row(values, 0) for values in rows], around(rows, jnp.zeros_like))
    return numbers


def _heads() -> dict[str, str]:
    """Two heads side by side, through the module of the network."""
    example = EXAMPLES["multi_head_the_cat_sat"]
    attention = MultiHeadAttention(4, 2, dropout_rate=0.0, dtype=jnp.float32, rngs=nnx.Rngs(0))
    for projection, name in ((attention.query, "WQ"), (attention.key, "WK"), (attention.value, "WV")):
        projection.kernel[...] = jnp.concatenate([jnp.array(head[name]) for head in example["heads"]], axis=1)
    attention.output.kernel[...] = jnp.array(example["WO"])
    x = jnp.array(example["X"])[None]
    output, weights = attention(x, x)
    words = ["the", "cat", "sat"]
    return {
        "first_head": table(words, weights[0, 0]),
        "second_head": table(words, weights[0, 1]),
        "heads_output": table(words, output[0]),
    }


def _cross() -> dict[str, str]:
    """Three steps of a decoder that looks at four encoder outputs with given weights."""
    example = EXAMPLES["cross_attention_le_chat_mange"]
    hidden, lines = np.array(example["initial_hidden"]), []
    for step in example["steps"]:
        given = np.array(step["weights"])
        query = np.log(np.where(given > 0, given, 1.0))[None]
        context, weights = one_head(query, np.eye(4), example["encoder_outputs"], jnp.array(given > 0), scaled=False)
        hidden = hidden + context[0]
        lines.append(f"{step['word']:<6}{row(weights[0])}   context {row(context[0])}   stream {row(hidden)}")
    return {"cross": "\n".join(lines)}


def row(values: Any, decimals: int = 2) -> str:
    """Numbers side by side."""
    return "  ".join(f"{float(value) + 0.0:{decimals + 3}.{decimals}f}" for value in values)


def table(names: Sequence[str], values: Any) -> str:
    """A row of numbers for each name."""
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {row(line)}" for name, line in zip(names, values, strict=True))


# --- what the trained network gives ---------------------------------------------------------------------------------


def network_numbers(translator: Translator, maps: dict[str, AttentionMaps], workdir: Path) -> dict[str, Any]:
    """All the page says of the network, as JSON can hold it."""
    corpus = open_corpus(read_workdir_config(workdir).data)
    found = evaluate(translator, EvaluationSet.of_split(corpus, "contrast"), DecodingOptions())
    everything = {pair.source for split in corpus.splits for pair in corpus.split(split)}
    return {
        "checkpoint_step": translator.step,
        "in_the_corpus": [line for _, line, _, _ in SENTENCES if line in everything],
        "sentences": {name: sentence_numbers(maps[name], word, french) for name, _, word, french in SENTENCES},
        "table": maps["rive"].table(),
        "hidden": [[line, word, translate_without(translator, line, word)] for line, word in HIDDEN],
        "contrast": {name: value for name, value in found.as_json().items() if name.startswith("contrast")},
    }


def sentence_numbers(maps: AttentionMaps, word: str, french: str) -> dict[str, Any]:
    """The translation, what the French word looked at, and each head's favourites for both words."""
    looked_at = next(shares for written, shares in maps.looked_at() if written == french)
    return {
        "translation": maps.translation,
        "looked_at": [[text, round(share, 4)] for text, share in looked_at],
        "encoder": favourites(maps.encoder, maps.source_tokens, maps.source_tokens, word),
        "cross": favourites(maps.cross, maps.target_written, maps.source_tokens, french),
    }


def favourites(weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], word: str) -> list[list[list[Any]]]:
    """[layer][head] -> the source word that the query word looks at most, and its weight."""
    by_word = word_rows(weights, queries, words_of(keys), word)
    return [[_best(head, words_of(keys)) for head in layer] for layer in by_word]


def word_rows(weights: np.ndarray, queries: Sequence[str], keys: Sequence[Word], word: str) -> np.ndarray:
    """The row of the last query word of that name: [layers, N, queries, keys] tokens -> [layers, N, key words]."""
    positions = [found for found in words_of(queries) if found.text == word][-1].positions
    rows = weights[:, :, list(positions)].mean(axis=2)
    return np.stack([rows[..., list(key.positions)].sum(axis=-1) for key in keys], axis=-1)


def _best(shares: np.ndarray, keys: Sequence[Word]) -> list[Any]:
    best = int(shares.argmax())
    return [keys[best].text, round(float(shares[best]), 4)]


def translate_without(translator: Translator, line: str, word: str) -> str:
    """The greedy translation with that word hidden from every layer."""
    hidden = [
        position for found in source_words(translator, line) if found.text == word for position in found.positions
    ]
    return translate_hiding(translator, [line], [hidden], DecodingOptions())[0]


def strongest(heads: list[list[list[Any]]], word: str) -> tuple[str, float]:
    """The head that gives the word most, of those whose favourite it is: ("head 2 of layer 1", 0.9), or weight 0."""
    found = [
        (f"head {head} of layer {layer}", weight)
        for layer, favourites in enumerate(heads, 1)
        for head, (favourite, weight) in enumerate(favourites, 1)
        if favourite == word
    ]
    return max(found, key=lambda place: place[1], default=("none", 0.0))


def check(found: dict[str, Any]) -> None:
    """Raises RunError where the page would say something of the network that is not so."""
    sentences = found["sentences"]
    hidden = {(line, word): translation for line, word, translation in found["hidden"]}
    stream, avenue = (f"Alice went across the {word} to get to the other bank." for word in ("stream", "avenue"))
    pairs = found["contrast"]["contrast_hidden_pairs"]
    claims = {
        "rive looks at bank most": sentences["rive"]["looked_at"][0][0] == "bank",
        "banque looks at bank most": sentences["banque"]["looked_at"][0][0] == "bank",
        "bank looks at river": strongest(sentences["rive"]["encoder"], "river")[1] > 0.4,
        "banque looks at paycheck": strongest(sentences["banque"]["cross"], "paycheck")[1] > 0.5,
        "elle looks at cow": strongest(sentences["elle"]["cross"], "cow")[1] > 0.5,
        "il looks at carpet": strongest(sentences["il"]["cross"], "carpet")[1] > 0.5,
        "il looks at soft": strongest(sentences["il"]["cross"], "soft")[1] > 0.5,
        "the cow is in no split": not any(line.startswith("The cow") for line in found["in_the_corpus"]),
        "without its decider a pair is one sentence": hidden[stream, "stream"] == hidden[avenue, "avenue"],
        "deciding words decide": found["contrast"]["contrast_flipped"] > 0.8 * pairs,
        "other words do not": found["contrast"]["contrast_flipped_control"] < 0.1 * pairs,
    }
    if wrong := [claim for claim, holds in claims.items() if not holds]:
        raise RunError(f"this network does not do what the page says: {'; '.join(wrong)}")


# --- pictures -------------------------------------------------------------------------------------------------------


def draw(translator: Translator, maps: dict[str, AttentionMaps], folder: Path) -> None:
    """Writes the page's pictures."""
    config = translator.config
    save_small(positions_figure(position_table(translator), config.positions), folder / "positions.png")
    (sheet,) = attention_figures(maps["rive"])
    save_small(sheet, folder / "sheet.png")
    for name, _, word, french in SENTENCES[:4]:
        attended = maps[name]
        keys = words_of(attended.source_tokens)
        heads = [
            f"layer {layer}, head {head}"
            for layer in range(1, len(attended.cross) + 1)
            for head in range(1, config.num_heads + 1)
        ]
        columns = [key.text for key in keys]
        encoder = word_rows(attended.encoder, attended.source_tokens, keys, word).reshape(-1, len(keys))
        cross = word_rows(attended.cross, attended.target_written, keys, french).reshape(-1, len(keys))
        if name in ("rive", "banque"):
            title = f'where "{word}" looks in the encoder: {attended.text}'
            save_small(labelled_heat_map(encoder, heads, columns, title), folder / f"{name}-encoder.png")
        title = f'where the decoder looks before it writes "{french}": {attended.text}'
        save_small(labelled_heat_map(cross, heads, columns, title), folder / f"{name}-cross.png")


def save_small(figure: Any, path: Path) -> None:
    """Saves a picture with few colours."""
    from PIL import Image

    save_figure(figure, path)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(COLOURS)
    few.save(path, optimize=True)


# --- the page -------------------------------------------------------------------------------------------------------


def page(found: dict[str, Any]) -> str:
    """The text of docs/attention.md."""
    sentences = found["sentences"]
    places = {
        f"{name}_{kind}_{word}": f"{place} ({weight:.2f})"
        for name, kind, word in (
            ("rive", "encoder", "river"),
            ("rive", "cross", "river"),
            ("banque", "encoder", "paycheck"),
            ("banque", "cross", "paycheck"),
            ("elle", "cross", "cow"),
            ("il", "cross", "carpet"),
            ("il", "cross", "soft"),
        )
        for place, weight in [strongest(sentences[name][kind], word)]
    }
    looked = {f"{name}_looked_at": shares(sentences[name]["looked_at"][:4]) for name in sentences}
    translations = {f"{name}_translation": sentences[name]["translation"] for name in sentences}
    contrast = found["contrast"]
    counts = {
        **contrast,
        "flipped_share": f"{contrast['contrast_flipped'] / contrast['contrast_hidden_pairs']:.1%}",
        "control_share": f"{contrast['contrast_flipped_control'] / contrast['contrast_hidden_pairs']:.1%}",
    }
    text = PAGE.format(
        **worked_numbers(),
        **places,
        **looked,
        **translations,
        **counts,
        step=f"{found['checkpoint_step']:,}",
        table="\n".join(found["table"]),
        hidden="\n".join(
            f"| {line} | {word or '(nothing)'} | {translation} |" for line, word, translation in found["hidden"]
        ),
    )
    return filled(text)


def filled(text: str) -> str:
    """Lines of prose brought to one width; code, tables, lists, pictures and headings stay as they are."""
    parts = text.split("```")
    for part in range(0, len(parts), 2):  # between blocks of code
        paragraphs = parts[part].split("\n\n")
        for i, paragraph in enumerate(paragraphs):
            if paragraph.strip() and paragraph.strip()[0] not in "#|!-":
                ends = ["\n" if paragraph.startswith("\n") else "", "\n" if paragraph.endswith("\n") else ""]
                prose = textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)
                paragraphs[i] = ends[0] + prose + ends[1]
        parts[part] = "\n\n".join(paragraphs)
    return "```".join(parts)


def shares(words: Iterable[Sequence[Any]]) -> str:
    """Words with their shares of attention."""
    return ", ".join(f"{word} {share:.2f}" for word, share in words)


PAGE = (Path(__file__).parent / "attention.template").read_text(encoding="utf-8")


def main() -> None:
    """Writes the page, the pictures and the network's numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True, help="a trained run of configs/tiny.toml")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where everything goes")
    arguments = parser.parse_args()
    translator = Translator.load(arguments.workdir)
    found = translator.translate([line for _, line, _, _ in SENTENCES])
    names = [name for name, _, _, _ in SENTENCES]
    maps = {name: attention_maps(translator, line) for name, line in zip(names, found, strict=True)}
    numbers = network_numbers(translator, maps, arguments.workdir)
    check(numbers)
    draw(translator, maps, arguments.folder)
    text = json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
    (arguments.folder / "attention.json").write_text(text, encoding="utf-8")
    (arguments.folder / "attention.md").write_text(page(numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
