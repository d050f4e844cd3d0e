"""What a program compiled for a GPU does, read from its text: kernels, bytes, largest arrays.

XLA counts operations and bytes of programs for CPUs and TPUs itself, but not of those for GPUs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple


class GpuProgram(NamedTuple):
    """The figures of a program.

    Attributes:
      kernels: number of kernels that it launches.
      bytes_accessed: bytes that they read from and write to main memory, if every kernel reads its inputs once.
      largest: the arrays that they write, each with its size in bytes, the largest first; without the work space of
        libraries.
    """

    kernels: int
    bytes_accessed: int
    largest: list[tuple[int, str]]


class _Instruction(NamedTuple):
    name: str
    result: str  # its type, such as (f32[], bf16[128,512]{1,0})
    operation: str
    operands: list[str]
    attributes: str

    @property
    def written(self) -> str:
        """The result without the work space of a library's kernel."""
        return _WORK_SPACE.sub("", self.result) if self.operation == "custom-call" else self.result


_Computation = dict[str, _Instruction]
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*?^\}", re.MULTILINE | re.DOTALL)
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\(([^()]*)\)?(.*)$", re.MULTILINE)
_ARRAY = re.compile(r"\b([a-z]+?)(\d*)\[([\d,]*)\]")
_WORK_SPACE = re.compile(r"\bs8\[\d+\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|(?:true|false)_computation)=%([\w.-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_NOT_KERNELS = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "all-reduce-done", "all-gather-done", "async-done", "copy-done"),
}


def read_gpu_program(text: str) -> GpuProgram:
    """Returns the figures of a compiled program, whose text XLA prints as HLO.

    Kernels in a loop count as often as it is run, if XLA knows how often. How many bytes a library's kernel moves is
    assumed to be the size of its operands and results.
    """
    computations = {match[1]: _instructions(match[0]) for match in _COMPUTATION.finditer(text)}
    entry = re.search(r"^ENTRY %(\S+)", text, re.MULTILINE)
    assert entry
    kernels, accessed, largest = 0, 0, []
    for times, instruction, computation in _kernels(computations, entry[1]):
        kernels += times
        accessed += times * _bytes_moved(instruction, computation, computations)
        largest += [(bytes_of(array[0]), array[0]) for array in _ARRAY.finditer(instruction.written)]
    return GpuProgram(kernels, accessed, sorted(largest, reverse=True))


def _instructions(text: str) -> _Computation:
    found = (match.groups() for match in _INSTRUCTION.finditer(text))
    return {
        name: _Instruction(name, result, operation, re.findall(r"%([\w.-]+)", operands), attributes)
        for name, result, operation, operands, attributes in found
    }


def _kernels(
    computations: dict[str, _Computation], name: str, times: int = 1
) -> Iterator[tuple[int, _Instruction, _Computation]]:
    """Yields the kernels that a computation launches, and how often, with the computation that each is part of."""
    for instruction in computations[name].values():
        if instruction.operation in ("while", "conditional", "call", "async-start"):
            trips = _TRIPS.search(instruction.attributes)
            for called in _CALLED.findall(instruction.attributes):
                yield from _kernels(computations, called, times * int(trips[1]) if trips else times)
        elif instruction.operation not in _NOT_KERNELS:
            yield times, instruction, computations[name]


def _bytes_moved(instruction: _Instruction, computation: _Computation, computations: dict[str, _Computation]) -> int:
    """Returns the bytes that a kernel reads and writes."""
    written = bytes_of(instruction.written)
    if instruction.operation == "fusion":
        fused = computations[_CALLED.findall(instruction.attributes)[0]]
        return written + sum(_bytes_read(name, fused) for name in fused if fused[name].operation == "parameter")
    return written + sum(bytes_of(computation[name].result) for name in {*instruction.operands})


def _bytes_read(parameter: str, fused: _Computation) -> int:
    """Returns the bytes that a fused kernel reads of a parameter, of which it may need only slices or some rows."""
    uses = [use for use in fused.values() if parameter in use.operands]
    size = bytes_of(fused[parameter].result)
    if all(use.operation in ("slice", "dynamic-slice", "gather") and use.operands[0] == parameter for use in uses):
        return min(size, sum(bytes_of(use.result) for use in uses))
    return size


def bytes_of(result: str) -> int:
    """Returns the bytes of all arrays in the type of a result, such as (f32[], pred[8], bf16[128,512]{1,0})."""
    return sum(
        max(1, int(bits or 8) // 8) * math.prod(int(size) for size in sizes.split(",") if size)
        for _, bits, sizes in _ARRAY.findall(result)
    )
