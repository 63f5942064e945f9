"""The precompiled header of the system's headers: used where it can be, never seen in objects."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from inferc.codegen import build, system_headers
from inferc.codegen.build import Source, compile_sources
from inferc.codegen.cache import Cache, digest
from inferc.codegen.headers import reached_headers
from inferc.codegen.render import INCLUDE
from inferc.codegen.system_headers import HeaderKey, find_system_header, make_system_header
from inferc.codegen.targets import CpuTarget, parse_target
from inferc.codegen.toolchain import SYSTEM_HEADER, Compiler, find_compiler
from inferc.errors import ToolchainError

NATIVE = parse_target("cpu:native")
COMPILER = find_compiler()
SOURCES = tuple(
    Source(f"{name}.cpp", code, code)
    for name, code in {
        "vectors": """#include "inferc/step.h"
#include "inferc/vmath.h"
using namespace inferc;
extern "C" void vectors(const float *x, float *y) { store(y, exp(load(x)) + tanh(load(x))); }
""",
        "rows": """#include "inferc/rows.h"
using namespace inferc;
extern "C" void rows(const float *x, const float *w, float *y, int64_t n, int64_t width) {
    rms_norm(x, width, w, 1e-6f, y, width, n, width, 0, 1);
}
""",
        "blocks": """#include "inferc/rows.h"
using namespace inferc;
extern "C" void blocks(const void *w, const int32_t *ids, int64_t tokens, float *out) {
    embedding_n16<Q4_1>(w, ids, tokens, 64, 1.0f, out, 64, 0, 1);
}
""",
        "barrier": """#include "inferc/pool.h"
extern "C" void barrier(inferc::Pool *pool) { inferc::pool_barrier(pool); }
""",
    }.items()
)

needs_gcc = pytest.mark.skipif(not COMPILER.is_gcc, reason="the C++ compiler is not gcc")


def objects(
    cache: Cache,
    target: CpuTarget = NATIVE,
    compiler: Compiler = COMPILER,
    sources: Sequence[Source] = SOURCES,
) -> Mapping[str, bytes]:
    made = compile_sources(sources, target, compiler, cache, lambda *told: None)
    return {s.file_name: made[s.file_name].read_bytes() for s in sources}


def without_header(folder: Path, target: CpuTarget) -> Mapping[str, bytes]:
    """Objects of a compiler that is not known to take the header."""
    made = objects(Cache(folder), target, replace(COMPILER, is_gcc=False))
    assert not list(folder.rglob("*.gch"))
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Objects for this machine, made without the header."""
    return without_header(tmp_path_factory.mktemp("plain"), NATIVE)


def headers_read(target: CpuTarget, header: Path) -> str:
    """What gcc says of the files that it reads for one kernel."""
    command = [*COMPILER.command, *COMPILER.flags(target), "-H", "-Winvalid-pch", "-S"]
    command += ["-I", str(INCLUDE), "-include", str(header.with_suffix("")), "-o", "/dev/null"]
    done = subprocess.run(
        [*command, "-x", "c++", "-"], input=SOURCES[0].code, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def native_header(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The precompiled header for this machine: where it lies in a cache, and what it holds."""
    root = tmp_path_factory.mktemp("header")
    made = make_system_header(COMPILER, NATIVE, Cache(root))
    assert made is not None
    return made.relative_to(root), made.read_bytes()


def cache_with_header(root: Path, header: tuple[Path, bytes]) -> Cache:
    path, content = header
    (root / path).parent.mkdir(parents=True)
    (root / path).write_bytes(content)
    assert find_system_header(COMPILER, NATIVE, Cache(root)) == root / path
    return Cache(root)


def check_use(header: Path | None, target: CpuTarget) -> None:
    assert header is not None
    said = headers_read(target, header)
    assert f"! {header}" in said and "invalid-pch" not in said
    assert not re.search(r"/(avxintrin|bits/sched)\.h$", said, re.M), "what is in it was read again"


@needs_gcc
def test_several_kernels_are_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: Mapping[str, bytes]
) -> None:
    few, many = Cache(tmp_path / "few"), Cache(tmp_path / "many")
    objects(few, sources=SOURCES[:1])
    assert find_system_header(COMPILER, NATIVE, few) is None
    for times in range(2):
        if times:  # with the header from the first object on
            for path in many.root.rglob("*.o"):
                path.unlink()
        assert objects(many) == plain
        check_use(find_system_header(COMPILER, NATIVE, many), NATIVE)
    monkeypatch.setattr(build, "make_system_header", None)  # nothing is missing: not asked for
    objects(many)


@needs_gcc
@pytest.mark.parametrize("name", ["cpu:x86-64-v4+vnni+bf16", "cpu:portable"])
def test_objects_of_other_targets_are_the_same(name: str, tmp_path: Path) -> None:
    target, cache = parse_target(name), Cache(tmp_path / "with")
    if target.machine != NATIVE.machine:
        pytest.skip("the compiler is of another machine")
    check_use(make_system_header(COMPILER, target, cache), target)
    expected = without_header(tmp_path / "without", target)
    assert objects(cache, target) == expected


@needs_gcc
def test_one_that_is_rejected(
    tmp_path: Path, native_header: tuple[Path, bytes], plain: Mapping[str, bytes]
) -> None:
    """The header itself is read in its place."""
    other = make_system_header(COMPILER, parse_target("cpu:portable"), Cache(tmp_path / "other"))
    assert other is not None
    place, whole = native_header
    wrong = (b"", whole[: len(whole) // 2], b"words " * 1000, other.read_bytes())
    for number, content in enumerate(wrong):
        cache = cache_with_header(tmp_path / str(number), (place, content))
        made = objects(cache, sources=SOURCES[:1])
        assert all(plain[name] == content for name, content in made.items())


@needs_gcc
def test_a_folder_that_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: Mapping[str, bytes]
) -> None:
    """A full disk, for instance, that still has room for objects."""

    def full(self: Compiler, header: Path, output: Path, target: CpuTarget) -> None:
        output.write_bytes(b"gpch")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Compiler, "compile_header", full)
    assert make_system_header(COMPILER, NATIVE, Cache(tmp_path)) is None
    made = objects(Cache(tmp_path), sources=SOURCES[:1])
    assert all(plain[name] == content for name, content in made.items())
    assert not list(tmp_path.rglob("*.gch")), "half of one"


@needs_gcc
def test_a_source_that_fails_is_told_without_it(
    tmp_path: Path, native_header: tuple[Path, bytes]
) -> None:
    cache = cache_with_header(tmp_path, native_header)
    bad = Source("bad.cpp", "", '#include "inferc/simd.h"\nint f() { return nothing; }\n')
    with pytest.raises(
        ToolchainError, match=r"(?s)when compiling bad.cpp.*-include inferc/system.h"
    ):
        compile_sources([bad], NATIVE, COMPILER, cache, lambda *told: None)


def test_only_gcc_is_asked(tmp_path: Path) -> None:
    other = Compiler(("no-such-compiler",), "clang 1")
    assert make_system_header(other, NATIVE, Cache(tmp_path)) is None
    assert find_system_header(other, NATIVE, Cache(tmp_path)) is None


def test_gcc_is_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "g++ (GCC) 13.2.1\nCopyright (C) 2023 Free Software Foundation, Inc.": True,
        "Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu": False,
    }
    for number, (words, is_gcc) in enumerate(said.items()):
        fake = tmp_path / f"cc{number}"
        fake.write_text(f"#!/bin/sh\necho '{words}'\n")
        fake.chmod(0o755)
        monkeypatch.setenv("CXX", str(fake))
        assert find_compiler().is_gcc == is_gcc


def test_every_field_is_in_the_key() -> None:
    base = HeaderKey("text", ("-O3",), "gcc 12")
    others = [
        HeaderKey("x", ("-O3",), "gcc 12"),
        HeaderKey("text", ("-O2",), "gcc 12"),
        HeaderKey("text", ("-O3",), "gcc 13"),
    ]
    assert len({digest(key) for key in [base, *others]}) == 4


@needs_gcc
def test_the_key_knows_macros_of_system_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header of the system that changes makes another precompiled one."""
    monkeypatch.setattr(system_headers, "INCLUDE", tmp_path)
    (tmp_path / "inferc").mkdir()
    (tmp_path / SYSTEM_HEADER).write_text("#include <part.h>\n")
    monkeypatch.setenv("CPATH", str(tmp_path))
    made = set()
    for text in ("", "#define PART 1\n", "#define PART 2\n"):
        (tmp_path / "part.h").write_text(text)
        system_headers._key_of.cache_clear()
        made.add(make_system_header(COMPILER, NATIVE, Cache(tmp_path / "cache")))
    system_headers._key_of.cache_clear()
    assert None not in made and len(made) == 3


def test_objects_know_their_headers_and_the_options_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "reached_headers", partial(reached_headers, include=tmp_path))
    (tmp_path / "inferc").mkdir()
    key = partial(build._object_key, SOURCES[0], NATIVE)
    made = [key(COMPILER), key(replace(COMPILER, command=(*COMPILER.command, "-mno-fma")))]
    for name in (SYSTEM_HEADER, "inferc/vmath.h"):
        (tmp_path / name).write_text("")
        made.append(key(COMPILER))
    assert len(set(made)) == 4
    (tmp_path / "inferc/rows.h").write_text("")  # not reached
    assert key(COMPILER) == made[-1]


def test_it_includes_what_kernels_take_of_the_system() -> None:
    """A header that is missing there is read again for every kernel."""
    wanted = set()
    for path in INCLUDE.glob("inferc/*.h"):
        wanted |= set(re.findall(r"#\s*include (<.*>)", path.read_text()))
    known = set(re.findall(r"#include (<.*>)", (INCLUDE / SYSTEM_HEADER).read_text()))
    assert wanted == known
