"""A shared library of another machine, called under an emulator as ctypes calls one of ours.

Arguments travel with the memory that they point to, and the memory comes back as the function left
it. What a pointer points to is known for arrays that were announced by `pointer` or `pointers`.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SYSROOT = Path("/usr/aarch64-linux-gnu")
HOW = "apt install g++-aarch64-linux-gnu qemu-user"


@dataclass(frozen=True)
class Tools:
    """Commands that compile for 64-bit Arm, and that run what was compiled."""

    compiler: str
    emulator: tuple[str, ...]


def find_tools() -> Tools | str:
    """The tools, or why they are missing."""
    compiler = shutil.which("aarch64-linux-gnu-g++")
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if compiler is None or emulator is None or not SYSROOT.is_dir():
        return f"no cross compiler, or no emulator, for 64-bit Arm ({HOW})"
    return Tools(compiler, (emulator, "-cpu", "max", "-L", str(SYSROOT)))


def compile_caller(source: Path, output: Path, tools: Tools) -> None:
    """Compile the program that calls libraries on the other machine."""
    subprocess.run([tools.compiler, "-O1", str(source), "-o", str(output)], check=True)


@dataclass(frozen=True)
class Owner:
    """Memory that a pointer leads into. `holds_pointers`: eight bytes each, and nothing else."""

    start: int
    nbytes: int
    holds_pointers: bool = False


_owners: dict[int, Owner] = {}  # by address, of the last array that was announced for it


def pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    """The address of an array; what may be reached by it is the array that owns the memory."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    _owners[array.ctypes.data] = Owner(owner.ctypes.data, owner.nbytes)
    return ctypes.c_void_p(array.ctypes.data)


def pointers(array: NDArray[np.uintp]) -> ctypes.c_void_p:
    """The address of an array of addresses."""
    start = array.ctypes.data
    _owners[start] = Owner(start, array.nbytes, holds_pointers=True)
    return ctypes.c_void_p(start)


@dataclass
class _Request:
    """Buffers of one call, and where pointers stand in them."""

    owners: dict[Owner, int] = field(default_factory=dict)
    places: list[tuple[int, int, int, int]] = field(default_factory=list)

    def argument(self, value: Any) -> tuple[int, int, int]:
        """Kind (0 number, 1 pointer, 2 float), value or buffer, offset."""
        inner = getattr(value, "_obj", value)  # of byref
        if isinstance(inner, ctypes.Structure):
            return 1, self._structure(inner), 0
        if isinstance(inner, ctypes.Array):
            start, size = ctypes.addressof(inner), ctypes.sizeof(inner)
            owner = Owner(start, size, inner._type_ is ctypes.c_void_p)
            return 1, self._buffer(owner), 0
        if isinstance(inner, ctypes.c_float):
            return 2, struct.unpack("<i", struct.pack("<f", inner.value))[0], 0
        if isinstance(inner, ctypes.c_void_p):
            return self._pointer(inner.value or 0)
        number = inner.value if isinstance(inner, ctypes._SimpleCData) else inner
        return 0, int(number or 0), 0

    def _pointer(self, address: int) -> tuple[int, int, int]:
        owner = _owners.get(address)
        if owner is None:  # null, or what a function of the library has returned
            return 0, address, 0
        return 1, self._buffer(owner), address - owner.start

    def _buffer(self, owner: Owner) -> int:
        if owner in self.owners:
            return self.owners[owner]
        number = self.owners[owner] = len(self.owners)
        if owner.holds_pointers:
            self._place(number, owner.start, range(0, owner.nbytes, 8))
        return number

    def _structure(self, value: ctypes.Structure) -> int:
        owner = Owner(ctypes.addressof(value), ctypes.sizeof(value))
        number = self._buffer(owner)
        named = [name for name, kind, *_ in value._fields_ if kind is ctypes.c_void_p]
        self._place(number, owner.start, [getattr(type(value), n).offset for n in named])
        return number

    def _place(self, holder: int, start: int, offsets: Sequence[int]) -> None:
        for at in offsets:
            address = ctypes.c_uint64.from_address(start + at).value
            kind, buffer, offset = self._pointer(address)
            if kind == 1:
                self.places.append((holder, at, buffer, offset))


class RemoteFunction:
    """A function by name; `restype` as for ctypes."""

    def __init__(self, library: RemoteLibrary, name: str) -> None:
        self.library, self.name = library, name
        self.restype: Any = ctypes.c_int

    def __call__(self, *values: Any) -> Any:
        request = _Request()
        arguments = [request.argument(value) for value in values]
        result = self.library.call(self.name, request, arguments)
        return None if self.restype is None else self.restype(result).value


class RemoteLibrary:
    """Functions by attribute or item, like those of a `ctypes.CDLL`. One emulator runs them all."""

    def __init__(self, library: Path, caller: Path, tools: Tools) -> None:
        command = [*tools.emulator, str(caller), str(library)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._function = cache(lambda name: RemoteFunction(self, name))

    def __getattr__(self, name: str) -> RemoteFunction:
        return self._function(name)

    __getitem__ = __getattr__

    def close(self) -> None:
        """End the emulator."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def call(self, name: str, request: _Request, arguments: Sequence[tuple[int, int, int]]) -> int:
        """Send a request, take the answer into the buffers; returns the function's result."""
        pieces = [_numbers(len(name)), name.encode(), _numbers(len(request.owners))]
        for owner in request.owners:
            pieces += [_numbers(owner.nbytes, owner.start % 64), _read(owner)]
        pieces.append(_numbers(len(request.places), *(n for p in request.places for n in p)))
        pieces.append(_numbers(len(arguments), *(n for a in arguments for n in a)))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"".join(pieces))
        self._process.stdin.flush()
        result = struct.unpack("<q", self._take(8, name))[0]
        with_pointers = {holder for holder, *_ in request.places}  # the other machine's
        for owner, number in request.owners.items():
            data = self._take(owner.nbytes, name)
            # What is unchanged may be mapped for reading only.
            if number not in with_pointers and data != _read(owner):
                ctypes.memmove(owner.start, data, owner.nbytes)
        return int(result)

    def _take(self, count: int, name: str) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        if len(data) != count:
            raise RuntimeError(f"{name}: the emulator ended with {self._process.wait()}")
        return data


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _read(owner: Owner) -> bytes:
    return ctypes.string_at(owner.start, owner.nbytes)
