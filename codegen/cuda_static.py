"""What a cubin says of its kernels, read without a GPU: resources, and machine instructions.

Resources are read from the file itself. It is an ELF file: `.nv.info` lists attributes of kernels
(their numbers as in cuobjdump's `EIATTR_*`), `.nv.shared.NAME` is as long as static shared memory.
Instructions are read by nvdisasm (of the toolkit, or PyPI's nvidia-cuda-nvdisasm).
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from inferc.codegen.cache import Cache, digest
from inferc.codegen.cuda_occupancy import RESERVED_SHARED_BYTES
from inferc.codegen.cuda_toolchain import find_tool
from inferc.codegen.toolchain import tell_version
from inferc.errors import ToolchainError

_MAX_THREADS, _FRAME_SIZE, _MIN_STACK_SIZE, _REGISTER_COUNT, _BARRIERS = (
    0x05,
    0x11,
    0x12,
    0x2F,
    0x4C,
)
_NOBITS = 8  # sh_type of a section that takes no room in the file
_SIZED = 4  # form of an attribute that is followed by its value
_ENTRY = 0x10  # STO_CUDA_ENTRY in a symbol's st_other
_SHARED_INCLUDES_RESERVED = 90  # from this architecture on
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_SECTION = re.compile(r"^//-+ \.text\.(\S+)", re.M)
_WARNING = re.compile(r"^ptxas.*(warning|performance loss|serialized)", re.I)


@dataclass(frozen=True)
class KernelResources:
    """What one kernel takes.

    Attributes:
        name: of the `__global__` function.
        registers: of a thread.
        local_bytes: of a thread, in device memory: spilled registers, and arrays that are indexed
            by what is not known when compiling. Fast kernels have none.
        shared_bytes: static, of a block.
        barriers: named barriers of a block.
        threads: most of a block (`__launch_bounds__`); None: not bounded.
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    barriers: int
    threads: int | None


def read_resources(cubin: Path) -> tuple[KernelResources, ...]:
    """Resources of every kernel of a cubin, by name. Raises ToolchainError: it is no cubin."""
    try:
        elf = _Elf(cubin.read_bytes())
        return tuple(_resources(elf, name) for name in sorted(elf.kernels()))
    except (struct.error, ValueError, IndexError) as error:
        raise ToolchainError(f"{cubin}: this is not a cubin that can be read ({error}).") from error


def read_instructions(cubin: Path, nvdisasm: str) -> Mapping[str, Mapping[str, int]]:
    """How often each machine instruction stands in each kernel, such as `LDG.E.128`: by kernel."""
    done = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"nvdisasm failed on {cubin}: {done.stderr.strip()[:300]}")
    parts = _SECTION.split(done.stdout)
    return {
        name: dict(Counter(_OPCODE.findall(text)))
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


@dataclass(frozen=True)
class InstructionsKey:
    """What the instructions of a cubin depend on."""

    cubin: str
    disassembler: str


def cached_instructions(
    cubin: Path, nvdisasm: str, cache: Cache
) -> Mapping[str, Mapping[str, int]]:
    """The same, read once: nvdisasm takes as long as a compiler."""
    content = hashlib.sha256(cubin.read_bytes()).hexdigest()

    def make(output: Path) -> None:
        output.write_text(json.dumps(read_instructions(cubin, nvdisasm)), encoding="utf-8")

    key = digest(InstructionsKey(content, _version(nvdisasm)))
    found: dict[str, dict[str, int]] = json.loads(cache.store(key, ".sass.json", make).read_text())
    return found


@once
def _version(nvdisasm: str) -> str:
    return tell_version([nvdisasm, "--version"], "disassembler")


def find_disassembler() -> str:
    """Path of nvdisasm. Raises ToolchainError with what to install."""
    found = find_tool("nvdisasm")
    if found is None:
        raise ToolchainError(
            "nvdisasm was not found on the path, in $CUDA_HOME or $CUDA_PATH, or among PyPI's"
            " packages: `pip install nvidia-cuda-nvdisasm`."
        )
    return found


def count_instruction(instructions: Mapping[str, int], wanted: str) -> int:
    """How often an instruction occurs: `LDG.128` is any LDG with the modifier 128."""
    name, *modifiers = wanted.split(".")
    total = 0
    for found, count in instructions.items():
        found_name, *found_modifiers = found.split(".")
        if found_name == name and set(modifiers) <= set(found_modifiers):
            total += count
    return total


def declared_instructions(declared: Mapping[str, tuple[str, ...]], arch: str) -> tuple[str, ...]:
    """What a kernel definition's `instructions` ask of an architecture."""
    return (*declared.get("", ()), *declared.get(arch, ()))


def compiler_warnings(messages: str) -> list[str]:
    """Lines of ptxas that tell of something lost, such as wgmma made to wait for each other."""
    return [line.strip() for line in messages.splitlines() if _WARNING.search(line)]


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size: int
    content: bytes


class _Elf:
    """Sections and symbols of a 64-bit little-endian ELF file."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit ELF file")
        (flags,) = struct.unpack_from("<I", data, 48)
        # LLVM's ELF.h: EF_CUDA_SM lies in the second byte from ABI version 8 on.
        self.sm = flags >> 8 & 0xFF if data[8] >= 8 else flags & 0xFF
        (start,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        rows = [struct.unpack_from("<IIQQQQII", data, start + i * size) for i in range(count)]
        text = rows[names][4]
        self.sections: dict[str, _Section] = {}
        self.by_index: list[_Section] = []
        for name_at, kind, _, _, offset, length, _, _ in rows:
            name = _string(data, text + name_at)
            stored = b"" if kind == _NOBITS else data[offset : offset + length]
            self.by_index.append(_Section(name, kind, length, stored))
            self.sections[name] = self.by_index[-1]
        strings = self.sections[".strtab"].content
        self.symbols = [
            (_string(strings, name_at), other)
            for name_at, _, other in struct.iter_unpack("<IBB18x", self.sections[".symtab"].content)
        ]

    def kernels(self) -> list[str]:
        """Names of `__global__` functions."""
        return [name for name, other in self.symbols if other & _ENTRY]

    def attributes(self, section: str) -> Iterator[tuple[int, bytes]]:
        """Attributes of an `.nv.info` section: number and value."""
        found = self.sections.get(section)
        content, at = found.content if found else b"", 0
        while at < len(content):
            form, number, short = struct.unpack_from("<BBH", content, at)
            at += 4
            length = short if form == _SIZED else 0
            yield number, content[at : at + length] if form == _SIZED else struct.pack("<H", short)
            at += length


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _resources(elf: _Elf, name: str) -> KernelResources:
    of_file: dict[int, int] = {}
    for number, value in elf.attributes(".nv.info"):
        if number in (_REGISTER_COUNT, _FRAME_SIZE, _MIN_STACK_SIZE):
            symbol, amount = struct.unpack("<II", value)
            if elf.symbols[symbol][0] == name:
                of_file[number] = amount
    own = dict(elf.attributes(f".nv.info.{name}"))
    bounds = struct.unpack("<III", own[_MAX_THREADS]) if _MAX_THREADS in own else None
    shared = elf.sections.get(f".nv.shared.{name}")
    reserved = RESERVED_SHARED_BYTES if elf.sm >= _SHARED_INCLUDES_RESERVED else 0
    return KernelResources(
        name,
        registers=of_file[_REGISTER_COUNT],
        local_bytes=max(of_file.get(_FRAME_SIZE, 0), of_file.get(_MIN_STACK_SIZE, 0)),
        shared_bytes=max(0, shared.size - reserved) if shared else 0,
        barriers=own.get(_BARRIERS, b"\0")[0],
        threads=bounds[0] * bounds[1] * bounds[2] if bounds else None,
    )
