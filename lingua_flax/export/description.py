"""What an exported folder says about its network: config.json, README.md and manifest.json."""

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from lingua_flax.data.tokenizer import model_paths
from lingua_flax.host.files import write_atomically
from lingua_flax.host.version import VERSION
from lingua_flax.options.schema import DataConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.translator import Translator

EXAMPLE = "Two dogs are playing in the snow."  # in README.md, where there are no lines of the run's own corpus
# Added to the logits of padding, start and unknown, so that they are never predicted; large enough that exp of it is 0,
# and within the range of float16.
NEVER = -1e4
FORMAT_VERSION = 1  # of the manifest and of what the loaders read
MADE_WITH = ("jax", "ctranslate2", "safetensors", "sentencepiece", "transformers")  # whose versions are recorded
LABELS = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lower case", "chrf": "chrF", "ter": "TER"}
LABELS["published_bleu"] = "BLEU, published protocol"


def filled(name: str, **fields: Any) -> str:
    """Returns the Markdown of texts/NAME.md with these fields and an example."""
    template = (Path(__file__).parent / "texts" / f"{name}.md").read_text(encoding="utf-8").rstrip()
    return template.format(example=EXAMPLE, **fields)


def tokenizer_names(translator: Translator) -> dict[str, str]:
    """Returns the file name of the tokenizer of each side; they are those of a workdir."""
    paths = model_paths(Path(), joint=translator.tokenizer.source is translator.tokenizer.target)
    return {"source": paths[0].name, "target": paths[-1].name}


def write_tokenizers(translator: Translator, folder: Path) -> None:
    """Writes the SentencePiece model of each side."""
    for side, name in tokenizer_names(translator).items():
        (folder / name).write_bytes(getattr(translator.tokenizer, side).serialized_model_proto())


def describe(translator: Translator, data: DataConfig) -> dict[str, Any]:
    """Returns everything that is needed to translate with the parameters, as JSON."""
    tokenizer = translator.tokenizer
    return {
        "source_language": data.source_language,
        "target_language": data.target_language,
        "model": translator.config.model_dump(),
        "vocab_sizes": {"source": tokenizer.source_vocab_size, "target": tokenizer.target_vocab_size},
        "tokenizers": tokenizer_names(translator),
        "source_tags": list(tokenizer.source_tags),
        "special_ids": {"pad": PAD_ID, "eos": EOS_ID, "bos": BOS_ID, "unk": UNK_ID},
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object, indented for human readers."""
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def write_manifest(folder: Path, export_format: str, quantization: str, step: int) -> None:
    """Writes manifest.json, and the files that it lists to the disk, so that the folder can be given its name."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            files[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
    record = {
        "format": export_format,
        "format_version": FORMAT_VERSION,
        "quantization": quantization,
        "checkpoint_step": step,
        "made_with": {"lingua_flax": VERSION, **{name: version(name) for name in MADE_WITH if find_spec(name)}},
        "files": files,
    }
    write_json(folder / "manifest.json", record)


def write_readme(
    folder: Path, translator: Translator, data: DataConfig, usage: str, scores: Mapping[str, Any] | None, head: str = ""
) -> None:
    """Writes README.md: `head`, what the network is, how to use it (Markdown), and scores of lingua-flax evaluate."""
    corpora = ", ".join(dict.fromkeys([data.name, *(entry.name for entry in data.mixture)]))
    fields = {"data": data, "corpora": corpora, "usage": usage, "scores": _scores_table(scores), "version": VERSION}
    size = sum(leaf.size for leaf in jax.tree.leaves(translator.params))
    text = filled("README", **fields, config=translator.config, size=size, step=translator.step)
    (folder / "README.md").write_text(f"{head}{text}\n", encoding="utf-8")


def model_card(data: DataConfig, scores: Mapping[str, Any] | None) -> str:
    """Returns the metadata at the head of a README.md, YAML, from which the hub makes its page of the model."""
    languages = [data.source_language, data.target_language]
    index = ""
    if scores:
        corpus = {"type": data.name, "name": data.name}
        metric = {"type": "bleu", "value": round(scores["bleu"], 2), "name": f"sacreBLEU {scores['bleu_signature']}"}
        result = {"task": {"type": "translation"}, "dataset": corpus, "metrics": [metric]}
        models = [{"name": "-".join(languages), "results": [result]}]
        index = f"model-index: {json.dumps(models, ensure_ascii=False)}\n"
    return filled("model_card", languages=json.dumps(languages), index=index) + "\n\n"  # JSON is YAML, too


def _scores_table(scores: Mapping[str, Any] | None) -> str:
    if not scores:
        return "None were given (lingua-flax export --scores)."
    searched = f"beam size {scores['beam_size']}" if "beam_size" in scores else "sampled"
    rows = [
        f"On {scores['sentences']:,} sentences, {searched}, checkpoint of step {scores['checkpoint_step']:,}:\n",
        "| | | signature |",
        "|---|---|---|",
    ]
    for name, label in LABELS.items():
        if name in scores:
            signature = scores.get(f"{name}_signature", "").replace("|", r"\|")  # bars separate its parts
            rows.append(f"| {label} | {scores[name]:.2f} | {signature} |")
    return "\n".join(rows)
