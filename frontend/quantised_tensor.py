"""A weight of a quantised checkpoint: its pieces lie in tensors of their own, it is read as one.

The codes stay what they are. Most formats become rows of blocks; codes with one scale a row stay
plain codes, and the scale is a vector that the product is multiplied with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.weights import StoredTensor
from inferc.ir.blocks import FORMATS, Bytes, Floats, block_format
from inferc.ir.blocks_build import affine_rows, scaled_rows
from inferc.ir.blocks_checkpoint import GROUPS, SCALE_TYPES, affine_name

_Array = TypeVar("_Array", bound=NDArray[Any])
_STEP_ELEMENTS = 1 << 23  # codes that are unpacked at a time
CODE_TYPES: dict[str, np.dtype[np.generic]] = {
    "i8": np.dtype(np.int8),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
}


@dataclass(frozen=True)
class QuantisedTensor(ComputedTensor):
    """Rows of blocks, or codes, made from the pieces when they are read.

    Attributes:
        row_scale: f32[N] that the rows are to be multiplied with; None where the blocks have it.
        order: i32[K]: column i as read is column `order[i]` of the parameter; None for the same.
        transposed: Whether the parameter has the last two axes the other way round.
        entry: Makes one entry of the first axis by itself; None where that is not possible.
    """

    row_scale: ComputedTensor | None = field(default=None, compare=False)
    order: ComputedTensor | None = field(default=None, compare=False)
    transposed: bool = False
    entry: Callable[[int], NDArray[np.generic]] | None = field(default=None, compare=False)

    def entry_reader(self) -> Callable[[int], NDArray[np.generic]] | None:
        """Reads one entry of the first axis; None where only the whole can be read."""
        return self.entry

    def same_bytes(self, other: StoredTensor) -> bool:
        """Whether both are the same codes with the same scales in the same order."""
        if not isinstance(other, QuantisedTensor) or not super().same_bytes(other):
            return False
        for ours, theirs in ((self.row_scale, other.row_scale), (self.order, other.order)):
            if (ours is None) != (theirs is None):
                return False
            if ours is not None and theirs is not None and not ours.same_bytes(theirs):
                return False
        return self.transposed == other.transposed

    def read_parameter(self) -> Floats:
        """The parameter in float32: scaled, columns and axes in the model's order."""
        values = self.read_float32()
        if self.row_scale is not None:
            values = values * self.row_scale.read_float32()[:, None]
        if self.order is not None:
            places = self.order.read()
            given, values = values, np.empty_like(values)
            values[:, places] = given
        return np.ascontiguousarray(values.swapaxes(-1, -2)) if self.transposed else values


def quantised_tensor(
    name: str, dtype: str, shape: tuple[int, ...], pieces: Sequence[StoredTensor],
    compute: Callable[[], NDArray[np.generic]], *, row_scale: ComputedTensor | None = None,
    order: ComputedTensor | None = None, transposed: bool = False,
    entry: Callable[[int], NDArray[np.generic]] | None = None,
) -> QuantisedTensor:  # fmt: skip
    """A tensor of the pieces; they are released with it."""
    if dtype in FORMATS:
        row_bytes = block_format(dtype).row_bytes(shape[-1])
    else:
        row_bytes = shape[-1] * CODE_TYPES[dtype].itemsize
    rows = int(np.prod(shape[:-1]))

    def drop() -> None:
        for piece in pieces:
            piece.release()

    made = ComputedTensor.of(name, dtype, shape, pieces[0].file, rows * row_bytes, compute, drop)
    return QuantisedTensor(
        **{f: getattr(made, f) for f in made.__dataclass_fields__},
        row_scale=row_scale, order=order, transposed=transposed, entry=entry,
    )  # fmt: skip


@dataclass(frozen=True)
class Affine:
    """Codes with a scale and a zero point a group: `scale * (code - zero)`.

    Attributes:
        name: Of the weight.
        shape: N, K.
        bits: 4 or 8.
        group: Columns of a group, in their order after `order`.
        scale: The stored scales, for their type and for messages.
        packed: Codes of rows [start, stop), columns in order: u8[n, K * bits / 8], the low nibble
            first.
        scales: All scales, [N, K / group], the last group cut short if it has to be.
        zeros: All zero points, u8[N, K / group] likewise.
        pieces: The stored tensors.
        order: The column that comes i-th where groups are not in order, i32[K].
    """

    name: str
    shape: tuple[int, int]
    bits: int
    group: int
    scale: StoredTensor
    packed: Callable[[int, int], Bytes]
    scales: Callable[[], NDArray[np.generic]]
    zeros: Callable[[], Bytes]
    pieces: Sequence[StoredTensor]
    order: ComputedTensor | None = None

    def tensor(self) -> QuantisedTensor:
        """As rows of blocks. Raises CompileError for groups or scales that no format has."""
        letter = _scale_letter(self.scale)
        kind = affine_name(self.bits, self._block(), letter)
        return quantised_tensor(
            self.name, kind, self.shape, self.pieces, lambda: self._rows(letter), order=self.order
        )

    def _block(self) -> int:
        for block in reversed(GROUPS):
            if self.group % block == 0 and self.shape[1] % block == 0:
                return block
        raise CompileError(
            f"{self.name} {list(self.shape)} is quantised in groups of {self.group} columns; "
            f"expected groups of 32, or multiples of 32, that divide rows of {self.shape[1]}. "
            "Take a checkpoint quantised with groups of 32, 64 or 128."
        )

    def _rows(self, letter: str) -> Bytes:
        scales = numbers(self.scale.name, self.scales()).astype(SCALE_TYPES[letter])
        zeros = self.zeros()
        block = self._block()
        each, count = self.group // block, self.shape[1] // block
        kind = block_format(affine_name(self.bits, block, letter))
        out = np.empty((self.shape[0], kind.row_bytes(self.shape[1])), np.uint8)
        for start, stop in steps(self.shape):
            # One a block; the last group may be cut short.
            parts = (np.repeat(v[start:stop], each, 1)[:, :count] for v in (scales, zeros))
            out[start:stop] = affine_rows(self.packed(start, stop), *parts, self.bits, block)
        return out


def numbers(name: str, scales: _Array) -> _Array:
    """Scales of the stored tensor `name`. Raises CompileError for those that are no numbers."""
    wrong = ~np.isfinite(scales.astype(np.float32))
    if wrong.any():
        raise CompileError(
            f"{name}: expected scales that are numbers, found {scales[wrong][0]} "
            f"({int(wrong.sum())} of {scales.size}). The file is damaged, or was written from a "
            "failed quantisation: get it again, or compile another quantisation of the model."
        )
    return scales


def steps(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are unpacked at a time; all but the last are multiples of 64."""
    step = max(_STEP_ELEMENTS // shape[1] // 64, 1) * 64
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


def _scale_letter(scale: StoredTensor) -> str:
    """The letter of the 16-bit type that holds the scales. Raises CompileError."""
    if scale.dtype in ("f16", "bf16"):
        return {"f16": "", "bf16": "b"}[scale.dtype]
    values = scale.read().astype(np.float32)
    scale.release()
    for letter, dtype in SCALE_TYPES.items():
        with np.errstate(over="ignore"):
            if np.array_equal(values.astype(dtype).astype(np.float32), values):
                return letter
    raise CompileError(
        f"{scale.name} has scales of {scale.dtype} that neither float16 nor bfloat16 holds exactly,"
        " so they would be rounded. Quantise the model again from a 16-bit one, or compile the "
        "unquantised model."
    )


def coded_tensor(
    name: str, dtype: str, shape: tuple[int, int], scale: StoredTensor | ComputedTensor,
    codes: Callable[[], Bytes], scales: Callable[[], Floats], pieces: Sequence[StoredTensor],
) -> QuantisedTensor:  # fmt: skip
    """Codes of "i8" or "f8e4m3" with one scale a row, f32[N].

    The matrices of experts have no place for a vector: their f8 codes get the scale in each block.
    """
    if ".experts." in name and dtype == "f8e4m3":
        return block_scaled(
            name, shape, pieces, codes, lambda: np.repeat(scales()[:, None], shape[1] // 128, 1),
            scale.name,
        )  # fmt: skip
    if ".experts." in name:
        return Affine(
            name, shape, 8, shape[1], scale,
            lambda start, stop: codes()[start:stop] ^ np.uint8(0x80),
            lambda: scales()[:, None], lambda: np.full((shape[0], 1), 128, np.uint8), pieces,
        ).tensor()  # fmt: skip
    vector = ComputedTensor.of(
        f"{name}.row_scale", "f32", shape[:1], pieces[0].file, 4 * shape[0],
        lambda: numbers(scale.name, scales()),
    )  # fmt: skip
    return quantised_tensor(
        name, dtype, shape, pieces, lambda: codes().view(CODE_TYPES[dtype]), row_scale=vector
    )


def block_scaled(
    name: str, shape: tuple[int, int], pieces: Sequence[StoredTensor],
    codes: Callable[[], Bytes], scales: Callable[[], Floats], scale_name: str,
) -> QuantisedTensor:  # fmt: skip
    """f8 codes with scales f32[N, K / 128]. A scale a block costs 3 % of the bytes."""
    if shape[1] % 128:
        raise CompileError(
            f"{name} {list(shape)} has f8 codes scaled in blocks; expected rows of a multiple of "
            f"128, found {shape[1]}. Compile the unquantised model."
        )

    def rows() -> Bytes:
        held, wide = codes(), numbers(scale_name, scales())
        out = np.empty((shape[0], block_format("f8_g128").row_bytes(shape[1])), np.uint8)
        for start, stop in steps(shape):
            out[start:stop] = scaled_rows(held[start:stop], wide[start:stop], 128, nibbles=False)
        return out

    return quantised_tensor(name, "f8_g128", shape, pieces, rows)
