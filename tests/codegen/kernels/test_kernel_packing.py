"""Packing is lossless for every bit pattern, and documented record sizes hold."""

import numpy as np
import pytest
from weights_cases import BLOCK_FORMATS

from inferc.codegen import packing
from inferc.ir.blocks import FORMATS as STORED


def test_every_block_format_has_a_layout():
    assert set(BLOCK_FORMATS) == set(STORED)


@pytest.mark.parametrize("fmt", packing.FORMATS)
@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (16, 2), (37, 3)])
def test_round_trip(fmt, n, blocks):
    k = (
        blocks * packing.BLOCK_LAYOUTS[fmt].block_elements
        if fmt in BLOCK_FORMATS
        else 2 * blocks + 1
    )
    rows = np.random.default_rng(n).integers(0, 256, (n, packing.row_bytes(fmt, k)), dtype=np.uint8)
    packed = packing.pack(fmt, rows)
    assert packed.nbytes == packing.packed_bytes(fmt, n, k)
    assert (packing.unpack(fmt, packed, n, k) == rows).all()
    other = np.ascontiguousarray(rows[::-1])
    pair = packing.pack_pair(fmt, rows, other)
    assert pair.nbytes == packing.packed_pair_bytes(fmt, n, k)
    gate, up = packing.unpack_pair(fmt, pair, n, k)
    assert (gate == rows).all() and (up == other).all()


@pytest.mark.parametrize("fmt", BLOCK_FORMATS)
def test_packed_bytes_are_the_stored_bytes(fmt):
    layout = packing.BLOCK_LAYOUTS[fmt]
    assert packing.packed_bytes(fmt, 32, 512) == 32 * packing.row_bytes(fmt, 512)
    assert (layout.block_elements, layout.block_bytes) == (
        STORED[fmt].block_elements,
        STORED[fmt].block_bytes,
    )
    assert sum(field.nbytes for field in layout.fields) == layout.block_bytes


def test_bytes_are_padded_to_whole_words():
    assert packing.packed_bytes("i8", 16, 33) == 16 * 64
    assert packing.packed_bytes("f8e4m3", 16, 33) == 16 * 34


@pytest.mark.parametrize(
    ("fmt", "at", "code"), [("f8e4m3", 7, 0xFF), ("f8_g128", 9, 0x7F), ("mxfp4", 17, 255)]
)
def test_codes_of_nan_are_found(fmt, at, code):
    k = 256
    rows = np.full((3, packing.row_bytes(fmt, k)), 0x7E, np.uint8)
    assert not packing.has_nan(fmt, rows)
    rows[1, at] = code
    assert packing.has_nan(fmt, rows)


def test_a_tensor_larger_than_a_chunk():
    rows = np.random.default_rng(0).integers(
        0, 256, (5000, packing.row_bytes("q5_k", 1024)), dtype=np.uint8
    )
    assert (packing.unpack("q5_k", packing.pack("q5_k", rows), 5000, 1024) == rows).all()


def test_errors_say_what_was_expected():
    with pytest.raises(ValueError, match="known are f32"):
        packing.row_bytes("q9_9", 32)
    with pytest.raises(ValueError, match="256 elements a block; rows of 100"):
        packing.row_bytes("q4_k", 100)
    with pytest.raises(ValueError, match="multiple of 18 bytes; got rows of 17"):
        packing.pack("q4_0", np.zeros((1, 17), np.uint8))
    with pytest.raises(ValueError, match=r"q8_0\[16, 32\] has 544 bytes; got 543"):
        packing.unpack("q8_0", np.zeros(543, np.uint8), 16, 32)
    with pytest.raises(ValueError, match="equal shapes"):
        packing.pack_pair("f32", np.zeros((1, 8), np.uint8), np.zeros((2, 8), np.uint8))
