"""Limits of machines that predictions are made for: declared data, from the vendors' data sheets.

A prediction takes for each kernel the longer of two times: its bytes at the bandwidth, its flops at
the rate of its arithmetic. No kernel can be faster; real ones are slower. It is a bound (the
roofline) and no promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLAIN = "f32"  # the arithmetic of what is neither a product with weights nor attention
TENSOR = "bf16"  # that of products with any weights that are not wider
INTEGERS = ("int16", "int8")  # what products of rounded activations may be of, on CPUs


@dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        name: as `--machine` takes it.
        bytes_per_second: bandwidth of its memory.
        flops_per_second: dense rate by the type of the operands: `f32` and `bf16` at least; `f8`,
            `int8` and `int16` where it has such products.
        memory_bytes: its memory; None if unknown.
        title: its full name.
        source: where the numbers are from.
    """

    name: str
    bytes_per_second: float
    flops_per_second: Mapping[str, float]
    memory_bytes: int | None = None
    title: str = ""
    source: str = ""

    def rate(self, arithmetic: str) -> float:
        """Flops a second of products with weights or cache entries of a type, stored or rounded to.

        Eight-bit floats have a rate of their own on machines that multiply them; f16 and other
        block formats are multiplied as bf16.
        """
        kind = arithmetic.partition("_")[0]
        return self.flops_per_second.get(kind, self.flops_per_second[TENSOR])


def uniform(
    name: str, bytes_per_second: float, flops_per_second: float,
    integers: Mapping[str, float] | None = None,
) -> Machine:  # fmt: skip
    """A machine with one rate for all types but `integers`."""
    floats = {PLAIN: flops_per_second, TENSOR: flops_per_second}
    return Machine(name, bytes_per_second, floats | dict(integers or {}))


def _gpu(
    name: str, title: str, terabytes: float, gigabytes: int, teraflops: Mapping[str, float],
    source: str,
) -> Machine:  # fmt: skip
    rates = {kind: rate * 1e12 for kind, rate in teraflops.items()}
    return Machine(name, terabytes * 1e12, rates, gigabytes * 10**9, title, source)


# GB are those of the data sheets, taken as 10^9; rates are dense (sheets often print sparse ones).
MACHINES = {
    m.name: m
    for m in (
        uniform("cpu2", 40e9, 400e9),  # a plain two-core server core pair
        _gpu("a100", "NVIDIA A100 SXM 80 GB", 2.039, 80, {"f32": 19.5, "bf16": 312},
             "NVIDIA A100 data sheet"),
        _gpu("h100", "NVIDIA H100 SXM", 3.35, 80, {"f32": 67, "bf16": 989, "f8": 1979},
             "NVIDIA H100 data sheet"),
        _gpu("h200", "NVIDIA H200 SXM", 4.8, 141, {"f32": 67, "bf16": 989, "f8": 1979},
             "NVIDIA H200 data sheet"),
        _gpu("b200", "NVIDIA B200 (DGX B200, each of 8)", 8.0, 180,
             {"f32": 75, "bf16": 2250, "f8": 4500}, "NVIDIA DGX B200 and HGX data sheets"),
        _gpu("rtx4090", "NVIDIA GeForce RTX 4090", 1.008, 24,
             {"f32": 82.6, "bf16": 165.2, "f8": 330.3},
             "NVIDIA Ada architecture white paper, float32 accumulation"),
    )
}  # fmt: skip
