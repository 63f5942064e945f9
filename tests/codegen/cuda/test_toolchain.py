"""Finding the CUDA compiler, and building cubins and the host library."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inferc.codegen import cuda_build, cuda_toolchain
from inferc.codegen.build import Source
from inferc.codegen.cache import Cache, digest
from inferc.codegen.cuda_build import CubinKey, build_cuda_library, cubin
from inferc.codegen.cuda_toolchain import (
    FIRST_RELEASE,
    CudaCompiler,
    Nvcc,
    Nvrtc,
    find_cuda_compiler,
    find_tool,
)
from inferc.codegen.headers import reached_headers
from inferc.codegen.render import INCLUDE
from inferc.codegen.toolchain import find_compiler
from inferc.errors import ToolchainError

KERNEL = 'extern "C" __global__ void kernel(float *x) { x[threadIdx.x] = FACTOR * 2; }\n'
UNIT = """\
#if defined(INFERC_HOST)
extern "C" __attribute__((visibility("default"))) int launched(void) { return 7; }
#else
extern "C" __global__ void kernel(float *x) { x[threadIdx.x] = 7; }
#endif
"""


def real_compiler() -> CudaCompiler:
    """The compiler of this machine; without one the test is skipped."""
    try:
        return find_cuda_compiler()
    except ToolchainError as error:
        pytest.skip(f"needs a CUDA compiler: {error}")


def source(code: str, name: str = "kernel_1.cu") -> Source:
    return Source(name, code, code)


def silent(what: str, done: int, total: int) -> None:
    del what, done, total


# -- finding
@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any compiler; returns the only folder on its path."""
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    return path


def fake_tool(folder: Path, name: str, release: str = "12.9, V12.9.86") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / name
    tool.write_text(f"#!/bin/sh\necho nvcc: NVIDIA\necho Cuda tools, release {release}\n")
    tool.chmod(0o755)
    return str(tool)


def test_order_of_the_search(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(bare, "gcc")
    packages = tmp_path / "nvidia"
    old = fake_tool(packages / "cu9" / "bin", "nvcc")
    new = fake_tool(packages / "cu13" / "bin", "nvcc")
    spec = importlib.machinery.ModuleSpec("nvidia", None)
    spec.submodule_search_locations = [str(packages)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert find_cuda_compiler() == Nvcc(new, "nvcc 12.9.86") and old != new
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        inside = fake_tool(tmp_path / variable / "bin", "nvcc")
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert find_cuda_compiler().where == inside
    on_path = fake_tool(bare, "nvcc")
    assert find_cuda_compiler().where == on_path
    chosen = fake_tool(tmp_path / "chosen", "nvcc", "13.0, V13.0.88")
    monkeypatch.setenv("CUDACXX", chosen)
    assert find_cuda_compiler() == Nvcc(chosen, "nvcc 13.0.88")
    assert find_tool("nvdisasm") is None


def test_nothing_is_found(bare: Path) -> None:
    with pytest.raises(ToolchainError, match=r"no nvcc on the path, in \$CUDA_HOME.*pip install"):
        find_cuda_compiler()


def test_cudacxx_that_is_not_there(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACXX", "/no/such/nvcc")
    with pytest.raises(ToolchainError, match="'/no/such/nvcc', which is not on the path"):
        find_cuda_compiler()
    monkeypatch.setenv("CUDACXX", "nvrtc")
    with pytest.raises(ToolchainError, match=r"NVRTC cannot be loaded.*pip install"):
        find_cuda_compiler()


def test_nvcc_without_a_host_compiler(bare: Path) -> None:
    nvcc = fake_tool(bare, "nvcc")
    with pytest.raises(ToolchainError, match=rf"{nvcc}\) needs a host compiler.*apt install g\+\+"):
        find_cuda_compiler()
    fake_tool(bare, "clang++")
    assert find_cuda_compiler() == Nvcc(nvcc, "nvcc 12.9.86", "clang++")


def test_nvcc_without_a_version(bare: Path) -> None:
    fake_tool(bare, "gcc")
    fake_tool(bare, "nvcc", "unknown")
    with pytest.raises(ToolchainError, match="names no release of CUDA"):
        find_cuda_compiler()


def test_architectures_and_releases(tmp_path: Path) -> None:
    def compile_for(version: str, arch: str) -> str:
        path = tmp_path / "a.cu"
        return Nvcc("true", version).compile_cubin(path, tmp_path / "a", arch, tmp_path, "a.cu")

    assert compile_for("nvcc 12.0.1", "sm_90a") == "" == compile_for("nvcc 12.8.0", "sm_120a")
    with pytest.raises(ToolchainError, match=r"12.6.3 is too old for sm_100a: CUDA 12.8"):
        compile_for("nvcc 12.6.3", "sm_100a")
    with pytest.raises(ToolchainError, match=r"'sm_90' is no architecture.*sm_90a"):
        compile_for("nvcc 13.0.88", "sm_90")


def test_a_compiler_too_old_for_a_target(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(bare, "gcc")
    nvcc = fake_tool(bare, "nvcc", "12.6, V12.6.77")
    with pytest.raises(ToolchainError, match=r"nvcc 12.6.77 is too old for sm_120a: CUDA 12.8"):
        find_cuda_compiler(["sm_90a", "sm_120a"])
    monkeypatch.setattr(cuda_toolchain, "_find_nvrtc", lambda: Nvrtc("nvrtc 13.5", "here"))
    assert find_cuda_compiler(["sm_90a"]).where == nvcc
    assert find_cuda_compiler(["sm_90a", "sm_120a"]) == Nvrtc("nvrtc 13.5", "here")
    (bare / "gcc").unlink()
    assert find_cuda_compiler() == Nvrtc("nvrtc 13.5", "here")  # nvcc cannot preprocess


# -- compiling
def test_errors_keep_the_source(tmp_path: Path) -> None:
    compiler, path = real_compiler(), tmp_path / "bad.cu"
    path.write_text(KERNEL)
    with pytest.raises(ToolchainError) as caught:
        compiler.compile_cubin(path, tmp_path / "bad.cubin", "sm_80", INCLUDE, "bad.cu")
    message = str(caught.value)
    kept = re.search(r"The source is kept at (\S+)\.\n", message)
    assert kept is not None and Path(kept[1]).read_text() == KERNEL
    assert '"FACTOR" is undefined' in message and "compiling bad.cu for sm_80" in message


def test_cubins_do_not_know_their_folder(tmp_path: Path) -> None:
    compiler, made = real_compiler(), []
    for name in ("one", "another"):
        path = tmp_path / name / "a.cu"
        path.parent.mkdir()
        path.write_text(KERNEL.replace("FACTOR", "3"))
        messages = compiler.compile_cubin(path, path.with_suffix(".o"), "sm_90a", INCLUDE, "a.cu")
        assert "registers" in messages
        made.append(path.with_suffix(".o").read_bytes())
    assert made[0] == made[1] and str(tmp_path).encode() not in made[0]


def test_nvrtc_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACXX", "nvrtc")
    compiler, path = real_compiler(), tmp_path / "a.cu"
    path.write_text(KERNEL)
    with pytest.raises(ToolchainError, match=r"NVRTC failed .* compiling a.cu for sm_80"):
        compiler.compile_cubin(path, tmp_path / "a.cubin", "sm_80", INCLUDE, "a.cu")
    path.write_text(KERNEL.replace("FACTOR", "3"))
    assert "registers" in compiler.compile_cubin(
        path, tmp_path / "a.cubin", "sm_80", INCLUDE, "a.cu"
    )
    assert (tmp_path / "a.cubin").read_bytes().startswith(b"\x7fELF")


# -- building
@dataclass(frozen=True)
class FakeCompiler:
    """Writes what it was asked."""

    version: str = "fake 13.0"
    where: str = "here"
    asked: list[tuple[str, str]] = field(default_factory=list)

    def compile_cubin(
        self, source: Path, output: Path, arch: str, include: Path, shown_as: str
    ) -> str:
        assert source.name == shown_as and include == INCLUDE
        self.asked.append((arch, shown_as))
        output.write_text(f"{arch} {shown_as}")
        return f"messages of {arch}"


def test_build_writes_cubins_and_a_library(tmp_path: Path) -> None:
    fake, cache, told = FakeCompiler(), Cache(tmp_path / "cache"), []
    sources = [
        source(UNIT), source(UNIT.replace("launched", "again"), "kernel_2.cu"),
        source('extern "C" int launched(void);\nint twice() { return 2 * launched(); }\n', "s.cpp"),
    ]  # fmt: skip
    for _ in range(2):  # the second time everything is in the cache
        build_cuda_library(
            sources, tmp_path, archs=["sm_80", "sm_90a"], compiler=find_compiler(),
            cuda_compiler=fake, cache=cache, progress=lambda *args: told.append(args),
        )  # fmt: skip
    assert (tmp_path / "sm_90a" / "kernel_2.cubin").read_text() == "sm_90a kernel_2.cu"
    assert len(list(tmp_path.glob("sm_*/*.cubin"))) == 4 == len(fake.asked)
    assert told[0] == ("sm_80/kernel_1.cubin", 1, 7) and told[-1] == ("linking", 7, 7)
    assert ctypes.CDLL(str(tmp_path / "step.so")).launched() == 7
    found = cubin(sources[0], "sm_80", fake, cache)
    assert found.messages == "messages of sm_80" and len(fake.asked) == 4


def test_every_architecture_compiles(tmp_path: Path) -> None:
    compiler = real_compiler()
    build_cuda_library(
        [source(UNIT)], tmp_path, archs=list(FIRST_RELEASE), compiler=find_compiler(),
        cuda_compiler=compiler, cache=Cache(tmp_path / "cache"), progress=silent,
    )  # fmt: skip
    files = {path.parent.name: path.read_bytes() for path in tmp_path.glob("sm_*/kernel_1.cubin")}
    assert set(files) == set(FIRST_RELEASE) and len(set(files.values())) == len(files)


def test_a_failure_ends_the_build(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"compiling bad\.cpp"):
        build_cuda_library(
            [source("int f() { return nothing; }\n", "bad.cpp"), source(UNIT)], tmp_path,
            archs=["sm_80"], compiler=find_compiler(), cuda_compiler=FakeCompiler(),
            cache=Cache(tmp_path / "cache"), progress=silent,
        )  # fmt: skip
    assert not (tmp_path / "step.so").exists() and not (tmp_path / "sm_80").exists()


def test_headers_that_are_reached(tmp_path: Path) -> None:
    (tmp_path / "inferc").mkdir()
    for name, text in {
        "a.cuh": '#include "b.h"\n', "b.h": '#if X\n#include "inferc/c.h"\n#endif\n',
        "c.h": '  #  include "inferc/a.cuh"\n#include <stdint.h>\n', "other.h": "",
    }.items():  # fmt: skip
        (tmp_path / "inferc" / name).write_text(text)
    code = '#include "inferc/a.cuh"\n#include "inferc/missing.h"\n'
    names = [path.name for path in reached_headers(code, tmp_path)]
    assert names == ["a.cuh", "b.h", "c.h"] and reached_headers("int x;", tmp_path) == []


def test_a_header_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, fake = tmp_path / "a.cuh", FakeCompiler()
    monkeypatch.setattr(cuda_build, "reached_headers", lambda code: [header])
    for text in ("1", "2", "1"):
        header.write_text(text)
        cubin(source(UNIT), "sm_80", fake, Cache(tmp_path / "cache"))
    assert len(fake.asked) == 2


def test_every_field_is_in_the_key() -> None:
    base = CubinKey("code", "includes", "sm_80", ("-O3",), "nvcc 13.0.88")
    others = [
        CubinKey("x", "includes", "sm_80", ("-O3",), "nvcc 13.0.88"),
        CubinKey("code", "x", "sm_80", ("-O3",), "nvcc 13.0.88"),
        CubinKey("code", "includes", "sm_90a", ("-O3",), "nvcc 13.0.88"),
        CubinKey("code", "includes", "sm_80", ("-O2",), "nvcc 13.0.88"),
        CubinKey("code", "includes", "sm_80", ("-O3",), "nvcc 13.0.89"),
    ]
    assert len({digest(key) for key in [base, *others]}) == 6
    assert cuda_toolchain.CUBIN_FLAGS == ("-std=c++17", "--fmad=true")  # no fast-math
