"""Writes docs/attention.md and its pictures: attention explained with this code's functions and a trained network.

Run from the repository root, after `make train`:

    python docs/attention.py --workdir checkpoints/tiny

The results of the trained network are stored in docs/attention.json. A test generates the page again from that file and
the worked examples, and compares the two. `check` verifies the page's claims about the network before it is written.
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
from evaluation.contrast import source_words, translate_with_hidden_tokens
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
from translation.words import Word, group_pieces

ROOT = Path(__file__).parent.parent

EXAMPLES = json.loads((ROOT / "tests" / "worked_examples.json").read_text(encoding="utf-8"))
# Prefix of the picture files, sentence, a word of the sentence, and a word of its translation; the pictures show the
# attention of these two words.
SENTENCES = (
    ("rive", "I swam across the river to get to the other bank.", "bank", "rive"),
    ("banque", "I deposited my paycheck at the bank yesterday.", "bank", "banque"),
    ("elle", "The cow sat on the carpet because it was tired.", "it", "elle"),
    ("il", "The cow sat on the carpet because it was soft.", "it", "il"),
    ("cat", "The cat sat on the mat because it was tired.", "it", "il"),
)
# Sentences, and the word that is hidden from every layer when they are translated again ("" for none).
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
COLOURS = 256  # of a picture: enough for a heat map, and it halves the size of the file


# --- worked examples, computed with the functions of the network ----------------------------------------------------


def one_head(
    query: Any, keys: Any, values: Any, mask: jax.Array | None = None, *, scaled: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Computes attention of one sentence and head: [T, H], [S, H], [S, V] -> outputs [T, V], weights [T, S].

    Without `scaled`, scores are not divided by the square root of H.
    """
    query, keys, values = (jnp.asarray(array, jnp.float32)[None, None] for array in (query, keys, values))
    query = query if scaled else query * np.sqrt(query.shape[-1])  # undoes the scaling
    mask = None if mask is None else jnp.broadcast_to(mask, (1, 1, query.shape[2], keys.shape[2]))
    output, weights = scaled_dot_product_attention(query, keys, values, mask)
    return np.asarray(output[0, 0]), np.asarray(weights[0, 0])


def worked_numbers() -> dict[str, str]:
    """Returns the numbers of the page's first part as blocks of text, by the name of their placeholder."""
    example = EXAMPLES["parameter_free_self_attention"]
    x = np.array(example["X"])
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
        """Returns the weights of a head of width 4 whose products are the scores; scaling divides these by 2."""
        arrays = (jnp.asarray(array)[None, None] for array in (scores[None], identity, identity))
        query, keys, values = arrays
        return scaled_dot_product_attention(query * (1 if scaled else 2), keys, values)[1][0, 0, 0]

    for name, scaled in (("unscaled", False), ("scaled", True)):
        gradient = jax.jacobian(lambda scores, scaled=scaled: weights_of(scores, scaled))(scores)
        numbers[name] = row(weights_of(scores, scaled))
        # The gradient with respect to the input of the softmax, which scaling halves.
        numbers[f"{name}_gradient"] = row(np.diag(gradient) * (2 if scaled else 1))

    example = EXAMPLES["masked_self_attention_write_a_poem"]
    _, weights = one_head(example["scores"], np.eye(3), np.eye(3), causal_mask(3), scaled=False)
    numbers["masked_weights"] = table(["write", "a", "poem"], weights)

    numbers |= _multi_head_numbers() | _cross_attention_numbers()
    example = EXAMPLES["positional_encoding_i_am_a_robot"]
    numbers["positions"] = table(["I", "am", "a", "robot"], sinusoidal_positions(4, 4, float(example["base"])))
    config = ModelConfig(embed_dim=3, num_heads=1, positions="learned", norm="post")
    residual = ResidualConnection(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    rows = jnp.array(EXAMPLES["layer_norm"]["input"])
    numbers["layer_norm"] = table([row(values, 0) for values in rows], residual(rows, jnp.zeros_like))
    return numbers


def _multi_head_numbers() -> dict[str, str]:
    """Returns the numbers of two heads, computed by MultiHeadAttention."""
    example = EXAMPLES["multi_head_the_cat_sat"]
    attention = MultiHeadAttention(4, 2, dropout_rate=0.0, dtype=jnp.float32, rngs=nnx.Rngs(0))
    for projection, name in ((attention.query, "WQ"), (attention.key, "WK"), (attention.value, "WV")):
        projection.kernel[...] = jnp.concatenate([jnp.array(head[name]) for head in example["heads"]], axis=1)
    attention.output.kernel[...] = jnp.array(example["WO"])
    x = jnp.array(example["X"])[None]
    output, weights = attention(x, x)
    assert weights is not None  # without fast attention there are always weights
    words = ["the", "cat", "sat"]
    return {
        "first_head": table(words, weights[0, 0]),
        "second_head": table(words, weights[0, 1]),
        "heads_output": table(words, output[0]),
    }


def _cross_attention_numbers() -> dict[str, str]:
    """Returns the numbers of three decoder steps that attend to four encoder outputs with given weights."""
    example = EXAMPLES["cross_attention_le_chat_mange"]
    hidden, lines = np.array(example["initial_hidden"]), []
    for step in example["steps"]:
        given_weights = np.array(step["weights"])
        query = np.log(np.where(given_weights > 0, given_weights, 1.0))[None]
        mask = jnp.array(given_weights > 0)
        context, weights = one_head(query, np.eye(4), example["encoder_outputs"], mask, scaled=False)
        hidden = hidden + context[0]
        lines.append(f"{step['word']:<6}{row(weights[0])}   context {row(context[0])}   stream {row(hidden)}")
    return {"cross": "\n".join(lines)}


def row(values: Any, decimals: int = 2) -> str:
    """Formats numbers side by side on one line."""
    return "  ".join(f"{float(value) + 0.0:{decimals + 3}.{decimals}f}" for value in values)


def table(names: Sequence[str], values: Any) -> str:
    """Formats a labelled row of numbers for each name."""
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {row(line)}" for name, line in zip(names, values, strict=True))


# --- results of the trained network ---------------------------------------------------------------------------------


def network_numbers(translator: Translator, maps: dict[str, AttentionMaps], workdir: Path) -> dict[str, Any]:
    """Returns everything that the page reports about the network, as a JSON object."""
    corpus = open_corpus(read_workdir_config(workdir).data)
    evaluation = evaluate(translator, EvaluationSet.from_split(corpus, "contrast"), DecodingOptions())
    corpus_sources = {pair.source for split in corpus.splits for pair in corpus.split(split)}
    return {
        "checkpoint_step": translator.step,
        "in_the_corpus": [line for _, line, _, _ in SENTENCES if line in corpus_sources],
        "sentences": {name: sentence_numbers(maps[name], word, french) for name, _, word, french in SENTENCES},
        "table": maps["rive"].table(),
        "hidden": [[line, word, translate_without(translator, line, word)] for line, word in HIDDEN],
        "contrast": {name: value for name, value in evaluation.as_json().items() if name.startswith("contrast")},
    }


def sentence_numbers(maps: AttentionMaps, word: str, french: str) -> dict[str, Any]:
    """Returns the translation, the source words that the French word attends to, and each head's top word for both."""
    looked_at = next(shares for target_word, shares in maps.attended_source_words() if target_word == french)
    return {
        "translation": maps.translation,
        "looked_at": [[text, round(share, 4)] for text, share in looked_at],
        "encoder": most_attended(maps.encoder, maps.source_tokens, maps.source_tokens, word),
        "cross": most_attended(maps.cross, maps.target_written, maps.source_tokens, french),
    }


def most_attended(weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], word: str) -> list[list[list[Any]]]:
    """Returns, for each [layer][head], the source word that the query word attends to most, and its weight."""
    word_weights = word_rows(weights, queries, group_pieces(keys), word)
    return [[_best(head, group_pieces(keys)) for head in layer] for layer in word_weights]


def word_rows(weights: np.ndarray, queries: Sequence[str], keys: Sequence[Word], word: str) -> np.ndarray:
    """Returns the weights of a query word's last occurrence: [layers, N, queries, keys] -> [layers, N, key words].

    Weights are means over the tokens of the query word and sums over the tokens of a key word.
    """
    positions = [query for query in group_pieces(queries) if query.text == word][-1].positions
    rows = weights[:, :, list(positions)].mean(axis=2)
    return np.stack([rows[..., list(key.positions)].sum(axis=-1) for key in keys], axis=-1)


def _best(shares: np.ndarray, keys: Sequence[Word]) -> list[Any]:
    best = int(shares.argmax())
    return [keys[best].text, round(float(shares[best]), 4)]


def translate_without(translator: Translator, line: str, word: str) -> str:
    """Returns the greedy translation of the line with a word hidden from every layer."""
    hidden = [
        position
        for source_word in source_words(translator, line)
        if source_word.text == word
        for position in source_word.positions
    ]
    return translate_with_hidden_tokens(translator, [line], [hidden], DecodingOptions())[0]


def strongest_head(heads: list[list[list[Any]]], word: str) -> tuple[str, float]:
    """Returns the head with the largest weight for a word, such as ("head 2 of layer 1", 0.9).

    Only heads that attend to the word most are considered; without any, the result is ("none", 0.0).

    Args:
      heads: as returned by `most_attended`.
    """
    candidates = [
        (f"head {head} of layer {layer}", weight)
        for layer, layer_heads in enumerate(heads, 1)
        for head, (attended, weight) in enumerate(layer_heads, 1)
        if attended == word
    ]
    return max(candidates, key=lambda candidate: candidate[1], default=("none", 0.0))


def check(numbers: dict[str, Any]) -> None:
    """Checks that the page's claims about the network hold.

    Raises:
      RunError: some of them do not.
    """
    sentences = numbers["sentences"]
    hidden = {(line, word): translation for line, word, translation in numbers["hidden"]}
    stream, avenue = (f"Alice went across the {word} to get to the other bank." for word in ("stream", "avenue"))
    pairs = numbers["contrast"]["contrast_hidden_pairs"]
    claims = {
        "rive looks at bank most": sentences["rive"]["looked_at"][0][0] == "bank",
        "banque looks at bank most": sentences["banque"]["looked_at"][0][0] == "bank",
        "bank looks at river": strongest_head(sentences["rive"]["encoder"], "river")[1] > 0.4,
        "banque looks at paycheck": strongest_head(sentences["banque"]["cross"], "paycheck")[1] > 0.5,
        "elle looks at cow": strongest_head(sentences["elle"]["cross"], "cow")[1] > 0.5,
        "il looks at carpet": strongest_head(sentences["il"]["cross"], "carpet")[1] > 0.5,
        "il looks at soft": strongest_head(sentences["il"]["cross"], "soft")[1] > 0.5,
        "no split contains a cow sentence": not any(line.startswith("The cow") for line in numbers["in_the_corpus"]),
        "without the deciding word a pair has one translation": hidden[stream, "stream"] == hidden[avenue, "avenue"],
        "hiding the deciding word flips most pairs": numbers["contrast"]["contrast_flipped"] > 0.8 * pairs,
        "hiding another word flips few pairs": numbers["contrast"]["contrast_flipped_control"] < 0.1 * pairs,
    }
    if wrong := [claim for claim, holds in claims.items() if not holds]:
        raise RunError(f"this network does not do what the page says: {'; '.join(wrong)}")


# --- pictures -------------------------------------------------------------------------------------------------------


def draw(translator: Translator, maps: dict[str, AttentionMaps], folder: Path) -> None:
    """Writes the pictures of the page."""
    config = translator.config
    save_small(positions_figure(position_table(translator), config.positions), folder / "positions.png")
    (figure,) = attention_figures(maps["rive"])
    save_small(figure, folder / "sheet.png")
    for name, _, word, french in SENTENCES[:4]:
        sentence_maps = maps[name]
        keys = group_pieces(sentence_maps.source_tokens)
        heads = [
            f"layer {layer}, head {head}"
            for layer in range(1, len(sentence_maps.cross) + 1)
            for head in range(1, config.num_heads + 1)
        ]
        columns = [key.text for key in keys]
        encoder = word_rows(sentence_maps.encoder, sentence_maps.source_tokens, keys, word).reshape(-1, len(keys))
        cross = word_rows(sentence_maps.cross, sentence_maps.target_written, keys, french).reshape(-1, len(keys))
        if name in ("rive", "banque"):
            title = f'where "{word}" looks in the encoder: {sentence_maps.text}'
            save_small(labelled_heat_map(encoder, heads, columns, title), folder / f"{name}-encoder.png")
        title = f'where the decoder looks before it writes "{french}": {sentence_maps.text}'
        save_small(labelled_heat_map(cross, heads, columns, title), folder / f"{name}-cross.png")


def save_small(figure: Any, path: Path) -> None:
    """Saves a picture with a palette of COLOURS colours."""
    from PIL import Image

    save_figure(figure, path)
    with Image.open(path) as picture:
        quantized = picture.convert("RGB").quantize(COLOURS)
    quantized.save(path, optimize=True)


# --- the page -------------------------------------------------------------------------------------------------------


def page(numbers: dict[str, Any]) -> str:
    """Returns the text of docs/attention.md.

    Args:
      numbers: the results of the network, the content of docs/attention.json.
    """
    sentences = numbers["sentences"]
    heads = {
        f"{name}_{kind}_{word}": f"{head} ({weight:.2f})"
        for name, kind, word in (
            ("rive", "encoder", "river"),
            ("rive", "cross", "river"),
            ("banque", "encoder", "paycheck"),
            ("banque", "cross", "paycheck"),
            ("elle", "cross", "cow"),
            ("il", "cross", "carpet"),
            ("il", "cross", "soft"),
        )
        for head, weight in [strongest_head(sentences[name][kind], word)]
    }
    looked_at = {f"{name}_looked_at": format_shares(sentences[name]["looked_at"][:4]) for name in sentences}
    translations = {f"{name}_translation": sentences[name]["translation"] for name in sentences}
    contrast = numbers["contrast"]
    counts = {
        **contrast,
        "flipped_share": f"{contrast['contrast_flipped'] / contrast['contrast_hidden_pairs']:.1%}",
        "control_share": f"{contrast['contrast_flipped_control'] / contrast['contrast_hidden_pairs']:.1%}",
    }
    text = PAGE.format(
        **worked_numbers(),
        **heads,
        **looked_at,
        **translations,
        **counts,
        step=f"{numbers['checkpoint_step']:,}",
        table="\n".join(numbers["table"]),
        hidden="\n".join(
            f"| {line} | {word or '(nothing)'} | {translation} |" for line, word, translation in numbers["hidden"]
        ),
    )
    return wrap_prose(text)


def wrap_prose(text: str) -> str:
    """Wraps paragraphs of Markdown at 120 characters, but not code blocks, tables, lists, pictures and headings."""
    parts = text.split("```")
    for part in range(0, len(parts), 2):  # outside code blocks
        paragraphs = parts[part].split("\n\n")
        for i, paragraph in enumerate(paragraphs):
            if paragraph.strip() and paragraph.strip()[0] not in "#|!-":
                start, end = "\n" if paragraph.startswith("\n") else "", "\n" if paragraph.endswith("\n") else ""
                prose = textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)
                paragraphs[i] = start + prose + end
        parts[part] = "\n\n".join(paragraphs)
    return "```".join(parts)


def format_shares(words: Iterable[Sequence[Any]]) -> str:
    """Formats words with their shares of attention."""
    return ", ".join(f"{word} {share:.2f}" for word, share in words)


PAGE = (Path(__file__).parent / "attention.template").read_text(encoding="utf-8")


def main() -> None:
    """Writes the page, its pictures and the results of the network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True, help="a trained run of configs/tiny.toml")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="output folder")
    arguments = parser.parse_args()
    translator = Translator.load(arguments.workdir)
    translations = translator.translate([line for _, line, _, _ in SENTENCES])
    names = [name for name, _, _, _ in SENTENCES]
    maps = {
        name: attention_maps(translator, translation) for name, translation in zip(names, translations, strict=True)
    }
    numbers = network_numbers(translator, maps, arguments.workdir)
    check(numbers)
    draw(translator, maps, arguments.folder)
    text = json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
    (arguments.folder / "attention.json").write_text(text, encoding="utf-8")
    (arguments.folder / "attention.md").write_text(page(numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
