"""Trained networks, and loading them from workdirs with the checks that their files belong together."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import jax
from flax import nnx
from jax.sharding import Mesh

from lingua_flax.data.batch import Batch, length_batches, unpacked_batch
from lingua_flax.data.known_words import KnownWords
from lingua_flax.data.tokenizer import Tokenizer, language_tag, load_tokenizer, model_paths
from lingua_flax.devices.mesh import make_mesh, round_up_to_row_shards
from lingua_flax.devices.platform import available_devices, compute_precision, pads_to_longest
from lingua_flax.devices.sharding import put_on_devices, replicated, row_sharding
from lingua_flax.host.errors import UserError
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import CONFIG_NAME, read_workdir_config, refused_changes
from lingua_flax.options.schema import ComputeConfig, DecodingOptions, MeshConfig, ModelConfig, run_folder
from lingua_flax.runs.checkpoint import check_format, load_params
from lingua_flax.runs.workdir import Workdir
from lingua_flax.translation.decoding import Network
from lingua_flax.translation.sentences import MAX_SEVERAL_SENTENCES

BATCH_SIZE_ON_CPU, BATCH_SIZE = 64, 512
SCORING_BATCH_SIZE = 64  # sentence pairs, whose logits must all fit into memory
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, repr=False)
class TrainedNetwork:
    """A trained network with its tokenizer, or an ensemble, which averages the probabilities of its networks."""

    graphdef: nnx.GraphDef
    params: Any
    tokenizer: Tokenizer
    config: ModelConfig
    step: int = 0  # of the checkpoint; of averaged checkpoints, the newest
    mesh: Mesh = dataclasses.field(default_factory=lambda: make_mesh(MeshConfig()))  # over which batches are sharded
    pads_to_longest: bool = False  # as devices.padding says
    languages: tuple[str, str] = ("", "")  # the codes of source and target
    # The defaults of `Translator.translate`.
    decoding: DecodingOptions = dataclasses.field(default_factory=DecodingOptions)
    one_sentence_per_line: bool = False
    translate_unknown: bool = False
    others: tuple[TrainedNetwork, ...] = ()  # of an ensemble

    @classmethod
    def load(
        cls,
        workdir: str | Path,
        checkpoint: str = "best",
        devices: ComputeConfig | None = None,
        target_language: str | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> Self:
        """Loads the tokenizer of a run and the parameters of a checkpoint.

        Args:
          workdir: folder of the run, or of a build for its student.
          checkpoint: best, last, the number of a step, or average:N for the mean of the newest N checkpoints.
          devices: platform, precision and padding to use, by default those of the run's config.
          target_language: for a model trained with data.tag_target; by default data.target_language.
          ensemble: workdirs of further runs with the same tokenizer; the same `checkpoint` is loaded from each.

        Raises:
          UserError: a workdir, its tokenizer or the checkpoint is missing or damaged; the model cannot translate into
            `target_language`; the tokenizers or the languages of an ensemble differ; or no device of the requested
            platform exists.
        """
        workdirs = [run_folder(Path(path)) for path in (workdir, *ensemble)]
        config = read_workdir_config(workdirs[0])
        devices = devices or config.devices.compute
        mesh = make_mesh(MeshConfig(), available_devices(devices.platform))
        platform = mesh.devices.flat[0].platform
        if config.devices.platform not in ("auto", platform):
            log.info("%s: trained on %s, computing on %s", workdir, config.devices.platform, platform)
        first, *others = networks = [_load_one(path, checkpoint, devices, mesh, target_language) for path in workdirs]
        _check_ensemble(workdirs, networks)
        return cls(**(vars(first) | {"others": tuple(others)}))

    @property
    def members(self) -> tuple[TrainedNetwork, ...]:
        """All networks of the ensemble, this one first."""
        return (self, *self.others)

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a sentence, on either side, that every network of the ensemble accepts."""
        return min(member.config.max_length for member in self.members)

    @property
    def steps(self) -> list[int]:
        """The step of the checkpoint of each network."""
        return [member.step for member in self.members]

    @property
    def networks(self) -> list[Network]:
        """All networks of the ensemble, as arguments of compiled programs."""
        return [Network(member.graphdef, member.params) for member in self.members]

    @property
    def batch_size(self) -> int:
        """The number of sentences that are searched together, large enough to keep the kind of device busy."""
        return BATCH_SIZE_ON_CPU if self.mesh.devices.flat[0].platform == "cpu" else BATCH_SIZE

    @property
    def num_parameters(self) -> int:
        """The number of parameters of all networks of the ensemble together."""
        return sum(leaf.size for network in self.networks for leaf in jax.tree.leaves(network.params))

    def pair_batches(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], rows: int
    ) -> Iterator[tuple[list[int], Batch]]:
        """Yields batches of pairs of token ids on the devices: (the pairs' indices, the batch).

        A batch has `rows` rows, rounded up to a multiple of the number of row shards, of which some may be padding.
        """
        sharded_rows = round_up_to_row_shards(self.mesh, rows)
        lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
        for group, length in length_batches(lengths, rows, self.max_length, same_length=self.pads_to_longest):
            sides = [sources[i] for i in group], [targets[i] for i in group]
            yield group, put_on_devices(unpacked_batch(*sides, sharded_rows, length), row_sharding(self.mesh))


def _check_ensemble(workdirs: Sequence[Path], networks: Sequence[TrainedNetwork]) -> None:
    workdir, tokenizer = workdirs[0], networks[0].tokenizer
    source, target = read_workdir_config(workdir).data.directions[0]
    for path, network in zip(workdirs, networks, strict=True):
        if network.tokenizer.digest != tokenizer.digest:
            raise UserError(
                f"{path}: its tokenizer differs from that of {workdir}; all runs of an ensemble must share one "
                "tokenizer (tokenizer.model_file)"
            )
        if network.tokenizer.source_tags != tokenizer.source_tags:
            raise UserError(f"{path}: its source tag differs from that of {workdir}; see data.tag_target")
        # Two runs in opposite directions may have the same tokenizer.
        directions = read_workdir_config(path).data.directions
        if not tokenizer.source_tags and (source, target) not in directions:
            own_source, own_target = directions[0]
            raise UserError(
                f"{path}: it translates from {own_source} to {own_target}, but {workdir} from {source} to {target}; "
                "all runs of an ensemble must translate in the same direction"
            )


def _load_one(
    workdir: Path, checkpoint: str, devices: ComputeConfig, mesh: Mesh, target_language: str | None
) -> TrainedNetwork:
    config = read_workdir_config(workdir)
    tokenizer = load_tokenizer(model_paths(workdir, joint=config.tokenizer.joint))
    language = config.data.target_language
    if config.data.tag_target:
        tokenizer = tokenizer.with_source_tag(language_tag(target_language or language))
    elif target_language:
        raise UserError(
            f"the run was trained without target-language tags (data.tag_target), so {target_language} cannot be "
            f"selected: it translates into {language}"
        )
    sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    network = structure(config.model, *sizes, compute_precision(devices.precision, mesh))

    def check(metadata: dict[str, Any]) -> None:
        check_format(metadata, workdir)
        step = metadata["step"]
        if metadata["data_digests"]["tokenizer"] != tokenizer.digest:
            raise UserError(f"{workdir}: its tokenizer is not the one that checkpoint {step} was trained with")
        if changed := refused_changes(metadata["config"], config, f"in checkpoint {step}", "model."):
            raise UserError(f"{workdir}: its {CONFIG_NAME} differs from its checkpoints: {'; '.join(changed)}")

    step, params, metadata = load_params(Workdir(workdir).checkpoints, checkpoint, network.params, check)
    return TrainedNetwork(
        network.graphdef,
        put_on_devices(params, replicated(mesh)),
        dataclasses.replace(tokenizer, words=KnownWords.load(workdir)),
        config.model,
        step,
        mesh,
        pads_to_longest(devices.padding, mesh),
        languages=config.data.direction_into(target_language or language),
        decoding=config.decoding,
        one_sentence_per_line=metadata["several_sentences"] > MAX_SEVERAL_SENTENCES,
    )
