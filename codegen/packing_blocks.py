"""How each block format of GGUF is laid out in a record of 16 rows.

A record holds one block of 16 matrix rows. It has exactly the bytes of those blocks, in another order: fields of
the rows side by side, integers as words of four elements that a SIMD lane reads at once. The order is written down
in ``include/inferc/weights_legacy.h`` and ``weights_k.h``; here is the same in numpy, both ways.

Every function takes or gives ``u8[tiles, 16, blocks, block_bytes]`` (rows as stored) or
``u8[tiles, blocks, 16 * block_bytes]`` (records).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

TILE_ROWS = 16


@dataclass(frozen=True)
class Field:
    """A run of bytes of a block and how it is interleaved.

    ``word_bytes`` is the unit that stays together: 2 for halves, 4 for words. ``encode`` reorders the bits of the
    run ``u8[..., nbytes]`` first, ``decode`` undoes it.
    """

    start: int
    nbytes: int
    word_bytes: int
    encode: Callable[[Bytes], Bytes] | None = None
    decode: Callable[[Bytes], Bytes] | None = None


@dataclass(frozen=True)
class BlockLayout:
    """The fields of a record, in order. ``split`` > 1 interleaves the last ``interleaved`` fields by group."""

    block_elements: int
    block_bytes: int
    fields: tuple[Field, ...]
    groups: int = 1
    interleaved: int = 0


# ---- bit reorderings, on u8[..., n]


def _nibbles(run: Bytes) -> Bytes:
    return np.concatenate([run & 15, run >> 4], axis=-1)


def _bits(run: Bytes) -> Bytes:
    return np.unpackbits(run, axis=-1, bitorder="little")


def _pack_bits(bits: Bytes) -> Bytes:
    return np.packbits(bits, axis=-1, bitorder="little")


def _swap_last(x: Bytes, rows: int, columns: int) -> Bytes:
    """Transposes the last axis seen as ``[rows, columns]``."""
    lead = x.shape[:-1]
    return np.ascontiguousarray(x.reshape(*lead, rows, columns).swapaxes(-1, -2)).reshape(*lead, rows * columns)


def _fifth_encode(run: Bytes) -> Bytes:
    """Bit k = 4v + i of 32 goes to bit 8i + v."""
    return _pack_bits(_swap_last(_bits(run), 8, 4))


def _fifth_decode(run: Bytes) -> Bytes:
    return _pack_bits(_swap_last(_bits(run), 4, 8))


def _elements_of_pairs(run: Bytes) -> Bytes:
    """Stored nibbles of q4_k, q5_k: of each 32 bytes, lower halves are one group, upper halves the next."""
    lead = run.shape[:-1]
    halves = run.reshape(*lead, 4, 1, 32)
    return np.concatenate([halves & 15, halves >> 4], axis=-2).reshape(*lead, 256)


def _k_nibbles_encode(run: Bytes) -> Bytes:
    """Elements of a group of 32 as in q4_0: byte j has element j below and 16 + j above."""
    lead = run.shape[:-1]
    e = _elements_of_pairs(run).reshape(*lead, 8, 2, 16)
    return (e[..., 0, :] | e[..., 1, :] << 4).reshape(*lead, 128)


def _k_nibbles_decode(run: Bytes) -> Bytes:
    lead = run.shape[:-1]
    words = run.reshape(*lead, 8, 16)
    e = np.concatenate([words & 15, words >> 4], axis=-1).reshape(*lead, 4, 2, 32)
    return (e[..., 0, :] | e[..., 1, :] << 4).reshape(*lead, 128)


def _k_fifth_encode(run: Bytes) -> Bytes:
    """q5_k: bit g of byte j is the fifth bit of element j of group g; goes to a word a group, bit 8i + v."""
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # v, i, group
    return _pack_bits(np.moveaxis(bits, -1, -3).swapaxes(-1, -2).reshape(*lead, 256))


def _k_fifth_decode(run: Bytes) -> Bytes:
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # group, i, v
    return _pack_bits(np.moveaxis(bits.swapaxes(-1, -2), -3, -1).reshape(*lead, 256))


def _twos(run: Bytes) -> Bytes:
    """Elements of stored 2-bit runs: of each 32 bytes, bits 2s are elements 32s .. 32s + 31."""
    lead = run.shape[:-1]
    lanes = run.reshape(*lead, -1, 1, 32) >> (2 * np.arange(4, dtype=np.uint8)[:, None])
    return (lanes & 3).reshape(*lead, -1)


def _twos_back(elements: Bytes) -> Bytes:
    lead = elements.shape[:-1]
    lanes = elements.reshape(*lead, -1, 4, 32) << (2 * np.arange(4, dtype=np.uint8)[:, None])
    return np.bitwise_or.reduce(lanes, axis=-2).reshape(*lead, -1)


def _two_words(elements: Bytes) -> Bytes:
    """Element 4v + i of each 16 to bit 8i + 2v of a word."""
    lead = elements.shape[:-1]
    e = elements.reshape(*lead, -1, 4, 4) << (2 * np.arange(4, dtype=np.uint8)[:, None])  # v, i
    return np.bitwise_or.reduce(e, axis=-2).reshape(*lead, -1)


def _two_words_back(words: Bytes) -> Bytes:
    lead = words.shape[:-1]
    e = words.reshape(*lead, -1, 1, 4) >> (2 * np.arange(4, dtype=np.uint8)[:, None])
    return (e & 3).reshape(*lead, -1)


def _two_bits_encode(run: Bytes) -> Bytes:
    return _two_words(_twos(run))


def _two_bits_decode(run: Bytes) -> Bytes:
    return _twos_back(_two_words_back(run))


def _q3_high_encode(run: Bytes) -> Bytes:
    """Bit s of byte j is the third bit of element 32s + j; goes to a word of two groups, bit 8i + 4(g & 1) + v."""
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # byte j = 16 half + 4v + i as [half v][i]; then s
    by_group = np.moveaxis(bits, -1, -3)  # s, (half v), i
    return _pack_bits(by_group.swapaxes(-1, -2).reshape(*lead, 256))


def _q3_high_decode(run: Bytes) -> Bytes:
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # s, i, (half v)
    return _pack_bits(np.moveaxis(bits.swapaxes(-1, -2), -3, -1).reshape(*lead, 256))


def _q6_low_elements(run: Bytes) -> Bytes:
    """Stored q6_k nibbles: of each 64 bytes, bytes 0..31 and 32..63 below are quarters 0 and 1, above 2 and 3."""
    lead = run.shape[:-1]
    halves = run.reshape(*lead, 2, 1, 64)
    return np.concatenate([halves & 15, halves >> 4], axis=-2).reshape(*lead, 256)


def _q6_low_encode(run: Bytes) -> Bytes:
    """Elements of a group of 16: word v & 1, byte i, upper half if v > 1."""
    lead = run.shape[:-1]
    e = _q6_low_elements(run).reshape(*lead, 16, 2, 8)
    return (e[..., 0, :] | e[..., 1, :] << 4).reshape(*lead, 128)


def _q6_low_decode(run: Bytes) -> Bytes:
    lead = run.shape[:-1]
    words = run.reshape(*lead, 16, 8)
    e = np.concatenate([words & 15, words >> 4], axis=-1).reshape(*lead, 2, 2, 64)
    return (e[..., 0, :] | e[..., 1, :] << 4).reshape(*lead, 128)


# ---- the formats


def _half(start: int) -> Field:
    return Field(start, 2, 2)


def _words(start: int, nbytes: int) -> Field:
    return Field(start, nbytes, 4)


_NIBBLES = (_k_nibbles_encode, _k_nibbles_decode)

BLOCK_LAYOUTS: dict[str, BlockLayout] = {
    "q4_0": BlockLayout(32, 18, (_half(0), _words(2, 16))),
    "q4_1": BlockLayout(32, 20, (_half(0), _half(2), _words(4, 16))),
    "q5_0": BlockLayout(32, 22, (_half(0), Field(2, 4, 4, _fifth_encode, _fifth_decode), _words(6, 16))),
    "q5_1": BlockLayout(
        32, 24, (_half(0), _half(2), Field(4, 4, 4, _fifth_encode, _fifth_decode), _words(8, 16))
    ),
    "q8_0": BlockLayout(32, 34, (_half(0), _words(2, 32))),
    "q2_k": BlockLayout(
        256, 84, (_half(80), _half(82), _words(0, 16), Field(16, 64, 4, _two_bits_encode, _two_bits_decode))
    ),
    "q3_k": BlockLayout(
        256,
        110,
        (
            _half(108),
            _words(96, 12),
            Field(32, 64, 4, _two_bits_encode, _two_bits_decode),
            Field(0, 32, 4, _q3_high_encode, _q3_high_decode),
        ),
    ),
    "q4_k": BlockLayout(256, 144, (_half(0), _half(2), _words(4, 12), Field(16, 128, 4, *_NIBBLES))),
    "q5_k": BlockLayout(
        256,
        176,
        (
            _half(0),
            _half(2),
            _words(4, 12),
            Field(16, 32, 4, _k_fifth_encode, _k_fifth_decode),
            Field(48, 128, 4, *_NIBBLES),
        ),
        groups=8,
        interleaved=2,
    ),
    "q6_k": BlockLayout(
        256,
        210,
        (
            _half(208),
            _words(192, 16),
            Field(0, 128, 4, _q6_low_encode, _q6_low_decode),
            Field(128, 64, 4, _two_bits_encode, _two_bits_decode),
        ),
        groups=16,
        interleaved=2,
    ),
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
        view[...] = run.reshape(tiles, TILE_ROWS, blocks, groups, -1, field.word_bytes).transpose(0, 2, 3, 4, 1, 5)
    return out


def unpack_blocks(layout: BlockLayout, records: Bytes) -> Bytes:
    """The reverse of :func:`pack_blocks`."""
    tiles, blocks, _ = records.shape
    out = np.empty((tiles, TILE_ROWS, blocks, layout.block_bytes), np.uint8)
    for field, view in _record_views(layout, records):
        run = view.transpose(0, 4, 1, 2, 3, 5).reshape(tiles, TILE_ROWS, blocks, field.nbytes)
        out[..., field.start : field.start + field.nbytes] = run if field.decode is None else field.decode(run)
    return out


def _record_views(layout: BlockLayout, records: Bytes) -> list[tuple[Field, Bytes]]:
    """Each field with its place in the records, ``[tiles, blocks, groups, words, 16, word_bytes]``."""
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
