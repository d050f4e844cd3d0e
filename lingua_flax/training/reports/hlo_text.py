"""What a compiled program does, read from its text: kernels and bytes.

XLA's own cost analysis does not count the bytes of programs for GPUs, counts loops once, and of programs for TPUs also
counts what they read from and write to the vector memory on the chip: 69.4 GB for a step of the base model on a v5e,
of which 29.6 GB are in main memory (commit 3fa71a8).
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple


class _Instruction(NamedTuple):
    result: str  # its type, such as (f32[], bf16[128,512]{1,0})
    operation: str
    arguments: str  # its operands, or the value of a constant
    attributes: str

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.-]+)", self.arguments)

    @property
    def written(self) -> str:
        """The result without the work space of a library's kernel."""
        return _WORK_SPACE.sub("", self.result) if self.operation == "custom-call" else self.result


_Computation = dict[str, _Instruction]
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*?^\}", re.MULTILINE | re.DOTALL)
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\(([^()]*)\)?(.*)$", re.MULTILINE)
# S(n) marks an array in another memory than the main one.
_ARRAY = re.compile(r"\b[a-z]+?(?P<bits>\d*)\[(?P<sizes>[\d,]*)\](?:\{[^}]*?(?P<space>S\(\d\))?\})?")
_WORK_SPACE = re.compile(r"\bs8\[\d+\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|(?:true|false)_computation)=%([\w.-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%([\w.-]+)")
# A Pallas kernel, which may read arrays again, has its own estimate.
_ESTIMATE = re.compile(r'"cost_estimate":\{.*?"bytes_accessed":"(\d+)"')
_NOT_KERNELS = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "all-reduce-done", "all-gather-done", "async-done", "copy-done", "slice-start"),
}


def read_program(text: str) -> tuple[int, int]:
    """Returns how many kernels a compiled program launches, and the bytes that they read from and write to main memory.

    The text is HLO as XLA prints it. Kernels in a loop count as often as it is run, or once if that is not known. How
    many bytes a library's kernel moves is assumed to be the size of its operands and results.
    """
    computations = {match[1]: _instructions(match[0]) for match in _COMPUTATION.finditer(text)}
    entry = re.search(r"^ENTRY %(\S+)", text, re.MULTILINE)
    assert entry
    kernels, accessed = 0, 0
    for times, instruction, computation in _kernels(computations, entry[1]):
        kernels += times
        accessed += times * _bytes_moved(instruction, computation, computations)
    return kernels, accessed


def _instructions(text: str) -> _Computation:
    return {match[1]: _Instruction(*match.groups()[1:]) for match in _INSTRUCTION.finditer(text)}


def _kernels(
    computations: dict[str, _Computation], name: str, times: int = 1
) -> Iterator[tuple[int, _Instruction, _Computation]]:
    """Yields the kernels that a computation launches, and how often, with the computation that each is part of."""
    for instruction in computations[name].values():
        if instruction.operation in ("while", "conditional", "call", "async-start"):
            trips = _trips(instruction, computations) if instruction.operation == "while" else 1
            for called in _CALLED.findall(instruction.attributes):
                yield from _kernels(computations, called, times * trips)
        elif instruction.operation not in _NOT_KERNELS:
            yield times, instruction, computations[name]


def _trips(loop: _Instruction, computations: dict[str, _Computation]) -> int:
    """Returns how often a loop is run, by XLA's account or by its condition, which compares a counter with a number."""
    if known := _TRIPS.search(loop.attributes):
        return int(known[1])
    condition = _CONDITION.search(loop.attributes)
    assert condition
    values = computations[condition[1]].values()
    limits = [int(value.arguments) for value in values if value.operation == "constant" and value.result[:5] == "s32[]"]
    return limits[0] if len(limits) == 1 else 1


def _bytes_moved(instruction: _Instruction, computation: _Computation, computations: dict[str, _Computation]) -> int:
    written, attributes = _in_main_memory(instruction.written), instruction.attributes
    if instruction.operation == "fusion":
        fused = computations[_CALLED.findall(attributes)[0]]
        return written + sum(_bytes_read(name, fused) for name in fused if fused[name].operation == "parameter")
    if instruction.operation == "copy-start":  # its result is a tuple of both sides
        return written
    if instruction.operation == "slice-done":  # its operand is all of the array
        return written + bytes_of(instruction.result)
    operands = [computation[name].result for name in {*instruction.operands}]
    again = 0
    if estimate := _ESTIMATE.search(attributes):
        again = max(0, int(estimate[1]) - sum(map(bytes_of, [instruction.written, *operands])))
    return written + sum(map(_in_main_memory, operands)) + again


def _bytes_read(parameter: str, fused: _Computation) -> int:
    """Returns the bytes that a fused kernel reads of a parameter, of which it may need only slices or some rows."""
    uses = [use for use in fused.values() if parameter in use.operands]
    size = _in_main_memory(fused[parameter].result)
    if all(use.operation in ("slice", "dynamic-slice", "gather") and use.operands[0] == parameter for use in uses):
        return min(size, sum(bytes_of(use.result) for use in uses))
    return size


def bytes_of(result: str) -> int:
    """Returns the bytes of all arrays in the type of a result, such as (f32[], pred[8], bf16[128,512]{1,0})."""
    return sum(map(_size, _ARRAY.finditer(result)))


def _in_main_memory(result: str) -> int:
    return sum(_size(array) for array in _ARRAY.finditer(result) if not array["space"])


def _size(array: re.Match[str]) -> int:
    sizes = array["sizes"].split(",")
    return max(1, int(array["bits"] or 8) // 8) * math.prod(int(size) for size in sizes if size)
