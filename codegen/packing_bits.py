"""Bit orders of the integers in block formats: as stored in GGUF, and as the kernels read them.

Pairs ``x_encode`` and ``x_decode`` on the last axis of ``u8[..., n]``, for one field of a block.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_TWO_BITS = np.uint64(0x0303030303030303)


def _split(packed: Bytes, axis: int) -> Bytes:
    """Lower and upper halves of bytes, one behind the other along ``axis``."""
    halves: Bytes = np.concatenate([packed & 15, packed >> 4], axis=axis)
    return halves


def _over(low: Bytes, high: Bytes, shift: int) -> Bytes:
    """``high`` moved up, above ``low``."""
    both: Bytes = np.bitwise_or(low, np.left_shift(high, np.uint8(shift)))
    return both


def _join(halves: Bytes) -> Bytes:
    """Bytes of lower halves ``[..., 0, :]`` and upper halves ``[..., 1, :]``."""
    return _over(halves[..., 0, :], halves[..., 1, :], 4)


def _bits(run: Bytes) -> Bytes:
    return np.unpackbits(run, axis=-1, bitorder="little")


def _pack_bits(bits: Bytes) -> Bytes:
    return np.packbits(bits, axis=-1, bitorder="little")


def _swap_last(x: Bytes, rows: int, columns: int) -> Bytes:
    """Transposes the last axis seen as ``[rows, columns]``."""
    lead = x.shape[:-1]
    return np.ascontiguousarray(x.reshape(*lead, rows, columns).swapaxes(-1, -2)).reshape(
        *lead, rows * columns
    )


def pairs_encode(run: Bytes) -> Bytes:
    """Nibbles 2i and 2i + 1 of byte i: of each 32, element j below and 16 + j above, as in q4_0."""
    lead = run.shape[:-1]
    e = np.stack([run & 15, run >> 4], axis=-1).reshape(*lead, -1, 2, 16)
    return _join(e).reshape(*lead, -1)


def pairs_decode(run: Bytes) -> Bytes:
    """The reverse of :func:`pairs_encode`."""
    lead = run.shape[:-1]
    e = _split(run.reshape(*lead, -1, 16), -1).reshape(*lead, -1, 2)
    return _over(e[..., 0], e[..., 1], 4)


def less_128(run: Bytes) -> Bytes:
    """Unsigned bytes as signed ones, less 128; its own reverse."""
    return run ^ np.uint8(128)


def fifth_encode(run: Bytes) -> Bytes:
    """Bit k = 4v + i of 32 goes to bit 8i + v."""
    return _pack_bits(_swap_last(_bits(run), 8, 4))


def fifth_decode(run: Bytes) -> Bytes:
    """The reverse of :func:`fifth_encode`."""
    return _pack_bits(_swap_last(_bits(run), 4, 8))


def _elements_of_pairs(run: Bytes) -> Bytes:
    """Nibbles of q4_k, q5_k: of each 32 bytes, lower halves are a group, upper halves the next."""
    lead = run.shape[:-1]
    halves = run.reshape(*lead, 4, 1, 32)
    return _split(halves, -2).reshape(*lead, 256)


def k_nibbles_encode(run: Bytes) -> Bytes:
    """Elements of a group of 32 as in q4_0: byte j has element j below and 16 + j above."""
    lead = run.shape[:-1]
    e = _elements_of_pairs(run).reshape(*lead, 8, 2, 16)
    return _join(e).reshape(*lead, 128)


def k_nibbles_decode(run: Bytes) -> Bytes:
    """The reverse of :func:`k_nibbles_encode`."""
    lead = run.shape[:-1]
    words = run.reshape(*lead, 8, 16)
    e = _split(words, -1).reshape(*lead, 4, 2, 32)
    return _join(e).reshape(*lead, 128)


def k_fifth_encode(run: Bytes) -> Bytes:
    """q5_k: bit g of byte j, fifth bit of element j of group g, to word g, bit 8i + v."""
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # v, i, group
    return _pack_bits(np.moveaxis(bits, -1, -3).swapaxes(-1, -2).reshape(*lead, 256))


def k_fifth_decode(run: Bytes) -> Bytes:
    """The reverse of :func:`k_fifth_encode`."""
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # group, i, v
    return _pack_bits(np.moveaxis(bits.swapaxes(-1, -2), -3, -1).reshape(*lead, 256))


def _twos(run: Bytes) -> Bytes:
    """Elements of stored 2-bit runs: of each 32 bytes, bits 2s are elements 32s .. 32s + 31."""
    lead = run.shape[:-1]
    words = np.ascontiguousarray(run).reshape(*lead, -1, 32).view(np.uint64)
    planes = [(words >> np.uint64(2 * s)) & _TWO_BITS for s in range(4)]
    return np.stack(planes, axis=-2).view(np.uint8).reshape(*lead, -1)


def _twos_back(elements: Bytes) -> Bytes:
    lead = elements.shape[:-1]
    planes = np.ascontiguousarray(elements).reshape(*lead, -1, 4, 32).view(np.uint64)
    words = planes[..., 0, :]
    for s in range(1, 4):
        words = words | planes[..., s, :] << np.uint64(2 * s)
    return words.view(np.uint8).reshape(*lead, -1)


def _two_words(elements: Bytes) -> Bytes:
    """Element 4v + i of each 16 to bit 8i + 2v of a word."""
    lead = elements.shape[:-1]
    quads = np.ascontiguousarray(elements).view(np.uint32).reshape(*lead, -1, 4)
    words = quads[..., 0]
    for v in range(1, 4):
        words = words | quads[..., v] << np.uint32(2 * v)
    return np.ascontiguousarray(words).view(np.uint8).reshape(*lead, -1)


def _two_words_back(run: Bytes) -> Bytes:
    lead = run.shape[:-1]
    words = np.ascontiguousarray(run).view(np.uint32)
    quads = [(words >> np.uint32(2 * v)) & np.uint32(0x03030303) for v in range(4)]
    return np.stack(quads, axis=-1).view(np.uint8).reshape(*lead, -1)


def two_bits_encode(run: Bytes) -> Bytes:
    """Stored 2-bit runs to words of 16 elements, element 4v + i at bit 8i + 2v."""
    return _two_words(_twos(run))


def two_bits_decode(run: Bytes) -> Bytes:
    """The reverse of :func:`two_bits_encode`."""
    return _twos_back(_two_words_back(run))


def q3_high_encode(run: Bytes) -> Bytes:
    """Bit s of byte j, third bit of element 32s + j, to word s, bit 8i + 4(g & 1) + v."""
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # byte j = 16 half + 4v + i as [half v][i]; then s
    by_group = np.moveaxis(bits, -1, -3)  # s, (half v), i
    return _pack_bits(by_group.swapaxes(-1, -2).reshape(*lead, 256))


def q3_high_decode(run: Bytes) -> Bytes:
    """The reverse of :func:`q3_high_encode`."""
    lead = run.shape[:-1]
    bits = _bits(run).reshape(*lead, 8, 4, 8)  # s, i, (half v)
    return _pack_bits(np.moveaxis(bits.swapaxes(-1, -2), -3, -1).reshape(*lead, 256))


def _q6_low_elements(run: Bytes) -> Bytes:
    """q6_k nibbles: of each 64 bytes, lower halves are elements 0..63, upper halves 64..127."""
    lead = run.shape[:-1]
    halves = run.reshape(*lead, 2, 1, 64)
    return _split(halves, -2).reshape(*lead, 256)


def q6_encode(run: Bytes) -> Bytes:
    """Nibbles and two-bit runs of q6_k to three words for each 16 elements.

    Byte i of word v has element 4v + i below, and above, from word 0 on, bits 4, 2 and 0 of
    element 12 + i.
    """
    lead = run.shape[:-1]
    low, high = _q6_low_elements(run[..., :128]), _twos(run[..., 128:])
    quads = _over(low, high, 4).reshape(*lead, 16, 4, 4)
    last = np.stack([(quads[..., 3, :] >> shift) & 3 for shift in (4, 2, 0)], axis=-2)
    return _over(quads[..., :3, :], last, 6).reshape(*lead, 192)


def q6_decode(run: Bytes) -> Bytes:
    """The reverse of :func:`q6_encode`."""
    lead = run.shape[:-1]
    words = run.reshape(*lead, 16, 3, 4)
    last: Bytes = np.right_shift(words, np.uint8(6))
    fourth = _over(last[..., 2:, :], _over(last[..., 1:2, :], last[..., :1, :], 2), 2)
    elements: Bytes = np.concatenate([words & 63, fourth], axis=-2).reshape(*lead, 256)
    low: Bytes = np.bitwise_and(elements, np.uint8(15))
    high: Bytes = np.right_shift(elements, np.uint8(4))
    return np.concatenate([_q6_low_bytes(low), _twos_back(high)], axis=-1)


def _q6_low_bytes(elements: Bytes) -> Bytes:
    """The reverse of :func:`_q6_low_elements`."""
    lead = elements.shape[:-1]
    return _join(elements.reshape(*lead, 2, 2, 64)).reshape(*lead, 128)
