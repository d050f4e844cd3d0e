"""Trains, evaluates and exports to every format with each umask; arguments: the config, a folder, and the umasks."""

import os
import sys
import tomllib
from pathlib import Path

import lingua_flax
from lingua_flax.commands.export import export

config = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
config["training"] |= {"num_steps": 2, "eval_every": 2}
for umask in sys.argv[3:]:
    os.umask(int(umask, 8))
    folder = Path(sys.argv[2], umask)
    folder.mkdir()
    lingua_flax.train(config, folder / "w")
    lingua_flax.evaluate(folder / "w", beam_size=1, output=folder / "hyps.txt.gz", json=folder / "scores.json")
    for name in ("ctranslate2", "safetensors", "transformers", "html"):
        export(["--workdir", str(folder / "w"), "--format", name, "--output", str(folder / name)])
