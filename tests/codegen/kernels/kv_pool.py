"""Pages of keys or values as the kernels lay them out, and what numbers become in them."""

import numpy as np
from kernel_library import Guarded
from weights_cases import from_bf16, to_bf16

KINDS = ("f32", "bf16", "f16", "i8")  # in the order of library_other.cpp


def codes_and_scales(x):
    """Heads [..., dim] as integers and a scale a head: the largest magnitude is 127."""
    scales = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    return np.rint(x / scales).astype(np.int8), scales


def widen(kind, x):
    """What pages of a kind hold of x, as float64."""
    if kind == "i8":
        return np.multiply(*codes_and_scales(x), dtype=np.float64)
    return {
        "f32": lambda: x,
        "bf16": lambda: from_bf16(to_bf16(x)),
        "f16": lambda: x.astype(np.float16),
    }[kind]().astype(np.float64)


class Pool:
    """Pages of K (axis 2: dims) or V (axis 3); unwritten slots hold NaN, of i8 in their scales."""

    def __init__(self, kind, shape, axis):
        self.kind, scaled = kind, kind == "i8"
        dtype, self.nan = {"f32": (np.float32, np.nan), "i8": (np.int8, 0x55)}.get(
            kind, (np.uint16, 0x7FFF)
        )
        pages, heads, *page = shape
        tokens, count = shape[5 - axis], page[0] * page[1]
        self.memory = Guarded((pages, heads, count + 4 * tokens * scaled), dtype, self.nan)
        self.numbers = self.memory.array[..., :count].reshape(shape)
        assert np.shares_memory(self.numbers, self.memory.array)
        self.scales = None
        if scaled:
            scales = self.memory.array[..., count:].view(np.float32)
            scales[:] = np.nan
            self.scales = np.expand_dims(scales, axis)

    def write(self, where, x):
        if self.kind == "i8":
            self.numbers[where], self.scales[where] = codes_and_scales(x)
        elif self.kind == "f32":
            self.numbers[where] = x
        else:
            self.numbers[where] = to_bf16(x) if self.kind == "bf16" else x.astype("f2").view("u2")

    def read(self, where):
        """As float64."""
        x = self.numbers[where]
        if self.kind == "i8":
            with np.errstate(invalid="ignore"):  # codes of zero by a scale that is none
                return np.multiply(x, self.scales[where], dtype=np.float64)
        if self.kind == "bf16":
            x = from_bf16(x)
        return (x.view(np.float16) if self.kind == "f16" else x).astype(np.float64)

    def untouched(self, where):
        """Whether the slots are as they were made."""
        as_made = np.isnan if self.kind == "f32" else lambda x: x == self.nan
        rest = [as_made(self.numbers[where])]
        if self.scales is not None:
            rest.append(np.isnan(self.scales[where]))
        return all(part.all() for part in rest)
