"""bitsandbytes: 4 bits by table (nf4, fp4), scales in blocks, possibly quantised again; and int8.

4 bits: `weight` holds the codes of the flattened matrix, two a byte, the HIGH nibble first;
`weight.absmax` the scale of each block, f32 or, doubly quantised, u8 with `weight.nested_absmax`
and `weight.nested_quant_map`; `weight.quant_map` the table; in
`weight.quant_state.bitsandbytes__<type>` lie the bytes of a JSON object with shape and blocksize.

int8: `weight` i8[N, K] and `SCB` f32[N]; a weight is `code * SCB / 127`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.quantised_config import Method, Pieces, Settings
from inferc.frontend.quantised_tensor import (
    QuantisedTensor,
    coded_tensor,
    numbers,
    quantised_tensor,
    steps,
)
from inferc.frontend.weights import StoredTensor
from inferc.ir.blocks import Bytes, Floats, block_format
from inferc.ir.blocks_build import nibbles_of, scaled_rows
from inferc.ir.blocks_checkpoint import FP4, NF4

_TABLES = {"nf4": NF4, "fp4": FP4}
_BLOCK = 64
_INT8_SCALE = np.float32(7.874015718698502e-3)  # 1 / 127 as bitsandbytes has it
_STATE = "weight.quant_state.bitsandbytes__"
_NOTE = "bitsandbytes quantises activations for int8 weights; they stay floating-point."


def bitsandbytes(settings: Settings) -> Method:
    """The method of a bitsandbytes checkpoint. Raises CompileError."""
    settings.only(
        ("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_quant_type",
         "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",
         "llm_int8_threshold", "llm_int8_skip_modules", "llm_int8_has_fp16_weight",
         "llm_int8_enable_fp32_cpu_offload", "modules_to_not_convert")
    )  # fmt: skip
    eight = bool(settings.fields.get("load_in_8bit"))
    return Method(
        ("weight", "SCB", "weight_format", "weight.absmax", "weight.quant_map",
         "weight.nested_absmax", "weight.nested_quant_map", f"{_STATE}nf4", f"{_STATE}fp4"),
        lambda pieces: "SCB" in pieces or "weight.absmax" in pieces,
        lambda pieces, _: _int8(pieces) if "SCB" in pieces else _four_bits(pieces),
        notes=(_NOTE,) if eight else (),
    )  # fmt: skip


def _int8(pieces: Pieces) -> QuantisedTensor:
    weight = pieces.matrix("weight", ("i8",))
    rows, columns = weight.shape
    stored = pieces.get("SCB", ("f32",), (rows,))
    if "weight_format" in pieces:
        layout = pieces.tensor("weight_format", ("u8",))
        if layout.numbers().any():
            raise CompileError(
                f"{layout.name} is {int(layout.numbers().flat[0])}; expected 0, rows as they are. "
                "Save the model again with a newer bitsandbytes."
            )

    def scales() -> Floats:
        return stored.read().astype(np.float32) * _INT8_SCALE

    scale = ComputedTensor.of(stored.name, "f32", (rows,), stored.file, 4 * rows, scales)
    return coded_tensor(
        f"{pieces.module}.weight", "i8", (rows, columns), scale,
        lambda: weight.numbers().view(np.uint8), scales, list(pieces.tensors.values()),
    )  # fmt: skip


@dataclass(frozen=True)
class _State:
    """The JSON object that describes a weight of 4 bits."""

    kind: str
    blocksize: int
    rows: int
    columns: int
    nested_blocksize: int
    offset: float | None


def _four_bits(pieces: Pieces) -> QuantisedTensor:
    state = _state(pieces)
    weight = pieces.tensors.get("weight")
    count = state.rows * state.columns
    if weight is None or weight.nbytes != count // 2:
        found = "nothing" if weight is None else f"{weight.nbytes} bytes"
        raise CompileError(
            f"{pieces.module}.weight: expected {count // 2} bytes for {state.rows} x "
            f"{state.columns} codes, as its quant_state says; found {found}."
        )
    table = pieces.get("weight.quant_map", ("f32",), (16,)).read()
    if not np.array_equal(table, _TABLES[state.kind]):
        raise CompileError(
            f"{pieces.module}.weight.quant_map is not the table of {state.kind} that bitsandbytes "
            "has; other tables are not supported."
        )
    absmax = _absmax(pieces, state)
    kind = f"{state.kind}_g{_BLOCK}"
    codes = weight

    def read() -> Bytes:
        scales = numbers(f"{pieces.module}.weight.absmax", _scales(absmax(), state))
        packed = codes.raw().reshape(state.rows, -1)
        shape = (state.rows, state.columns)
        out = np.empty((state.rows, block_format(kind).row_bytes(state.columns)), np.uint8)
        for start, stop in steps(shape):
            part = packed[start:stop]
            swapped = part << np.uint8(4) | part >> np.uint8(4)
            out[start:stop] = scaled_rows(
                nibbles_of(swapped), scales[start:stop], _BLOCK, nibbles=True
            )
        return out

    return quantised_tensor(
        f"{pieces.module}.weight", kind, (state.rows, state.columns),
        list(pieces.tensors.values()), read,
    )  # fmt: skip


def _scales(absmax: Floats, state: _State) -> Floats:
    """The scale of each 64 elements of a row."""
    count = state.rows * state.columns // _BLOCK
    return np.repeat(absmax, state.blocksize // _BLOCK)[:count].reshape(state.rows, -1)


def _state(pieces: Pieces) -> _State:
    suffix = next((s for s in pieces.tensors if s.startswith(_STATE)), f"{_STATE}nf4")
    stored = pieces.tensor(suffix, ("u8",))
    try:
        fields: dict[str, Any] = json.loads(stored.numbers().tobytes())
        rows, columns = (int(n) for n in fields["shape"])
        state = _State(
            str(fields["quant_type"]), int(fields["blocksize"]), rows, columns,
            int(fields.get("nested_blocksize") or 0), fields.get("nested_offset"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise CompileError(f"{stored.name} is damaged ({error!r}); get the file again.") from error
    if state.kind not in _TABLES or suffix != f"{_STATE}{state.kind}":
        raise CompileError(
            f"{stored.name} says quant_type {state.kind!r}; expected {' or '.join(_TABLES)}, and "
            "the same as in its name."
        )
    if state.blocksize % _BLOCK or columns % _BLOCK or state.blocksize <= 0:
        raise CompileError(
            f"{stored.name}: blocks of {state.blocksize} over rows of {columns}; expected blocks "
            f"and rows of a multiple of {_BLOCK}. Compile the unquantised model."
        )
    return state


def _absmax(pieces: Pieces, state: _State) -> Any:
    """A function that gives the scale of each block, f32."""
    blocks = -(-state.rows * state.columns // state.blocksize)
    if "weight.nested_absmax" not in pieces:
        stored = pieces.get("weight.absmax", ("f32",), (blocks,))
        return lambda: stored.read().astype(np.float32)
    codes = pieces.get("weight.absmax", ("u8",), (blocks,))
    table = pieces.get("weight.nested_quant_map", ("f32",), (256,))
    if state.nested_blocksize <= 0 or not isinstance(state.offset, float | int):
        missing = "nested_offset" if state.nested_blocksize > 0 else "nested_blocksize"
        raise CompileError(
            f"{pieces.module}: the scales are quantised again, and quant_state has no {missing}. "
            "Get the file again."
        )
    offset = np.float32(state.offset)
    outer = pieces.get("weight.nested_absmax", ("f32",), (-(-blocks // state.nested_blocksize),))

    def scales() -> Floats:
        wide = np.repeat(outer.read().astype(np.float32), state.nested_blocksize)[:blocks]
        return _values(table)[codes.numbers()] * wide + offset

    return scales


def _values(stored: StoredTensor) -> Floats:
    return stored.read().astype(np.float32)
