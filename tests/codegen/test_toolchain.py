"""Finding compilers, and what is said when they are missing or fail."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from inferc.codegen import toolchain
from inferc.codegen.build import ObjectKey
from inferc.codegen.cache import Cache, digest, digest_files
from inferc.codegen.render import INCLUDE
from inferc.codegen.targets import parse_target
from inferc.codegen.toolchain import Compiler, find_compiler
from inferc.errors import ToolchainError

TARGET = parse_target("cpu:portable")


def test_cxx_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "mycc"
    fake.write_text("#!/bin/sh\necho mycc 1.2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", f"{fake} -O1")
    assert find_compiler() == Compiler((str(fake), "-O1"), "mycc 1.2")


def test_cxx_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="'no-such-compiler' is not on the path"):
        find_compiler()


def test_no_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"No C\+\+ compiler was found.*pip install ziglang"):
        find_compiler()


def test_no_cross_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of this machine is of no use, whatever $CXX says."""
    monkeypatch.setenv("CXX", "true")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    machine = "s390x"
    targets = [replace(TARGET, machine=machine)]
    with pytest.raises(ToolchainError, match=r"compiler for s390x.*neither s390x-linux-gnu-g\+\+"):
        toolchain.find_compilers(targets)


def test_cross_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "s390x-linux-gnu-g++"
    fake.write_text("#!/bin/sh\necho cross 1.0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    other = replace(TARGET, machine="s390x")
    found = toolchain.find_compilers([TARGET, other, other])
    assert found == {
        TARGET.machine: find_compiler(),
        "s390x": Compiler(("s390x-linux-gnu-g++",), "cross 1.0"),
    }


def test_errors_keep_the_source(tmp_path: Path) -> None:
    source = tmp_path / "bad.cpp"
    source.write_text("int f() { return nothing; }\n")
    with pytest.raises(ToolchainError) as caught:
        find_compiler().compile_object(source, tmp_path / "bad.o", TARGET, INCLUDE, "bad.cpp")
    message = str(caught.value)
    kept = re.search(r"The source is kept at (\S+)\.\n", message)
    assert kept is not None and Path(kept[1]).read_text() == source.read_text()
    assert "nothing" in message and "when compiling bad.cpp" in message


def test_objects_do_not_know_their_folder(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.cpp").write_text("const char *where() { return __FILE__; }\n")
        find_compiler().compile_object(folder / "a.cpp", folder / "a.o", TARGET, INCLUDE, "a.cpp")
        made.append((folder / "a.o").read_bytes())
    assert made[0] == made[1] and str(tmp_path).encode() not in made[0]


def test_zig_flags() -> None:
    zig = Compiler(("zig", "cc"), "zig 0.17", is_zig=True)
    assert zig.target_flags(TARGET) == ("-mcpu=baseline",)
    wide = parse_target("cpu:x86-64-v4+bf16")
    assert zig.target_flags(wide) == ("-mcpu=x86_64_v4+avx512bf16",)
    assert wide.flags == ("-march=x86-64-v4", "-mavx512bf16")
    arm = parse_target("cpu:armv8.2-a+dotprod")
    assert zig.target_flags(arm) == ("-mcpu=generic+v8_2a+dotprod",)


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_zig_compiles_and_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain, "_CANDIDATES", ())
    zig = find_compiler()
    source = tmp_path / "a.cpp"
    source.write_text('#include "inferc/vmath.h"\nextern "C" int one(void) { return 1; }\n')
    zig.compile_object(source, tmp_path / "a.o", TARGET, INCLUDE, "a.cpp")
    zig.link_library([tmp_path / "a.o"], tmp_path / "a.so")
    assert (tmp_path / "a.so").is_file()


def test_cache_makes_once_and_leaves_nothing_on_failure(tmp_path: Path) -> None:
    cache, calls = Cache(tmp_path), []

    def make(path: Path) -> None:
        calls.append(path)
        path.write_text("x")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise ToolchainError("no")

    assert cache.store("abcd", ".o", make) == cache.store("abcd", ".o", make)
    assert len(calls) == 1
    with pytest.raises(ToolchainError):
        cache.store("efgh", ".o", fail)
    assert cache.find("efgh", ".o") is None and not list((tmp_path / "ef").iterdir())


def test_unwritable_cache_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolchainError, match="INFERC_CACHE"):
        Cache(tmp_path / "file").store("abcd", ".o", lambda path: None)


def test_every_field_is_in_the_key() -> None:
    base = ObjectKey("code", "includes", "target", ("-O3",), "gcc 12")
    others = [
        ObjectKey("x", "includes", "target", ("-O3",), "gcc 12"),
        ObjectKey("code", "x", "target", ("-O3",), "gcc 12"),
        ObjectKey("code", "includes", "x", ("-O3",), "gcc 12"),
        ObjectKey("code", "includes", "target", ("-O2",), "gcc 12"),
        ObjectKey("code", "includes", "target", ("-O3",), "gcc 13"),
    ]
    assert len({digest(key) for key in [base, *others]}) == 6


def test_digest_of_files_sees_names_and_contents(tmp_path: Path) -> None:
    a, b = tmp_path / "a.h", tmp_path / "b.h"
    a.write_text("1")
    b.write_text("1")
    assert digest_files([a]) != digest_files([b])
    before = digest_files([a, b])
    assert before == digest_files([b, a])
    a.write_text("2")
    assert digest_files([a, b]) != before
