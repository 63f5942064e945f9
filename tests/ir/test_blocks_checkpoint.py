"""Block formats of quantised checkpoints against the formulas of their docstring, one by one."""

import struct

import gguf
import ml_dtypes
import numpy as np
import pytest

from inferc.ir.blocks import block_format, dequantize
from inferc.ir.blocks_checkpoint import E2M1, FP4, GROUPS, NF4
from inferc.ir.blocks_encode import random_blocks


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", ["u4", "u4b", "u8", "u8b"])
def test_affine(kind: str, group: int) -> None:
    name, bits = f"{kind}_g{group}", int(kind[1])
    raw = random_blocks(name, 3, 2 * group, np.random.default_rng(0))
    values = dequantize(name, raw)
    for row, block in ((0, 0), (2, 1)):
        data = raw[row].tobytes()[block * (4 + group * bits // 8) :]
        (half,) = struct.unpack_from("<H", data)
        dtype = ml_dtypes.bfloat16 if kind.endswith("b") else np.float16
        scale, zero = float(np.array(half, np.uint16).view(dtype)), data[2]
        for i in range(group):
            code = data[4 + i] if bits == 8 else data[4 + i // 2] >> (4 * (i % 2)) & 15
            assert values[row, block * group + i] == scale * (code - zero)  # exact in f32


def test_affine_products_are_not_rounded() -> None:
    name = "u8_g32"
    raw = random_blocks(name, 16, 64, np.random.default_rng(1))
    blocks = raw.reshape(-1, 36)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    wide = scale * (blocks[:, 4:].astype(np.int64) - blocks[:, 2:3])
    np.testing.assert_array_equal(dequantize(name, raw).reshape(-1, 32), wide)


def test_f8() -> None:
    raw = random_blocks("f8_g128", 4, 256, np.random.default_rng(2))
    blocks = raw.reshape(-1, 132)
    codes = blocks[:, 4:].copy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    wanted = blocks[:, :4].copy().view(np.float32) * codes
    np.testing.assert_array_equal(dequantize("f8_g128", raw).reshape(-1, 128), wanted)
    assert np.isfinite(wanted).all()


@pytest.mark.parametrize(("name", "table"), [("nf4_g64", NF4), ("fp4_g64", FP4)])
def test_tables(name: str, table: np.ndarray) -> None:
    raw = random_blocks(name, 4, 128, np.random.default_rng(3))
    blocks = raw.reshape(-1, 36)
    values = dequantize(name, raw).reshape(-1, 64)
    scale = blocks[:, :4].copy().view(np.float32)
    np.testing.assert_array_equal(values[:, ::2], scale * table[blocks[:, 4:] & 15])
    np.testing.assert_array_equal(values[:, 1::2], scale * table[blocks[:, 4:] >> 4])


def test_mxfp4_is_ggmls() -> None:
    raw = random_blocks("mxfp4", 4, 128, np.random.default_rng(4))
    theirs = gguf.dequantize(raw, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(dequantize("mxfp4", raw), theirs)


def test_mxfp4_elements_are_ml_dtypes() -> None:
    codes = np.arange(16, dtype=np.uint8)
    np.testing.assert_array_equal(
        E2M1, codes.view(np.uint8).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype("f4")
    )


@pytest.mark.parametrize(("scale", "value"), [(0, 2.0**-126), (127, 2.0), (254, 2.0**128)])
def test_mxfp4_scales(scale: int, value: float) -> None:
    block = np.full((1, 17), 0x44, np.uint8)  # code 4 is 2.0
    block[0, 0] = scale
    with np.errstate(over="ignore"):
        assert dequantize("mxfp4", block)[0, 0] == np.float32(value)


def test_mxfp4_scale_255_is_nan() -> None:
    block = np.full((1, 17), 0x44, np.uint8)
    block[0, 0] = 255
    assert np.isnan(dequantize("mxfp4", block)).all()


def test_sizes() -> None:
    bits = {
        n: block_format(n).bits_per_element for n in ("u4_g128", "u8_g32", "f8_g128", "nf4_g64")
    }
    assert bits == {"u4_g128": 4.25, "u8_g32": 9.0, "f8_g128": 8.25, "nf4_g64": 4.5}
