"""Weights to the tiled layout the CPU kernels read, and back, without loss.

Layout ``n16``: rows are padded with zero rows to a multiple of 16 and cut into tiles of 16; a tile
is contiguous.

* f32, f16, f8e4m3: ``[N/16][K][16]``; bf16: ``[N/16][K/2][16][2]``; an odd K gets one zero column.
* i8: ``[N/16][K/4][16][4]``, zero columns up to a multiple of 32.
* block formats: ``[N/16][K/block]`` records, see :mod:`inferc.codegen.packing_blocks`.

Layout ``n16_pair`` of two matrices of one shape (gate and up): their tiles take turns,
g0 u0 g1 u1 ...

Rows come and go as stored bytes ``u8[N, row_bytes]``. Packing takes one tensor at a time and holds
it, its packed form and one chunk of tiles.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inferc.codegen.packing_blocks import BLOCK_LAYOUTS, TILE_ROWS, pack_blocks, unpack_blocks

Bytes = NDArray[np.uint8]

DENSE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "i8": 1}
FORMATS = (*DENSE_BYTES, *BLOCK_LAYOUTS)
INTEGERS = ("i8", *(f for f in BLOCK_LAYOUTS if f not in ("f8_g128", "nf4_g64", "fp4_g64")))
"""Formats whose elements are integers times a scale: those that integer arithmetic takes."""

# Elements of a row that stay together, and what K is padded to.
_DENSE_UNIT = {"bf16": 2, "i8": 4}
_DENSE_K = {"i8": 32}

# Tiles are converted in chunks of about this size, so that temporaries stay small and in the cache.
_CHUNK_BYTES = 1 << 20


def row_bytes(fmt: str, k: int) -> int:
    """Bytes of a stored row of ``k`` elements."""
    if fmt in DENSE_BYTES:
        return k * DENSE_BYTES[fmt]
    if fmt not in BLOCK_LAYOUTS:
        raise ValueError(f"weight format {fmt!r} is unknown; known are {', '.join(FORMATS)}")
    layout = BLOCK_LAYOUTS[fmt]
    if k % layout.block_elements:
        raise ValueError(
            f"{fmt} stores {layout.block_elements} elements a block; rows of {k} do not divide"
        )
    return k // layout.block_elements * layout.block_bytes


def tile_bytes(fmt: str, k: int) -> int:
    """Bytes of one tile of 16 rows."""
    return TILE_ROWS * row_bytes(fmt, _padded_k(fmt, k))


def packed_bytes(fmt: str, n: int, k: int) -> int:
    """Bytes of a packed ``[n, k]`` matrix."""
    return _tiles(n) * tile_bytes(fmt, k)


def packed_pair_bytes(fmt: str, n: int, k: int) -> int:
    """Bytes of two interleaved ``[n, k]`` matrices."""
    return 2 * packed_bytes(fmt, n, k)


def pack(fmt: str, rows: Bytes) -> Bytes:
    """Stored rows ``u8[N, row_bytes]`` to ``u8[packed_bytes]``."""
    out = np.empty((_tiles(rows.shape[0]), _tile_bytes_of(fmt, rows)), np.uint8)
    _pack_into(fmt, rows, out)
    return out.reshape(-1)


def unpack(fmt: str, packed: Bytes, n: int, k: int) -> Bytes:
    """The reverse of :func:`pack`."""
    _expect_size(fmt, packed, packed_bytes(fmt, n, k), n, k)
    return _unpack_from(fmt, packed.reshape(_tiles(n), -1), n, k)


def pack_pair(fmt: str, gate: Bytes, up: Bytes) -> Bytes:
    """Two matrices of one shape, tiles taking turns."""
    if gate.shape != up.shape:
        raise ValueError(
            f"a gated pair needs equal shapes (rows, bytes): gate {gate.shape}, up {up.shape}"
        )
    out = np.empty((_tiles(gate.shape[0]), 2, _tile_bytes_of(fmt, gate)), np.uint8)
    _pack_into(fmt, gate, out[:, 0])
    _pack_into(fmt, up, out[:, 1])
    return out.reshape(-1)


def unpack_pair(fmt: str, packed: Bytes, n: int, k: int) -> tuple[Bytes, Bytes]:
    """The reverse of :func:`pack_pair`."""
    _expect_size(fmt, packed, packed_pair_bytes(fmt, n, k), n, k)
    tiles = packed.reshape(_tiles(n), 2, -1)
    return _unpack_from(fmt, tiles[:, 0], n, k), _unpack_from(fmt, tiles[:, 1], n, k)


def has_nan(fmt: str, rows: Bytes) -> bool:
    """Whether rows hold one of the codes that stand for NaN and that kernels read as numbers."""
    if fmt == "f8e4m3":
        return bool(((rows & 127) == 127).any())
    if fmt in ("f8_g128", "mxfp4"):
        blocks = rows.reshape(-1, BLOCK_LAYOUTS[fmt].block_bytes)
        codes = blocks[:, 4:] & 127 == 127 if fmt == "f8_g128" else blocks[:, 0] == 255
        return bool(codes.any())
    return False


def _tiles(n: int) -> int:
    return -(-n // TILE_ROWS)


def _padded_k(fmt: str, k: int) -> int:
    multiple = _DENSE_K.get(fmt, 2)
    return -(-k // multiple) * multiple if fmt in DENSE_BYTES else k


def _k_of(fmt: str, nbytes: int) -> int:
    unit_bytes, unit = (DENSE_BYTES[fmt], 1) if fmt in DENSE_BYTES else _block_unit(fmt)
    if nbytes % unit_bytes:
        raise ValueError(
            f"a row of {fmt} is a multiple of {unit_bytes} bytes; got rows of {nbytes} bytes"
        )
    return nbytes // unit_bytes * unit


def _block_unit(fmt: str) -> tuple[int, int]:
    row_bytes(fmt, 0)  # names an unknown format
    return BLOCK_LAYOUTS[fmt].block_bytes, BLOCK_LAYOUTS[fmt].block_elements


def _tile_bytes_of(fmt: str, rows: Bytes) -> int:
    return tile_bytes(fmt, _k_of(fmt, rows.shape[1]))


def _expect_size(fmt: str, packed: Bytes, nbytes: int, n: int, k: int) -> None:
    if packed.nbytes != nbytes:
        raise ValueError(f"packed {fmt}[{n}, {k}] has {nbytes} bytes; got {packed.nbytes}")


def _chunks(tiles: int, one_tile_bytes: int) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // max(1, one_tile_bytes))
    for begin in range(0, tiles, step):
        yield slice(begin, min(tiles, begin + step))


def _pack_into(fmt: str, rows: Bytes, out: Bytes) -> None:
    """Fills ``out[tiles, tile_bytes]``, chunk by chunk."""
    for chunk in _chunks(out.shape[0], out.shape[1]):
        part = rows[chunk.start * TILE_ROWS : chunk.stop * TILE_ROWS]
        out[chunk] = _pack_tiles(fmt, _padded(fmt, part, chunk.stop - chunk.start))


def _padded(fmt: str, part: Bytes, tiles: int) -> Bytes:
    """Whole tiles ``u8[tiles, 16, row_bytes]``: zero rows below, a zero column behind odd K."""
    nbytes = row_bytes(fmt, _padded_k(fmt, _k_of(fmt, part.shape[1])))
    if part.shape != (tiles * TILE_ROWS, nbytes):
        whole = np.zeros((tiles * TILE_ROWS, nbytes), np.uint8)
        whole[: part.shape[0], : part.shape[1]] = part
        part = whole
    return part.reshape(tiles, TILE_ROWS, nbytes)


def _pack_tiles(fmt: str, rows: Bytes) -> Bytes:
    tiles = rows.shape[0]
    if fmt in DENSE_BYTES:
        unit = DENSE_BYTES[fmt] * _DENSE_UNIT.get(fmt, 1)
        return rows.reshape(tiles, TILE_ROWS, -1, unit).transpose(0, 2, 1, 3).reshape(tiles, -1)
    layout = BLOCK_LAYOUTS[fmt]
    return pack_blocks(layout, rows.reshape(tiles, TILE_ROWS, -1, layout.block_bytes)).reshape(
        tiles, -1
    )


def _unpack_tiles(fmt: str, tiles: Bytes) -> Bytes:
    count = tiles.shape[0]
    if fmt in DENSE_BYTES:
        unit = DENSE_BYTES[fmt] * _DENSE_UNIT.get(fmt, 1)
        return (
            tiles.reshape(count, -1, TILE_ROWS, unit)
            .transpose(0, 2, 1, 3)
            .reshape(count * TILE_ROWS, -1)
        )
    layout = BLOCK_LAYOUTS[fmt]
    records = tiles.reshape(count, -1, TILE_ROWS * layout.block_bytes)
    return unpack_blocks(layout, records).reshape(count * TILE_ROWS, -1)


def _unpack_from(fmt: str, tiles: Bytes, n: int, k: int) -> Bytes:
    nbytes = row_bytes(fmt, k)
    out = np.empty((n, nbytes), np.uint8)
    for chunk in _chunks(tiles.shape[0], tiles.shape[1]):
        begin, end = chunk.start * TILE_ROWS, min(n, chunk.stop * TILE_ROWS)
        out[begin:end] = _unpack_tiles(fmt, np.ascontiguousarray(tiles[chunk]))[
            : end - begin, :nbytes
        ]
    return out
