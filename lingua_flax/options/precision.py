"""The types in which a network computes. Parameters, softmax and loss are float32 in any case."""

from typing import NamedTuple


class Precision(NamedTuple):
    """The types of activations, and of the operands of products with parameters, whose sums are float32; by name."""

    activations: str
    products: str


FLOAT32 = Precision("float32", "float32")
BFLOAT16 = Precision("bfloat16", "bfloat16")

# For CPUs, which multiply bfloat16 fast, but convert it to float32 for everything else. On a processor with AMX, the
# forward and backward pass of width 192 take 0.68 times as long as in float32, and 1.07 times with activations in
# bfloat16 as well (docs/results/index.md).
BFLOAT16_PRODUCTS = Precision("float32", "bfloat16")
