"""What is read from cubins of known kernels, and how many blocks a multiprocessor holds."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest

from inferc.codegen.build import Source
from inferc.codegen.cache import Cache, default_root
from inferc.codegen.cuda_build import Cubin, compile_cubins
from inferc.codegen.cuda_gate import Expected, KernelFacts, faults, kernel_facts
from inferc.codegen.cuda_occupancy import MULTIPROCESSORS, Occupancy, occupancy
from inferc.codegen.cuda_static import (
    KernelResources,
    compiler_warnings,
    count_instruction,
    declared_instructions,
    find_disassembler,
    read_instructions,
    read_resources,
)
from inferc.codegen.cuda_toolchain import FIRST_RELEASE, find_cuda_compiler
from inferc.codegen.targets.cuda import ARCHS
from inferc.errors import ToolchainError

KERNELS = """\
struct Args { const float *x; float *y; int n; };
#define KERNEL(name) extern "C" __global__ void
KERNEL() __launch_bounds__(256) shared(const __grid_constant__ Args a) {
    __shared__ float s[300];
    s[threadIdx.x] = a.x[threadIdx.x];
    __syncthreads();
    a.y[threadIdx.x] = s[255 - threadIdx.x];
}
KERNEL() __launch_bounds__(1024, 1) spilling(const __grid_constant__ Args a) {
    float v[200];
#pragma unroll
    for (int i = 0; i < 200; i++) v[i] = a.x[threadIdx.x + i * 1024];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 200; i++) a.y[threadIdx.x + i * 1024] = v[199 - i] * v[i];
}
KERNEL() wide(const __grid_constant__ Args a) {
    extern __shared__ float4 dynamic[];
    dynamic[threadIdx.x] = *reinterpret_cast<const float4 *>(a.x + 4 * threadIdx.x);
    asm volatile("bar.sync 3, 64;");
    *reinterpret_cast<float4 *>(a.y + 4 * threadIdx.x) = dynamic[a.n];
}
KERNEL() tensor(const __grid_constant__ Args a) {
    __shared__ __align__(16) unsigned s[256];
    unsigned to = unsigned(__cvta_generic_to_shared(s)) + 16 * threadIdx.x, f[4];
    const float *from = a.x + 4 * threadIdx.x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(to));
    float d[4] = {};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(f[1]), "r"(f[2]));
    a.y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


@functools.cache
def known_kernels() -> Mapping[str, Cubin]:
    """The cubins of KERNELS by `<arch>/known`; without a compiler the test is skipped."""
    try:
        compiler = find_cuda_compiler()
    except ToolchainError as error:
        pytest.skip(f"needs a CUDA compiler: {error}")
    source = Source("known.cu", KERNELS, KERNELS)
    cache = Cache(default_root())
    return compile_cubins([source], ["sm_80", "sm_90a"], compiler, cache, lambda *told: None)


def disassembler() -> str:
    try:
        return find_disassembler()
    except ToolchainError as error:
        pytest.skip(str(error))


# -- cubins
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_resources(arch: str) -> None:
    cubin = known_kernels()[f"{arch}/known"]
    found = {kernel.name: kernel for kernel in read_resources(cubin.path)}
    assert set(found) == {"shared", "spilling", "wide", "tensor"}
    shared, spilling, wide = found["shared"], found["spilling"], found["wide"]
    assert shared == KernelResources("shared", shared.registers, 0, 1200, 1, 256)
    assert 8 <= shared.registers <= 32
    assert spilling.registers == 64 and spilling.threads == 1024  # 65536 registers / 1024 threads
    assert spilling.local_bytes >= 4 * (100 - 64) and spilling.shared_bytes == 0
    assert wide.shared_bytes == 0 and wide.barriers == 4 and wide.threads is None
    for kernel in found.values():  # ptxas says the same
        said = cubin.messages.split(f"entry function '{kernel.name}'")[1].split("Compiling")[0]
        assert f"Used {kernel.registers} registers, used {kernel.barriers} barriers" in said
        assert f"{kernel.local_bytes} bytes stack frame" in said


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_instructions(arch: str) -> None:
    found = read_instructions(known_kernels()[f"{arch}/known"].path, disassembler())

    def count(kernel: str, wanted: str) -> int:
        return count_instruction(found[kernel], wanted)

    for wanted in ("LDGSTS.128", "LDSM.4", "HMMA.16816.F32.BF16"):
        assert count("tensor", wanted) == 1 and count("wide", wanted) == 0, wanted
    assert count("wide", "LDG.128") == 1 == count("wide", "STG.E.128")
    assert count("shared", "LDG.128") == 0 == count("shared", "STG.128")
    assert count("shared", "LDG") == 1 and count("tensor", "HGMMA") == 0
    assert count("spilling", "STL") > 0 and count("spilling", "LDL") > 0
    assert count("tensor", "STL") == 0


def test_instructions_by_modifier() -> None:
    found = {"LDG.E.128.CONSTANT": 2, "LDG.E": 1, "LDGSTS.E.BYPASS.128": 4, "HMMA.16816.F32": 8}
    wanted = ["LDG.128", "LDG", "LDG.64", "LDGSTS", "HMMA.F32.16816", "HMMA.F32.BF16", "LD"]
    assert [count_instruction(found, name) for name in wanted] == [2, 3, 0, 4, 8, 0, 0]
    declared = {"": ("LDG.128",), "sm_90a": ("HGMMA",)}
    assert declared_instructions(declared, "sm_90a") == ("LDG.128", "HGMMA")
    assert declared_instructions(declared, "sm_80") == ("LDG.128",)


def test_warnings_of_ptxas() -> None:
    messages = (
        "ptxas info    : Used 16 registers, used 4 barriers\n"
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are"
        " serialized due to insufficient register resources in function 'a'\n"
        "ptxas warning : Registers are spilled to local memory in function 'b', 4 bytes\n"
    )
    assert [line.split("function ")[1][:3] for line in compiler_warnings(messages)] == [
        "'a'",
        "'b'",
    ]
    assert compiler_warnings(messages.splitlines()[0]) == []


def test_no_cubin(tmp_path: Path) -> None:
    path = tmp_path / "a.cubin"
    for content in (b"", b"text", b"\x7fELF\x02\x01" + bytes(80)):
        path.write_bytes(content)
        with pytest.raises(ToolchainError, match="not a cubin"):
            read_resources(path)
    with pytest.raises(ToolchainError, match="nvdisasm failed"):
        read_instructions(path, disassembler())


# -- occupancy
def test_every_architecture_has_limits() -> None:
    assert set(MULTIPROCESSORS) == set(ARCHS) == set(FIRST_RELEASE)


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_kib", "expected"),
    [
        ("sm_80", 256, 32, 0, Occupancy(8, 64, 1.0, "registers")),
        ("sm_80", 256, 33, 0, Occupancy(6, 48, 0.75, "registers")),  # 40 a thread are given out
        ("sm_90a", 128, 168, 0, Occupancy(3, 12, 0.1875, "registers")),
        ("sm_90a", 128, 16, 113, Occupancy(2, 8, 0.125, "shared memory")),
        ("sm_90a", 128, 16, 227, Occupancy(1, 4, 0.0625, "shared memory")),
        ("sm_86", 128, 16, 100, Occupancy(0, 0, 0.0, "shared memory")),
        ("sm_86", 32, 16, 0, Occupancy(16, 16, 1 / 3, "blocks")),
        ("sm_89", 512, 16, 0, Occupancy(3, 48, 1.0, "warps")),
        ("sm_120a", 1024, 65, 0, Occupancy(0, 0, 0.0, "registers")),
    ],
)
def test_occupancy(
    arch: str, threads: int, registers: int, shared_kib: int, expected: Occupancy
) -> None:
    assert occupancy(arch, threads, registers, shared_kib * 1024) == expected


# -- the gate
def gated(arch: str, *expected: Expected) -> list[str]:
    cubin = known_kernels()[f"{arch}/known"]
    return faults(
        expected, arch, kernel_facts(cubin, arch, disassembler(), Cache(default_root())), ""
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_gate(arch: str) -> None:
    good = Expected("good", ("shared",), {"": ("LDG", "STG"), "sm_100a": ("UTMALDG",)})
    assert gated(arch, good) == []
    (spilled,) = gated(arch, Expected("s", ("spilling",), {}))
    assert f"spilling on {arch}: " in spilled and "local memory a thread (64 registers)" in spilled
    unbounded = Expected("t", ("tensor", "wide"), {arch: ("LDGSTS.128", "LDG.128", "HGMMA")})
    assert gated(arch, unbounded) == [
        f"tensor on {arch}: no launch bound, so ptxas guesses the registers it has",
        f"wide on {arch}: no launch bound, so ptxas guesses the registers it has",
        f"t on {arch}: no HGMMA, which its definition declares",
    ]
    assert "not in the cubin" in gated(arch, Expected("absent", ("absent_split",), {}))[0]


def test_gate_on_shared_memory_and_warnings() -> None:
    facts = KernelFacts("sm_86", KernelResources("k", 32, 0, 100 << 10, 1, 128), {})
    unit = Expected("k", ("k",), {})
    found = faults([unit], "sm_86", {"k": facts}, "ptxas warning : spilled\nptxas info : Used 3")
    assert found[0] == "sm_86: ptxas warning : spilled"
    assert "102400 bytes of static shared memory a block, of at most 101376" in found[1]
    assert faults([unit], "sm_80", {"k": facts}, "") == [] and len(found) == 2
