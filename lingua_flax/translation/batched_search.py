"""Searching many sentences at once: in batches of similar length, of which several run at a time on a CPU."""

from collections.abc import Callable, Sequence

from lingua_flax.data.batch import length_batches
from lingua_flax.data.placeholders import Protected
from lingua_flax.devices.compilation import compile_concurrently
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation import decoding
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.loading import BATCH_SIZE_ON_CPU, TrainedNetwork
from lingua_flax.translation.parallel import map_concurrently, num_concurrent_programs
from lingua_flax.translation.requests import Part
from lingua_flax.translation.running_batch import RunningBatch

# A few sentences are padded to one of these batch sizes instead of a full batch, which is faster to run and to compile.
SMALL_BATCH_SIZES = (1, 4, 16)
# Maximum number of elements of a batch's keys and values, 4 GB in bfloat16; beyond it, fewer sentences are decoded
# together. The base model just exceeds it with 512 sentences of 64 tokens and 5 beams, for which the compiler for a TPU
# v5e reports 9.7 GB of temporaries (docs/results/index.md).
MAX_CACHE_ELEMENTS = 2**31


def search_parts(
    network: TrainedNetwork,
    parts: Sequence[Part],
    options: DecodingOptions,
    after_batch: Callable[[int], None] = lambda lines: None,
) -> list[tuple[Hypothesis, ...]]:
    """Returns the hypotheses of each part, best first, as many as its `num_hypotheses`.

    `after_batch` is called after each batch with the number of lines whose first part was in it, and may raise to stop.
    Raises RunError if the network computes NaN or infinity.
    """
    rows, batches = _batches(network, parts, options)
    tail_length = _tail_length(network, batches)

    def search(batch: tuple[list[int], int]) -> list[tuple[Hypothesis, ...]]:
        group, length = batch
        own = [parts[i] for i in group]
        return RunningBatch(network, options, own, rows, length, tail_length=tail_length).finish()

    found: dict[int, tuple[Hypothesis, ...]] = {}
    num_threads = min(len(batches), num_concurrent_programs(network.mesh))  # a thread takes 1 ms to start
    for (group, _), hypotheses in map_concurrently(search, batches, num_threads):
        found.update(zip(group, hypotheses, strict=True))
        after_batch(sum(parts[i].part == 0 for i in group))
    return [found[i] for i in range(len(parts))]


def compile_search(network: TrainedNetwork, parts: Sequence[Part], options: DecodingOptions) -> None:
    """Compiles the programs that begin the search of these parts, concurrently; does not run them."""
    rows, batches = _batches(network, parts, options)
    tail_length = _tail_length(network, batches)
    lengths = sorted({length for _, length in batches})
    nothing = [Part(Protected(""), [])]
    compile_concurrently(
        *(RunningBatch(network, options, nothing, rows, length, tail_length=tail_length).compile for length in lengths)
    )


def default_batch_size(network: TrainedNetwork, longest: int, width: int) -> int:
    """Returns how many sentences of at most `longest` tokens are searched together; `width` is K of the search."""
    rows = network.batch_size
    positions = min(decoding.default_max_length(longest), network.max_length)
    sizes = (member.config for member in network.members)
    per_position = 2 * sum(config.num_decoder_layers * config.embed_dim for config in sizes)
    while rows > BATCH_SIZE_ON_CPU and rows * width * positions * per_position > MAX_CACHE_ELEMENTS:
        rows //= 2
    return rows


def _batches(
    network: TrainedNetwork, parts: Sequence[Part], options: DecodingOptions
) -> tuple[int, list[tuple[list[int], int]]]:
    """Returns the batch size, one of SMALL_BATCH_SIZES if that is enough, and the batches.

    A batch is the indices of its parts and their padded length.
    """
    lengths = [len(part.source) for part in parts]
    width = max((part.num_hypotheses for part in parts), default=1) if options.temperature else options.beam_size
    full = options.batch_size or default_batch_size(network, max(lengths, default=1), width)
    rows = min([size for size in SMALL_BATCH_SIZES if len(parts) <= size < full], default=full)
    return rows, list(length_batches(lengths, rows, network.max_length, same_length=network.pads_to_longest))


def _tail_length(network: TrainedNetwork, batches: Sequence[tuple[list[int], int]]) -> int | None:
    """Returns the length of the smaller batches in which the last sentences of batches continue, if they do."""
    return None if network.pads_to_longest else max((length for _, length in batches), default=None)
