"""The gate on real shapes: no spill, no lost instruction, no launch that a GPU would refuse."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cuda_runner import CudaContext, StepArgs, as_group
from static_bodies import BODIES

from bench.cuda_launches import Gpu, Launch, Recorder, launch_faults
from inferc.codegen.build import Source, link, object_file
from inferc.codegen.cache import Cache, default_root
from inferc.codegen.cuda_build import HOST_FLAGS, Cubin, cubin
from inferc.codegen.cuda_gate import Expected, KernelFacts, faults, kernel_facts
from inferc.codegen.cuda_static import KernelResources, count_instruction, find_disassembler
from inferc.codegen.cuda_step import SAMPLING_KERNELS, SAMPLING_UNIT, sampling_code
from inferc.codegen.cuda_toolchain import find_cuda_compiler
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.registry import choose
from inferc.codegen.targets import parse_target
from inferc.codegen.targets.cpu import parse_cpu_target
from inferc.codegen.toolchain import find_compiler
from inferc.codegen.units import Unit, Units
from inferc.errors import ToolchainError
from inferc.ir.parse import parse_func
from inferc.ir.text import print_func

ARCHS = ("sm_80", "sm_90a")
# ptxas allocates registers in another way from sm_100 on: the kernels that need the most of them.
GATED = [(name, arch) for name in BODIES for arch in ARCHS] + [("experts", "sm_100a")]
_INCLUDE = re.compile(r'^#include "(inferc/[^"]+)"\n', re.M)


@functools.cache
def units_of(name: str) -> Mapping[str, Unit]:
    """The units of some bodies."""
    options = KernelOptions(parse_target("cuda:" + "+".join(ARCHS)), fast_prefill=True)
    units = Units(options)
    for phase, text in BODIES[name]:
        group = as_group(parse_func(text), phase)
        kernel = choose(group, options).name
        group.op._attrs = group.op.card.check_attrs({**group.op.attrs, "kernel": kernel})
        units.add(group)
    return units.by_name


def together(units: Mapping[str, Unit]) -> str:
    """Kernel files as one, which is compiled once: headers, then each in a namespace of its own."""
    codes = {name: unit.code for name, unit in units.items()}
    headers = dict.fromkeys(h for code in codes.values() for h in _INCLUDE.findall(code))
    parts = [f'#include "{header}"\n' for header in headers]
    parts += [f"namespace {n} {{\n{_INCLUDE.sub('', code)}\n}}\n" for n, code in codes.items()]
    return "".join(parts)


@functools.cache
def compiled(name: str, arch: str) -> Cubin:
    """One cubin of all units of some bodies; without a compiler for it the test is skipped."""
    try:
        compiler = find_cuda_compiler([arch])
    except ToolchainError as error:
        pytest.skip(f"needs a CUDA compiler: {error}")
    code = together(units_of(name))
    return cubin(Source(f"{name}.cu", code, code), arch, compiler, Cache(default_root()))


@functools.cache
def facts_of(name: str, arch: str) -> dict[str, KernelFacts]:
    try:
        return kernel_facts(compiled(name, arch), arch, find_disassembler(), Cache(default_root()))
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("name", "arch"), GATED)
def test_gate(name: str, arch: str) -> None:
    found, facts = compiled(name, arch), facts_of(name, arch)
    expected = [
        Expected(n, tuple(n + suffix for suffix in u.definition.kernels), u.definition.instructions)
        for n, u in units_of(name).items()
    ]
    assert faults(expected, arch, facts, found.messages) == []
    assert set(facts) == {kernel for unit in expected for kernel in unit.kernels}


def test_products_of_many_rows_use_wgmma() -> None:
    """Where weights have no scales, which `KernelDef.instructions` does not tell apart."""
    facts = facts_of("linear", "sm_90a")
    for name, unit in units_of("linear").items():
        body = print_func(unit.groups[0].body)
        for suffix in ("_many", "_more"):
            found = count_instruction(facts[name + suffix].instructions, "HGMMA")
            assert (found > 0) == ("bf16[" in body), (name, suffix)


def test_attention_of_many_rows_uses_wgmma() -> None:
    """Columns are contiguous in both operands; ptxas warns where it serialises (`test_gate`)."""
    facts, found = facts_of("attention", "sm_90a"), []
    for name, unit in units_of("attention").items():
        if unit.definition.name == "attention_wgmma":
            found.append(count_instruction(facts[name + "_fast"].instructions, "HGMMA"))
    assert len(found) == 2 and min(found) >= 16, found


@pytest.mark.parametrize("arch", ARCHS)
def test_gate_of_sampling(arch: str) -> None:
    code = sampling_code()
    try:
        compiler = find_cuda_compiler()
        made = cubin(Source("sampling.cu", code, code), arch, compiler, Cache(default_root()))
        facts = kernel_facts(made, arch, find_disassembler(), Cache(default_root()))
    except ToolchainError as error:
        pytest.skip(str(error))
    expected = Expected(SAMPLING_UNIT, tuple(kernel.name for kernel in SAMPLING_KERNELS), {})
    assert faults([expected], arch, facts, made.messages) == []


# -- launches, recorded on the CPU
GPUS = {"sm_80": Gpu("sm_80", 80, 108), "sm_90a": Gpu("sm_90a", 90, 132)}


class Step(ctypes.Structure):
    """`inferc::Step` of cuda/step.h."""

    _fields_ = (
        ("args", ctypes.POINTER(StepArgs)),
        ("cuda", ctypes.POINTER(CudaContext)),
        ("status", ctypes.c_int32),
    )


@functools.cache
def launchers(name: str, folder: Path) -> tuple[ctypes.CDLL, list[str]]:
    """The launching half of some bodies, and the kernels by number."""
    units = units_of(name)
    kernels = [n + suffix for n, u in units.items() for suffix in u.definition.kernels]
    ids = [
        f'extern "C" const int32_t {kernel}_id; const int32_t {kernel}_id = {number};\n'
        for number, kernel in enumerate(kernels)
    ]
    code = together(units) + "".join(ids)
    made = object_file(
        Source(f"{name}.cpp", code, code), parse_cpu_target("cpu:portable"), find_compiler(),
        Cache(default_root()), (*HOST_FLAGS, "-fvisibility=default"),
    )  # fmt: skip
    link([made], folder / f"{name}.so", find_compiler())
    return ctypes.CDLL(str(folder / f"{name}.so")), kernels


def launches(
    library: ctypes.CDLL, unit: str, gpu: Gpu, tokens: int, sequences: int
) -> list[Launch]:
    """What a unit launches. Its pointers lead to memory that is read only as pools of a cache."""
    recorder, memory = Recorder(), (ctypes.c_void_p * 8)(*[1 << 40] * 8)
    nowhere = ctypes.addressof(memory)
    args = StepArgs(tokens, sequences, sequences, 128, *[nowhere] * 13)
    context = CudaContext(recorder.address, 0, nowhere, gpu.sm, gpu.multiprocessors, 4096)
    step = Step(ctypes.pointer(args), ctypes.pointer(context))
    pointers = (ctypes.c_void_p * 32)(*[nowhere] * 32)
    getattr(library, f"{unit}_launch")(ctypes.byref(step), ctypes.c_int64(tokens), pointers)
    assert step.status == 0 and recorder.launches
    return recorder.launches


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", BODIES)
def test_launches(name: str, arch: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    facts, found = facts_of(name, arch), []
    library, kernels = launchers(name, tmp_path_factory.getbasetemp())
    for unit in units_of(name):
        phase = units_of(name)[unit].groups[0].func.name
        steps = [(1, 1), (64, 64)] if phase == "decode" else [(1, 1), (64, 64), (2048, 2)]
        for tokens, sequences in steps:
            for launch in launches(library, unit, GPUS[arch], tokens, sequences):
                found += launch_faults(launch, facts[kernels[launch.kernel]])
    assert found == []


def test_a_launch_that_would_be_refused() -> None:
    kernel = KernelResources("k", 128, 0, 1024, 1, 256)
    good = Launch(0, (8, 1, 1), 256, 98 << 10, 1, 0)
    for arch, launch, expected in [
        ("sm_86", good, ""),
        ("sm_86", replace(good, shared_bytes=99 << 10), "102400 bytes of shared memory"),
        ("sm_80", replace(good, threads=288), "288 threads, of at most 256"),
        ("sm_90a", replace(good, grid=(8, 70000, 1)), "a grid of"),
        ("sm_90a", replace(good, cluster=3), "clusters of 3"),
        ("sm_90a", replace(good, grid=(0, 1, 1)), "a grid of"),
    ]:
        faults_ = launch_faults(launch, KernelFacts(arch, kernel, {}))
        assert len(faults_) == bool(expected) and expected in "".join(faults_)
    greedy = KernelFacts("sm_90a", replace(kernel, registers=168, threads=512), {})
    assert "512 threads of 168 registers" in launch_faults(replace(good, threads=512), greedy)[0]
