"""What an exported folder says about its network: config.json, README.md and manifest.json."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lingua_flax.data.tokenizer import model_paths
from lingua_flax.host.files import write_atomically
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import read_origin, read_workdir_config
from lingua_flax.options.export_formats import FORMATS, ExportFormat, check_exportable
from lingua_flax.options.schema import Quantization, SearchOptions
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


@dataclasses.dataclass(frozen=True)
class Export:
    """What `write` and `translate` of a format are given; raises UserError if it cannot represent the network."""

    translator: Translator
    format: ExportFormat
    quantization: Quantization = "float32"  # of the matrices
    beam_size: int = 5  # of the search, where the format prescribes it
    run: Path = Path()  # the workdir

    def __post_init__(self) -> None:
        check_exportable(self.format, self.translator.config)


def filled(name: str, **fields: Any) -> str:
    """Returns the Markdown of texts/NAME.md with these fields and an example."""
    template = (Path(__file__).parent / "texts" / f"{name}.md").read_text(encoding="utf-8").rstrip()
    return template.format(example=EXAMPLE, **fields)


def tokenizer_names(translator: Translator) -> dict[str, str]:
    """Returns the file name of the tokenizer of each side; they are those of a workdir."""
    paths = model_paths(Path(), joint=translator.tokenizer.source is translator.tokenizer.target)
    return {"source": paths[0].name, "target": paths[-1].name}


def describe(translator: Translator) -> dict[str, Any]:
    """Returns everything that is needed to translate with the parameters, as JSON."""
    tokenizer = translator.tokenizer
    return {
        "source_language": translator.languages[0],
        "target_language": translator.languages[1],
        "model": dict(translator.config),
        "vocab_sizes": {"source": tokenizer.source_vocab_size, "target": tokenizer.target_vocab_size},
        "tokenizers": tokenizer_names(translator),
        "source_tags": list(tokenizer.source_tags),
        "decoding": translator.decoding.model_dump(include={*SearchOptions.model_fields}),
        "special_ids": {"pad": PAD_ID, "eos": EOS_ID, "bos": BOS_ID, "unk": UNK_ID},
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object, indented for human readers."""
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def write_description(
    folder: Path, export: Export, usage: str, scores: Mapping[str, Any] | None, lines: Sequence[str]
) -> None:
    """Writes README.md, tokenizers and manifest.json; one of the lines becomes the example of the usage."""
    translator, data, origin = export.translator, read_workdir_config(export.run).data, read_origin(export.run)
    is_for_hub = FORMATS[export.format].is_for_hub
    text = filled(
        "README",
        translator=translator,
        corpora=", ".join(dict.fromkeys([data.name, *(entry.name for entry in data.mixture)])),
        origin="\n| began as | {name}, licence: {license} |".format(**origin) if origin else "",
        usage=_with_example(usage, translator, lines),
        scores=_scores_table(scores),
        version=VERSION,
    )
    license = origin.get("license") or "unknown"
    head = model_card(translator.languages, data.name, scores, license) if is_for_hub else ""
    (folder / "README.md").write_text(f"{head}{text}\n", encoding="utf-8")
    if not is_for_hub:
        for side, file in tokenizer_names(translator).items():
            (folder / file).write_bytes(getattr(translator.tokenizer, side).serialized_model_proto())
    _write_manifest(folder, export)


def _with_example(usage: str, translator: Translator, lines: Sequence[str]) -> str:
    plain = (line for line in lines if not set(line) & set('"\\$`'))  # which are not quoted in code and shells
    if not (example := next(plain, None)):
        return usage
    (translation,) = translator.translate_sentences([example], beam_size=5, warn=False)
    return f"{usage.replace(EXAMPLE, example).rstrip()}\n\nLingua Flax, with 5 beams, translates it: {translation.text}"


def _write_manifest(folder: Path, export: Export) -> None:
    """Writes manifest.json, and the files that it lists to the disk, so that the folder can be given its name."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            files[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
    record = {
        "format": export.format,
        "format_version": FORMAT_VERSION,
        "quantization": export.quantization,
        "checkpoint_step": export.translator.step,
        "made_with": {"lingua_flax": VERSION, **{name: version(name) for name in MADE_WITH if find_spec(name)}},
        "files": files,
    }
    write_json(folder / "manifest.json", record)


def model_card(
    languages: Sequence[str], corpus: str, scores: Mapping[str, Any] | None, license: str = "unknown"
) -> str:
    """Returns the metadata at the head of a README.md, YAML, from which the hub makes its page of the model."""
    index = ""
    if scores:
        metric = {"type": "bleu", "value": round(scores["bleu"], 2), "name": f"sacreBLEU {scores['bleu_signature']}"}
        dataset = {"type": corpus, "name": corpus}
        result = {"task": {"type": "translation"}, "dataset": dataset, "metrics": [metric]}
        models = [{"name": "-".join(languages), "results": [result]}]
        index = f"model-index: {json.dumps(models, ensure_ascii=False)}\n"
    fields = {"languages": json.dumps(languages), "license": json.dumps(license), "index": index}  # JSON is YAML, too
    return filled("model_card", **fields) + "\n\n"


def _scores_table(scores: Mapping[str, Any] | None) -> str:
    if not scores:
        return "None were given (lingua-flax export --scores)."
    signatures = {name: scores.get(f"{name}_signature", "").replace("|", r"\|") for name in LABELS}  # has bars itself
    rows = (f"| {LABELS[name]} | {scores[name]:.2f} | {signatures[name]} |" for name in LABELS if name in scores)
    searched = f"beam size {scores['beam_size']}" if "beam_size" in scores else "sampled"
    return filled("scores", **scores, searched=searched, rows="\n".join(rows))
