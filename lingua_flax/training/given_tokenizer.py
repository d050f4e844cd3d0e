"""The tokenizer that a run need not train: that of its workdir, that of its config, or that of another run."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lingua_flax.data.tokenizer import load_tokenizer, model_paths, tokenizer_options
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import CONFIG_NAME, read_workdir_config
from lingua_flax.options.schema import Config, TokenizerConfig

log = logging.getLogger(__name__)


def given_tokenizer(config: Config, workdir: Path | None) -> Sequence[Path]:
    """Returns the files of the existing tokenizer: in the workdir, tokenizer.model_file, or in training.init_from.

    That in a workdir without a config, which is written after it, may be that of another run, which was killed. Raises
    UserError if the files are none, or do not agree with the config.
    """
    given, in_workdir = config.tokenizer.model_file, model_paths(workdir or Path(), joint=config.tokenizer.joint)
    if workdir and all(path.exists() for path in [*in_workdir, workdir / CONFIG_NAME]):
        if given and given.exists() and load_tokenizer([given]).digest != load_tokenizer(in_workdir).digest:
            raise UserError(
                f"tokenizer.model_file {given} is not the tokenizer that {workdir} was made with (the content "
                f"differs); set it to {workdir}/tokenizer.model, or choose another --workdir"
            )
        return in_workdir
    if given:
        return _checked([given], config.tokenizer)
    if origin := config.training.init_from:
        return _checked(model_paths(origin, joint=read_workdir_config(origin).tokenizer.joint), config.tokenizer)
    return []


def _checked(paths: list[Path], wanted: TokenizerConfig) -> list[Path]:
    """Returns the paths; warns of options that this tokenizer was not trained with, and raises UserError for some."""
    theirs = tokenizer_options(load_tokenizer(paths))
    unused = [name for name, value in theirs.items() if value != getattr(wanted, name)]
    for name in unused:
        if name in ("joint", "shared_ids", "lowercase") or (name == "placeholders" and wanted.placeholders):
            raise UserError(f"{paths[0]}: tokenizer.{name} must be {theirs[name]} with it, not {getattr(wanted, name)}")
    if unused:
        log.warning("the tokenizer is %s, so this run's tokenizer.%s has no effect", paths[0], ", ".join(unused))
    return paths
