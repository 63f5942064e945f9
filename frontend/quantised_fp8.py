"""f8_e4m3 weights as DeepSeek and transformers store them, and the MXFP4 experts of gpt-oss.

fp8: `weight` f8_e4m3 [N, K] with `weight_scale_inv` [N / rows, K / columns], a factor despite its
name, or with one `weight_scale` (fbgemm_fp8: one a row).

mxfp4: `<name>_blocks` u8[E, N, K / 32, 16], two codes a byte, the low nibble first, and
`<name>_scales` u8[E, N, K / 32] in e8m0; the parameter `<name>` is [E, K, N].
"""

from __future__ import annotations

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.quantised_config import Method, Pieces, Settings
from inferc.frontend.quantised_tensor import (
    QuantisedTensor,
    block_scaled,
    coded_tensor,
    quantised_tensor,
)
from inferc.frontend.weights import StoredTensor
from inferc.ir.blocks import Bytes, Floats
from inferc.ir.blocks_build import mxfp4_rows, nibbles_of

_TAKE = "Compile another quantisation of the model, or the unquantised model."
_SCALES = ("f32", "bf16", "f16", "f8_e8m0")
_E8M0_NAN = 255
_SCALE_NAMES = ("weight_scale_inv", "weight_scale")
_NOTE = "The checkpoint wants activations in f8; they stay floating-point."


def fp8(settings: Settings) -> Method:
    """The method of fp8 and fbgemm_fp8 checkpoints. Raises CompileError."""
    settings.only(
        ("activation_scheme", "weight_block_size", "modules_to_not_convert", "ignored_layers",
         "modules_to_convert", "fmt", "scale_fmt", "dequantize", "activation_scale_ub")
    )  # fmt: skip
    settings.choice("activation_scheme", ("dynamic", "static"), _TAKE, "dynamic")
    settings.choice("fmt", ("e4m3",), _TAKE, "e4m3")
    settings.choice("scale_fmt", ("ue8m0", "float", None), _TAKE)
    block = settings.fields.get("weight_block_size")
    pair = isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) for n in block)
    if block is not None and not pair:
        raise settings.refused("weight_block_size", "rows and columns", _TAKE)
    size = None if block is None else (int(block[0]), int(block[1]))
    return Method(
        ("weight", *_SCALE_NAMES),
        lambda pieces: any(name in pieces for name in _SCALE_NAMES),
        lambda pieces, _: _weight(pieces, size),
        (r"\.(input_scale|activation_scale|input_scale_ub)$",),
        notes=(_NOTE,),
    )


def _weight(pieces: Pieces, block: tuple[int, int] | None) -> QuantisedTensor:
    weight = pieces.matrix("weight", ("f8_e4m3",))
    found = [name for name in _SCALE_NAMES if name in pieces]
    if len(found) > 1:
        raise CompileError(
            f"{pieces.module} has two scales, {' and '.join(found)}; expected one. Which of them "
            "is meant cannot be told: remove the other."
        )
    scale = pieces.tensor(found[0], _SCALES)
    rows, columns = weight.shape
    if block is not None:
        return block_tensor(pieces, weight, scale, block)
    if scale.shape not in ((), (1,), (1, 1), (rows,), (rows, 1)):
        raise CompileError(
            f"{scale.name}: quantization_config has no weight_block_size, so one scale or {rows} "
            f"are expected; found shape {list(scale.shape)}."
        )

    def scales() -> Floats:
        values = scale.numbers().astype(np.float32).reshape(-1)
        return np.ascontiguousarray(np.broadcast_to(values, (rows,)))

    return coded_tensor(
        f"{pieces.module}.weight", "f8e4m3", (rows, columns), scale,
        lambda: weight.numbers().view(np.uint8), scales, list(pieces.tensors.values()),
    )  # fmt: skip


def block_tensor(
    pieces: Pieces, weight: StoredTensor, scale: StoredTensor, block: tuple[int, int]
) -> QuantisedTensor:
    """f8 codes with a scale for each `block` of rows and columns, repeated for each row."""
    rows, columns = weight.shape
    high, wide = block
    if wide <= 0 or high <= 0 or wide % 128:
        raise CompileError(
            f"{weight.name} is scaled in blocks of {high} x {wide}; expected blocks whose columns "
            f"are a multiple of 128. {_TAKE}"
        )
    wanted = (-(-rows // high), -(-columns // wide))
    if scale.shape != wanted:
        raise CompileError(
            f"{scale.name}: expected shape {list(wanted)} for blocks of {high} x {wide} of "
            f"{list(weight.shape)}, found {list(scale.shape)}."
        )

    def scales() -> Floats:
        values = scale.numbers().astype(np.float32)
        across = np.repeat(values, wide // 128, axis=1)[:, : columns // 128]
        return np.repeat(across, high, axis=0)[:rows]

    return block_scaled(
        f"{pieces.module}.weight", (rows, columns), list(pieces.tensors.values()),
        lambda: weight.numbers().view(np.uint8), scales, scale.name,
    )  # fmt: skip


def mxfp4(settings: Settings) -> Method:
    """The method of MXFP4 experts. Raises CompileError."""
    settings.only(("modules_to_not_convert", "dequantize"))
    return Method(
        ("blocks", "scales"),
        lambda pieces: "blocks" in pieces,
        lambda pieces, _: _experts(pieces),
        separator="_",
    )


def _experts(pieces: Pieces) -> QuantisedTensor:
    blocks = pieces.tensor("blocks", ("u8",))
    if len(blocks.shape) != 4 or blocks.shape[3] != 16:
        raise CompileError(
            f"{blocks.name}: expected shape [experts, rows, columns / 32, 16], found "
            f"{list(blocks.shape)}."
        )
    experts, rows, count, _ = blocks.shape
    scales = pieces.get("scales", ("u8",), (experts, rows, count))

    def entry(expert: int) -> Bytes:
        codes, held = blocks.numbers()[expert], scales.numbers()[expert].view(np.uint8)
        if (held == _E8M0_NAN).any():
            raise CompileError(
                f"{scales.name}: expert {expert} has scales of {_E8M0_NAN}, which is no number in "
                "e8m0. The file is damaged: get it again."
            )
        return mxfp4_rows(nibbles_of(codes.view(np.uint8)).reshape(rows, -1), held)

    def read() -> Bytes:
        out = np.empty((experts, rows, 17 * count), np.uint8)
        for expert in range(experts):
            out[expert] = entry(expert)
        return out

    return quantised_tensor(
        pieces.module, "mxfp4", (experts, rows, 32 * count),
        [blocks, scales], read, transposed=True, entry=entry,
    )  # fmt: skip
