"""How each block format is laid out in a record of 16 rows.

A record holds one block of 16 matrix rows. It has exactly the bytes of those blocks, in another
order: fields of the rows side by side, integers as words of four elements that a SIMD lane reads at
once. The order is written down in ``include/inferc/weights_legacy.h``, ``weights_k.h`` and
``weights_groups.h``; here is the same in numpy, both ways.

Every function takes or gives ``u8[tiles, 16, blocks, block_bytes]`` (rows as stored) or
``u8[tiles, blocks, 16 * block_bytes]`` (records).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferc.codegen.packing_bits import (
    fifth_decode,
    fifth_encode,
    k_fifth_decode,
    k_fifth_encode,
    k_nibbles_decode,
    k_nibbles_encode,
    less_128,
    pairs_decode,
    pairs_encode,
    q3_high_decode,
    q3_high_encode,
    q6_decode,
    q6_encode,
    two_bits_decode,
    two_bits_encode,
)
from inferc.ir.blocks_checkpoint import GROUPS, SCALE_TYPES, affine_name

Bytes = NDArray[np.uint8]

TILE_ROWS = 16


@dataclass(frozen=True)
class Field:
    """A run of bytes of a block and how it is interleaved.

    ``word_bytes`` is the unit that stays together: 2 for halves, 4 for words. ``encode`` reorders
    the bits of the run ``u8[..., nbytes]`` first, ``decode`` undoes it.
    """

    start: int
    nbytes: int
    word_bytes: int
    encode: Callable[[Bytes], Bytes] | None = None
    decode: Callable[[Bytes], Bytes] | None = None


@dataclass(frozen=True)
class BlockLayout:
    """The fields of a record, in order; the last ``interleaved`` of them take turns by group."""

    block_elements: int
    block_bytes: int
    fields: tuple[Field, ...]
    groups: int = 1
    interleaved: int = 0


# ---- the formats


def _half(start: int) -> Field:
    return Field(start, 2, 2)


def _words(start: int, nbytes: int) -> Field:
    return Field(start, nbytes, 4)


_NIBBLES = (k_nibbles_encode, k_nibbles_decode)
_PAIRS = (pairs_encode, pairs_decode)


def _affine(group: int, bits: int) -> BlockLayout:
    """Scale and zero point, then codes: nibbles in pairs, or bytes."""
    recode = _PAIRS if bits == 4 else (less_128, less_128)
    codes = Field(4, group * bits // 8, 4, *recode)
    return BlockLayout(group, 4 + codes.nbytes, (_half(0), _half(2), codes))


def _table() -> BlockLayout:
    return BlockLayout(64, 36, (_words(0, 4), Field(4, 32, 4, *_PAIRS)))


BLOCK_LAYOUTS: dict[str, BlockLayout] = {
    "q4_0": BlockLayout(32, 18, (_half(0), _words(2, 16))),
    "q4_1": BlockLayout(32, 20, (_half(0), _half(2), _words(4, 16))),
    "q5_0": BlockLayout(
        32, 22, (_half(0), Field(2, 4, 4, fifth_encode, fifth_decode), _words(6, 16))
    ),
    "q5_1": BlockLayout(
        32, 24, (_half(0), _half(2), Field(4, 4, 4, fifth_encode, fifth_decode), _words(8, 16))
    ),
    "q8_0": BlockLayout(32, 34, (_half(0), _words(2, 32))),
    "q2_k": BlockLayout(
        256,
        84,
        (_half(80), _half(82), _words(0, 16), Field(16, 64, 4, two_bits_encode, two_bits_decode)),
    ),
    "q3_k": BlockLayout(
        256,
        110,
        (
            _half(108),
            _words(96, 12),
            Field(32, 64, 4, two_bits_encode, two_bits_decode),
            Field(0, 32, 4, q3_high_encode, q3_high_decode),
        ),
    ),
    "q4_k": BlockLayout(
        256, 144, (_half(0), _half(2), _words(4, 12), Field(16, 128, 4, *_NIBBLES))
    ),
    "q5_k": BlockLayout(
        256,
        176,
        (
            _half(0),
            _half(2),
            _words(4, 12),
            Field(16, 32, 4, k_fifth_encode, k_fifth_decode),
            Field(48, 128, 4, *_NIBBLES),
        ),
        groups=8,
        interleaved=2,
    ),
    "q6_k": BlockLayout(
        256,
        210,
        (_half(208), _words(192, 16), Field(0, 192, 4, q6_encode, q6_decode)),
        groups=16,
        interleaved=1,
    ),
    **{
        affine_name(bits, group, letter): _affine(group, bits)
        for bits in (4, 8)
        for letter in SCALE_TYPES
        for group in GROUPS
    },
    "f8_g128": BlockLayout(128, 132, (_words(0, 4), Field(4, 128, 1))),
    "nf4_g64": _table(),
    "fp4_g64": _table(),
    "mxfp4": BlockLayout(32, 17, (Field(0, 1, 1), _words(1, 16))),
}


def pack_blocks(layout: BlockLayout, rows: Bytes) -> Bytes:
    """``u8[tiles, 16, blocks, block_bytes]`` to records ``u8[tiles, blocks, 16 * block_bytes]``."""
    tiles, _, blocks, _ = rows.shape
    out = np.empty((tiles, blocks, TILE_ROWS * layout.block_bytes), np.uint8)
    for field, view in _record_views(layout, out):
        run = rows[..., field.start : field.start + field.nbytes]
        if field.encode is not None:
            run = field.encode(run)
        groups = view.shape[2]
        view[...] = run.reshape(tiles, TILE_ROWS, blocks, groups, -1, field.word_bytes).transpose(
            0, 2, 3, 4, 1, 5
        )
    return out


def unpack_blocks(layout: BlockLayout, records: Bytes) -> Bytes:
    """The reverse of :func:`pack_blocks`."""
    tiles, blocks, _ = records.shape
    out = np.empty((tiles, TILE_ROWS, blocks, layout.block_bytes), np.uint8)
    for field, view in _record_views(layout, records):
        run = view.transpose(0, 4, 1, 2, 3, 5).reshape(tiles, TILE_ROWS, blocks, field.nbytes)
        out[..., field.start : field.start + field.nbytes] = (
            run if field.decode is None else field.decode(run)
        )
    return out


def _record_views(layout: BlockLayout, records: Bytes) -> list[tuple[Field, Bytes]]:
    """Each field, its place in the records ``[tiles, blocks, groups, words, 16, word_bytes]``."""
    plain = layout.fields[: len(layout.fields) - layout.interleaved]
    grouped = layout.fields[len(plain) :]
    views: list[tuple[Field, Bytes]] = []
    at = 0
    for field in plain:
        views.append((field, _view(records, at, 1, 0, field.nbytes, field.word_bytes)))
        at += TILE_ROWS * field.nbytes
    stride = TILE_ROWS * sum(field.nbytes for field in grouped) // layout.groups
    for field in grouped:
        nbytes = field.nbytes // layout.groups
        views.append((field, _view(records, at, layout.groups, stride, nbytes, field.word_bytes)))
        at += TILE_ROWS * nbytes
    return views


def _view(records: Bytes, at: int, groups: int, stride: int, nbytes: int, word_bytes: int) -> Bytes:
    tiles, blocks, record_bytes = records.shape
    row = TILE_ROWS * word_bytes
    return np.lib.stride_tricks.as_strided(
        records[:, :, at:],
        (tiles, blocks, groups, nbytes // word_bytes, TILE_ROWS, word_bytes),
        (blocks * record_bytes, record_bytes, stride, row, word_bytes, 1),
        writeable=records.flags.writeable,
    )
