"""Loading the networks of a translator from workdirs, with the checks that their files belong together."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flax import nnx
from jax.sharding import Mesh

from lingua_flax.data.tokenizer import Tokenizer, language_tag, load_tokenizer, model_paths
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.platform import available_devices, compute_precision, pads_to_longest
from lingua_flax.devices.sharding import put_on_devices, replicated
from lingua_flax.host.errors import UserError
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import CONFIG_NAME, read_workdir_config, refused_changes
from lingua_flax.options.schema import ComputeConfig, Config, MeshConfig, ModelConfig
from lingua_flax.runs.checkpoint import check_format, load_params
from lingua_flax.runs.workdir import Workdir
from lingua_flax.translation.sentences import MAX_SEVERAL_SENTENCES

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainedNetwork:
    """A trained network with its tokenizer; the attributes are described in `Translator`."""

    graphdef: nnx.GraphDef
    params: Any
    tokenizer: Tokenizer
    config: ModelConfig
    step: int = 0
    mesh: Mesh = dataclasses.field(default_factory=lambda: make_mesh(MeshConfig()))
    pads_to_longest: bool = False
    languages: tuple[str, str] = ("", "")
    one_sentence_per_line: bool = False
    translate_unknown: bool = False


def load_networks(
    workdirs: Sequence[Path], checkpoint: str, devices: ComputeConfig | None, target_language: str | None
) -> list[TrainedNetwork]:
    """Loads the network of a run, or the networks of an ensemble, as described in `Translator.load`."""
    workdir = workdirs[0]
    config = read_workdir_config(workdir)
    devices = devices or config.devices.compute
    mesh = make_mesh(MeshConfig(), available_devices(devices.platform))
    platform = mesh.devices.flat[0].platform
    if config.devices.platform not in ("auto", platform):
        log.info("%s: trained on %s, computing on %s", workdir, config.devices.platform, platform)
    networks = [_load_one(path, checkpoint, devices, mesh, target_language) for path in workdirs]
    tokenizer = networks[0].tokenizer
    for path, network in zip(workdirs, networks, strict=True):
        if network.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"{path}: its tokenizer differs from that of {workdir}; all runs of an ensemble must share one "
                "tokenizer (tokenizer.model_file)"
            )
        if network.tokenizer.source_tags != tokenizer.source_tags:
            raise UserError(f"{path}: its source tag differs from that of {workdir}; see data.tag_target")
        if not tokenizer.source_tags:
            _check_direction(path, workdir, config.data.directions[0])
    return networks


def _load_one(
    workdir: Path, checkpoint: str, devices: ComputeConfig, mesh: Mesh, target_language: str | None
) -> TrainedNetwork:
    config = read_workdir_config(workdir)
    tokenizer = load_tokenizer(model_paths(workdir, joint=config.tokenizer.joint))
    tokenizer = _with_target_tag(tokenizer, config, target_language)
    sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    network = structure(config.model, *sizes, compute_precision(devices.precision, mesh))
    share = 0.0

    def check(metadata: dict[str, Any]) -> None:
        nonlocal share
        check_format(metadata, workdir)
        share = metadata["several_sentences"]
        step = metadata["step"]
        if metadata["fingerprints"]["tokenizer"] != tokenizer.fingerprint:
            raise UserError(f"{workdir}: its tokenizer is not the one that checkpoint {step} was trained with")
        if changed := refused_changes(metadata["config"], config, f"in checkpoint {step}", "model."):
            raise UserError(f"{workdir}: its {CONFIG_NAME} differs from its checkpoints: {'; '.join(changed)}")

    step, params, _ = load_params(Workdir(workdir).checkpoints, checkpoint, network.params, check)
    placed = put_on_devices(params, replicated(mesh))
    to_longest = pads_to_longest(devices.padding, mesh)
    source, target = config.data.directions[0]
    return TrainedNetwork(
        network.graphdef,
        placed,
        tokenizer,
        config.model,
        step,
        mesh,
        to_longest,
        languages=(source, target_language or target),
        one_sentence_per_line=share > MAX_SEVERAL_SENTENCES,
    )


def _check_direction(path: Path, first: Path, wanted: tuple[str, str]) -> None:
    """Raises UserError if the run in `path` has not learned to translate in the direction of the run in `first`.

    Two runs in opposite directions may have the same tokenizer.
    """
    directions = read_workdir_config(path).data.directions
    if wanted not in directions:
        (source, target), (first_source, first_target) = directions[0], wanted
        raise UserError(
            f"{path}: it translates from {source} to {target}, but {first} from {first_source} to {first_target}; all "
            "runs of an ensemble must translate in the same direction"
        )


def _with_target_tag(tokenizer: Tokenizer, config: Config, target_language: str | None) -> Tokenizer:
    """Returns the tokenizer with the tag of the target language, if the model was trained with such tags.

    Raises UserError if `target_language` is given, but the model was trained without tags or has no tag for it.
    """
    if config.data.tag_target:
        return tokenizer.with_source_tag(language_tag(target_language or config.data.target_language))
    if target_language:
        raise UserError(
            f"the run was trained without target-language tags (data.tag_target), so {target_language} cannot be "
            f"selected: it translates into {config.data.target_language}"
        )
    return tokenizer
