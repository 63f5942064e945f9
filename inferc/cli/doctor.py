"""`inferc doctor`: what is installed, what is missing and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys

# package -> what needs it
RUNTIME = ("numpy", "tokenizers", "jinja2")
COMPILER = (
    "ml_dtypes",
    "rich",
    "safetensors",
    "torch",
    "transformers",
    "apache-tvm",
    "apache-tvm-ffi",
    "networkx",
)
# Features that kernels are built for, in the compilers' spelling.
USED_ISA = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vnni",
    "avx512bf16",
    "neon",
    "dotprod",
    "i8mm",
    "bf16",
)
KNOWN_BAD = {
    "apache-tvm-ffi": ("0.1.15", "breaks apache-tvm 0.27: pip install 'apache-tvm-ffi<0.1.15'")
}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="what is installed, what is missing and how to get it",
        description="Check packages, C++ compilers and the instruction set of this machine. "
        "Exit code 3 if artifacts cannot be run, or models cannot be compiled, here.",
    )
    return p


def run(args: argparse.Namespace) -> int:
    """Print the findings; exit code 3 if something needed is missing."""
    del args
    problems = _machine() + _packages("runtime", RUNTIME, "pip install inferc")
    problems += _packages(
        "compiler", COMPILER, "pip install torch==2.13.0 && pip install 'inferc[compile]'"
    )
    problems += _toolchain()
    print_cuda()
    print()
    if not problems:
        print("everything needed to compile and to run is here")
        return 0
    for problem in problems:
        print(f"- {problem}")
    return 3


def _machine() -> list[str]:
    from inferc.runtime.host import host_isa

    isa = host_isa() or frozenset()
    print(f"machine     {platform.machine()}, {os.cpu_count()} cores, {platform.system()}")
    print(f"isa         {' '.join(f for f in USED_ISA if f in isa) or 'portable'}")
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"python      {version}")
    return [] if sys.version_info >= (3, 11) else [f"Python {version} is too old: 3.11 or newer"]


def _packages(group: str, names: tuple[str, ...], how: str) -> list[str]:
    missing, problems = [], []
    print(f"\n{group}")
    for name in names:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            print(f"  {name:16} missing")
            continue
        print(f"  {name:16} {version}")
        bad = KNOWN_BAD.get(name)
        if bad and version.startswith(bad[0]):
            problems.append(f"{name} {version} {bad[1]}")
    if missing:
        problems.append(f"for the {group}: {', '.join(missing)} missing; {how}")
    return problems


def _toolchain() -> list[str]:
    print("\nC++ compilers, in the order they are tried")
    found = False
    for label, path in _compilers():
        print(f"  {label:16} {path or 'not found'}")
        found = found or path is not None
    if found:
        return []
    return ["no C++ compiler: install g++ or clang, or pip install ziglang"]


def print_cuda() -> None:
    """What CUDA targets need. Nothing of it is needed otherwise, so none is a problem."""
    from inferc.codegen.cuda_toolchain import find_cuda_compiler, find_tool
    from inferc.errors import InfercError

    print("\nCUDA, for targets cuda:* only")
    try:
        compiler = find_cuda_compiler()
        print(f"  {'compiler':16} {compiler.version}: {compiler.where}")
    except InfercError as error:
        print(f"  {'compiler':16} {error}")
    disassembler = find_tool("nvdisasm") or "not found; tests of machine code want it"
    print(f"  {'nvdisasm':16} {disassembler}")
    for label, text in _devices():
        print(f"  {label:16} {text}")


def _devices() -> list[tuple[str, str]]:
    """The bindings and each GPU, or the reason why there is none; a label and a text each."""
    from inferc.errors import InfercError
    from inferc.runtime.executors.cuda_bindings import call, open_driver

    try:
        rows = [("cuda-bindings", importlib.metadata.version("cuda-bindings"))]
    except importlib.metadata.PackageNotFoundError:
        missing = "missing; artifacts run on a GPU through it: pip install 'inferc[cuda]'"
        return [("cuda-bindings", missing)]
    try:
        driver = open_driver()
        attribute = driver.CUdevice_attribute
        for index in range(call(driver.cuDeviceGetCount)):
            device = call(driver.cuDeviceGet, index)
            name = call(driver.cuDeviceGetName, 256, device).split(b"\0")[0].decode()
            major, minor = (
                call(driver.cuDeviceGetAttribute, which, device)
                for which in (
                    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                )
            )
            total_bytes = call(driver.cuDeviceTotalMem, device)
            rows.append((f"cuda:{index}", f"{name}, sm_{major}{minor}, {total_bytes >> 30} GiB"))
    except InfercError as error:
        rows.append(("GPU", str(error)))
    return rows


def _compilers() -> list[tuple[str, str | None]]:
    import importlib.util

    named = os.environ.get("CXX")
    rows = [("$CXX", shutil.which(named) if named else None)]
    rows += [(name, shutil.which(name)) for name in ("c++", "g++", "clang++")]
    zig = importlib.util.find_spec("ziglang")
    return [*rows, ("ziglang", zig.origin if zig else None)]
