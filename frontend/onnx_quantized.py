"""Weights of com.microsoft.MatMulNBits, taken as blocks of ggml's types without any rounding.

A row of K weights lies in blocks of 32, 64 …, each with a scale and a zero point; a weight is
`(q - zero) * scale`. Symmetric ones are exactly q4_0 (4 bits, zero 8) and q8_0 (8 bits, zero 128),
4-bit ones whose minima `-zero * scale` are 16-bit floats are q4_1. All others are affine blocks
with their zero points (u4_g32 …), as long as 16-bit floats (float16 or bfloat16) hold the scales.
Others are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.onnx_elementwise import binary
from inferc.frontend.onnx_table import MICROSOFT, Node, OnnxEmitter, dtype_of_item, onnx_op
from inferc.frontend.onnx_values import Item
from inferc.frontend.onnx_weights import integers
from inferc.frontend.weights import StoredTensor
from inferc.ir.blocks import block_format
from inferc.ir.blocks_build import affine_rows
from inferc.ir.blocks_checkpoint import GROUPS, SCALE_TYPES, affine_name

_BLOCK = 32  # elements of a block of q4_0, q4_1 and q8_0


@dataclass(frozen=True)
class Quantised:
    """A weight `[N, K]` as MatMulNBits stores it.

    Attributes:
        rows: N.
        columns: K.
        bits: 4 or 8.
        block: Elements that share a scale.
        packed: `[N, K * bits / 8]` bytes; of two nibbles the low one comes first.
        scales: `[N, K / block]`.
        zeros: `[N, K / block]` zero points.
    """

    rows: int
    columns: int
    bits: int
    block: int
    packed: NDArray[np.uint8] = field(repr=False)
    scales: NDArray[np.float32] = field(repr=False)
    zeros: NDArray[np.uint8] = field(repr=False)

    @property
    def symmetric(self) -> bool:
        """Whether all zero points are the middle of the range."""
        return bool((self.zeros == 1 << (self.bits - 1)).all())

    def format(self, name: str) -> str:
        """The block type that holds these weights exactly. Raises CompileError."""
        letter = next((x for x, t in SCALE_TYPES.items() if _holds(t, self.scales)), None)
        if letter is None:
            raise CompileError(
                f"weight {name} has scales that 16-bit floats do not hold, so it would be rounded. "
                "Quantise the model from a float16 model, or compile the unquantised one."
            )
        if letter == "" and self.symmetric:
            return "q8_0" if self.bits == 8 else "q4_0"
        if letter == "" and self.bits == 4 and _holds(SCALE_TYPES[""], self._minima()):
            return "q4_1"
        return affine_name(self.bits, self._group, letter)

    @property
    def _group(self) -> int:
        """Elements of an affine block: the largest that divides those of a scale."""
        return max(g for g in GROUPS if self.block % g == 0)

    def blocks(self, kind: str) -> NDArray[np.uint8]:
        """Raw rows `[N, row_bytes]` of the block type."""
        if kind.startswith("u"):
            letter = next(x for x in SCALE_TYPES if kind == affine_name(self.bits, self._group, x))
            scales = self.scales.astype(SCALE_TYPES[letter])
            return affine_rows(self.packed, scales, self.zeros, self.bits, self._group)
        count, repeat = self.columns // _BLOCK, self.block // _BLOCK
        out = np.empty((self.rows, count, block_format(kind).block_bytes), np.uint8)
        halves = [self.scales] if self.symmetric else [self.scales, self._minima()]
        for i, values in enumerate(halves):
            wide = np.repeat(values.astype(np.float16), repeat, axis=1)
            out[:, :, 2 * i : 2 * i + 2] = wide[..., None].view(np.uint8)
        start = 2 * len(halves)
        if self.bits == 8:
            out[:, :, start:] = self.packed.reshape(self.rows, count, _BLOCK) ^ np.uint8(0x80)
        else:
            low, high = self._halves_of_blocks(count)
            out[:, :, start:] = low | high << np.uint8(4)
        return out.reshape(self.rows, -1)

    def _halves_of_blocks(self, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Elements 0 to 15 and 16 to 31 of each block: ggml keeps one of each in a byte."""
        pairs = self.packed.reshape(self.rows, count, _BLOCK // 2, 1)
        nibbles = np.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1)
        quants = nibbles.reshape(self.rows, count, _BLOCK)
        return quants[..., : _BLOCK // 2], quants[..., _BLOCK // 2 :]

    def _minima(self) -> NDArray[np.float32]:
        return -self.zeros.astype(np.float32) * self.scales


def _holds(dtype: np.dtype[np.generic], values: NDArray[np.float32]) -> bool:
    """Whether a 16-bit type holds all values exactly."""
    with np.errstate(over="ignore"):
        return np.array_equal(values.astype(dtype).astype(np.float32), values)


@onnx_op("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(e: OnnxEmitter, n: Node) -> Item:
    x, packed = e.value(n.input(0)), e.stored(n.input(1), "weight")
    if n.optional(4) is not None:
        raise CompileError("weights whose columns are reordered (g_idx) are not supported.")
    sources = [packed, e.stored(n.input(2), "scales")]
    if n.optional(3) is not None:
        sources.append(e.stored(n.input(3), "zero points"))
        if dtype_of_item(n.input(3)) not in ("u8",):
            raise CompileError("zero points that are no packed integers are not supported.")
    shape = (n.attr("N"), n.attr("K"), n.attr("bits", 4), n.attr("block_size"))
    weight = e.parameter(packed.name, _tensor(shape, sources))
    out: Item = e.emit("linear", x, weight)
    bias = n.optional(5)
    return out if bias is None else binary(e, "add", out, bias)


def _tensor(shape: tuple[int, int, int, int], sources: list[StoredTensor]) -> ComputedTensor:
    """The weight under the type that holds it; its blocks are made when they are read."""
    rows, columns, bits, block = shape
    if bits not in (4, 8) or block % _BLOCK or columns % block:
        raise CompileError(
            f"weights of {bits} bits in blocks of {block} along rows of {columns} are not "
            "supported: expected 4 or 8 bits and blocks that are multiples of 32."
        )
    first = sources[0]
    kind = _loaded(shape, sources).format(first.name)
    _release(sources)
    nbytes = rows * block_format(kind).row_bytes(columns)
    return ComputedTensor.of(
        first.name, kind, (rows, columns), first.file, nbytes,
        lambda: _loaded(shape, sources).blocks(kind), lambda: _release(sources),
    )  # fmt: skip


def _release(sources: list[StoredTensor]) -> None:
    for source in sources:
        source.release()


def _loaded(shape: tuple[int, int, int, int], sources: list[StoredTensor]) -> Quantised:
    rows, columns, bits, block = shape
    count = columns // block
    packed = integers(sources[0]).view(np.uint8).reshape(rows, -1)
    scales = sources[1].read_float32().reshape(rows, count)
    zeros = np.full((rows, count), 1 << (bits - 1), np.uint8)
    if len(sources) == 3:
        given = integers(sources[2]).view(np.uint8).reshape(rows, -1)
        if bits == 4:
            pairs = np.stack([given & np.uint8(15), given >> np.uint8(4)], axis=-1)
            given = pairs.reshape(rows, -1)
        zeros = given[:, :count]
    return Quantised(rows, columns, bits, block, packed, scales, zeros)
