"""gcc's precompiled header of what every kernel includes of the system.

It saves time and decides nothing: the same text is read without it, so objects are the same bytes,
and a compiler that rejects it, or a cache without room for it, costs only that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from inferc.codegen.cache import Cache, digest
from inferc.codegen.render import INCLUDE
from inferc.codegen.targets import CpuTarget
from inferc.codegen.toolchain import SYSTEM_HEADER, Compiler
from inferc.errors import ToolchainError

SUFFIX = ".gch"  # what gcc looks for behind the name of an included file


@dataclass(frozen=True)
class HeaderKey:
    """Everything that is baked into a precompiled header."""

    text: str
    flags: tuple[str, ...]
    compiler: str


def find_system_header(compiler: Compiler, target: CpuTarget, cache: Cache) -> Path | None:
    """The precompiled header of a target, or None where there is none, or none yet."""
    key = _key(compiler, target)
    return None if key is None else cache.find(key, SUFFIX)


def make_system_header(compiler: Compiler, target: CpuTarget, cache: Cache) -> Path | None:
    """As `find_system_header`, made when it is not there yet; None also when that fails."""
    key = _key(compiler, target)
    if key is None:
        return None

    def make(output: Path) -> None:
        compiler.compile_header(INCLUDE / SYSTEM_HEADER, output, target)

    try:
        return cache.store(key, SUFFIX, make)
    except ToolchainError:  # what is wrong shows again, and is told, when the kernels are compiled
        return None


def _key(compiler: Compiler, target: CpuTarget) -> str | None:
    """None: not gcc, or its header cannot be read."""
    if not compiler.is_gcc:
        return None
    header = (INCLUDE / SYSTEM_HEADER).read_text(encoding="utf-8")
    return _key_of(compiler, target, header)


@once
def _key_of(compiler: Compiler, target: CpuTarget, header: str) -> str | None:
    """The key by what the preprocessor makes of the header: the system's own may change."""
    try:
        text = compiler.preprocess(INCLUDE / SYSTEM_HEADER, target)
    except ToolchainError:
        return None
    return digest(HeaderKey(text, compiler.flags(target), compiler.identity))
