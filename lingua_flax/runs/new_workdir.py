"""What a workdir holds beside metrics and checkpoints, and workdirs of networks that no run has trained."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lingua_flax.data.known_words import WORDS_NAME, KnownWords
from lingua_flax.data.tokenizer import model_paths, parse_tokenizers
from lingua_flax.host.files import write_atomically
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import CONFIG_NAME, HELD_OUT_NAME, ORIGIN_NAME, as_json, to_toml
from lingua_flax.options.schema import Config
from lingua_flax.runs.checkpoint import METADATA_FORMAT, save_network
from lingua_flax.runs.workdir import Workdir


def run_files(
    config: Config,
    tokenizer_models: Sequence[bytes],
    words: KnownWords | None,
    held_out: Mapping[str, Sequence[str]] | None = None,
    origin: bytes | None = None,
) -> dict[str, bytes]:
    """Returns the files that describe a run, by name, in the order in which they are written, the config last.

    `tokenizer_models` are those of SentencePiece, serialized: one, or one for each side. `words` is None if the workdir
    has them already, `held_out` has the hashes of the pairs that each split holds out of the training pairs, and
    `origin` says where an imported network comes from.
    """
    paths = model_paths(Path(), joint=config.tokenizer.joint)
    files = {path.name: model for path, model in zip(paths, tokenizer_models, strict=True)}
    if words:
        files[WORDS_NAME] = words.tsv
    if held_out:
        files[HELD_OUT_NAME] = json.dumps(held_out).encode()
    if origin:
        files[ORIGIN_NAME] = origin
    return files | {CONFIG_NAME: to_toml(config).encode()}


def new_metadata(config: Config, tokenizer_models: Sequence[bytes], several_sentences: float = 0.0) -> dict[str, Any]:
    """Returns metadata of a network from elsewhere, trained on lines of which a share had several sentences."""
    return {
        "format": METADATA_FORMAT,
        "version": VERSION,
        "best_step": None,
        "data_digests": {"corpus": "", "tokenizer": parse_tokenizers(tokenizer_models).digest},
        "several_sentences": several_sentences,
        "config": as_json(config),
    }


def write_network(
    folder: Path, files: Mapping[str, bytes], params: Any, metadata: dict[str, Any], step: int = 0
) -> None:
    """Makes the folder a workdir with the files of a run, by name, and parameters (numpy, all of one type) alone.

    It can translate and be trained further with --init-from. Raises UserError if the folder cannot be written.
    """
    Workdir(folder).check_creatable()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    save_network(Workdir(folder).checkpoints, step, params, metadata)
