"""Runs generated CUDA on the CPU: single units on arrays, and whole steps, beside the interpreter.

Everything is compiled as one translation unit with the emulation header: each kernel file in a
namespace of its own, the headers before them.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inferc.codegen.cache import Cache, default_root, digest_files
from inferc.codegen.cuda_step import CudaStepParams, cuda_kernels
from inferc.codegen.group import Group, row_shape, tensor
from inferc.codegen.headers import reached_headers
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.library import STEP_FILE, generate
from inferc.codegen.registry import choose
from inferc.codegen.render import INCLUDE, render
from inferc.codegen.select import SelectKernels
from inferc.codegen.step import Phase
from inferc.codegen.targets import parse_target
from inferc.codegen.toolchain import find_compiler
from inferc.codegen.units import Unit, Units
from inferc.ir.core import Builder, Func, Module
from inferc.ir.location import ModuleLoc
from inferc.ir.parse import parse_func
from inferc.ir.types import Memory
from inferc.passes.manager import run_passes
from inferc.passes.plan_memory import PlanMemory
from inferc.runtime.executors.cuda_library import CudaContext
from inferc.runtime.executors.step_library import StepArgs

LOC = ModuleLoc("test")
ORDERS = (0, 7)
"""Fair threads with late copies; from the last, one warp ahead, with copies that come at once."""
GUARD = 64
_FLAGS = (
    "-std=c++17", "-Og", "-g1", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC",
    "-DINFERC_EMULATION=1", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused",
    "-fsanitize=alignment,bounds,shift-exponent",  # for emulation_checks.h
)  # fmt: skip
_INCLUDE = re.compile(r'^#include "(inferc/[^"]+)"\n', re.M)


def emulated_library(codes: Mapping[str, str], step: str, sm: int) -> ctypes.CDLL:
    """Compile kernel files (by name) and a step to a library, or find it in the cache."""
    headers = dict.fromkeys(h for code in (*codes.values(), step) for h in _INCLUDE.findall(code))
    parts = [f'#include "{h}"\n' for h in headers]
    parts += [
        f"namespace unit_{name} {{\n{_INCLUDE.sub('', code)}\n}}\n" for name, code in codes.items()
    ]
    return compile_emulated("".join(parts) + _INCLUDE.sub("", step), sm)


def compile_emulated(source: str, sm: int = 80) -> ctypes.CDLL:
    """Compile C++ over the emulation header to a library, cached by content."""
    headers = digest_files(reached_headers(source))
    flags = (*_FLAGS, f"-DINFERC_SM={sm}", *find_compiler().command)
    key = hashlib.sha256("\0".join([source, headers, *flags]).encode()).hexdigest()

    def make(output: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="inferc-emulated-") as folder:
            path = Path(folder) / "emulated.cpp"
            path.write_text(source)
            compiler, made = find_compiler().command, path.with_suffix(".o")
            _run(*compiler, *_FLAGS, f"-DINFERC_SM={sm}", "-I", INCLUDE, "-c", path, "-o", made)
            # By itself, so that no library of the sanitizers is linked.
            _run(*compiler, "-shared", made, "-o", output)

    return ctypes.CDLL(str(Cache(default_root()).store(key, ".so", make)))


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


class _Step(ctypes.Structure):
    _fields_ = (
        ("args", ctypes.POINTER(StepArgs)),
        ("cuda", ctypes.POINTER(CudaContext)),
        ("status", ctypes.c_int32),
    )


def guarded(nbytes: int, fill: int = 0xFF) -> tuple[np.ndarray, np.ndarray]:
    """Memory that begins at a multiple of 256, and the whole with guard bytes around it."""
    whole = np.full(nbytes + 256 + 2 * GUARD, 0xA5, np.uint8)
    start = GUARD + -(whole.ctypes.data + GUARD) % 256
    inner = whole[start : start + nbytes]
    inner[:] = fill  # NaN
    return inner, whole


def check_guards(inner: np.ndarray, whole: np.ndarray) -> None:
    start = inner.ctypes.data - whole.ctypes.data
    assert (whole[:start] == 0xA5).all() and (whole[start + len(inner) :] == 0xA5).all(), (
        "a kernel wrote before or behind its memory"
    )


class Emulation:
    """A library with its launch function, and scratch that is poisoned before each run."""

    def __init__(self, library: ctypes.CDLL, sm: int, longest_context: int = 4096) -> None:
        self.library = library
        for name in ("inferc_emulated_kernels", "inferc_emulation_launch"):
            getattr(library, name).restype = ctypes.c_void_p
        library.inferc_cuda_scratch_bytes.restype = ctypes.c_uint64
        library.inferc_emulation_error.restype = ctypes.c_char_p
        self.scratch, self.whole = guarded(int(library.inferc_cuda_scratch_bytes()))
        self.context = CudaContext(
            library.inferc_emulation_launch(), library.inferc_emulated_kernels(),
            self.scratch.ctypes.data, sm, 4, longest_context,
        )  # fmt: skip

    def begin(self, order: int) -> None:
        self.library.inferc_emulation_order(order)
        self.scratch[:] = 0xFF

    def end(self, status: int) -> None:
        assert status == 0, (status, (self.library.inferc_emulation_error() or b"").decode())
        check_guards(self.scratch, self.whole)


def as_group(body: Func, phase: str = "prefill") -> Group:
    """A function as the body of a group; arguments named `w*` are parameters."""
    step = Func(phase, dict(body.symbols))
    builder = Builder(step)
    operands = [
        builder.param(a.hint, a.type, loc=LOC)
        if a.hint.startswith("w")
        else step.add_arg(a.hint, a.type)
        for a in body.args
    ]
    return Group(builder.group(operands, body, loc=LOC), step)


@dataclass
class CudaUnit:
    """One compiled unit, called on arrays: operands as the kernel takes them (weights packed)."""

    group: Group
    unit: Unit
    emulation: Emulation
    fast: bool = False

    def __call__(
        self, arrays: Sequence[np.ndarray | int], rows: int, *, args: StepArgs | None = None,
        order: int = 0,
    ) -> list[np.ndarray]:  # fmt: skip
        """Operands in order (an int is an address), then results, poisoned and guarded.

        What a cache or a state becomes is in its own memory: no result of the call.
        """
        body, pointers, keep = self.group.body, [], []
        for array in arrays:
            if not isinstance(array, int):
                keep.append(np.ascontiguousarray(array))
                array = keep[-1].ctypes.data
            pointers.append(array)
        outputs = []
        for result in body.results:
            if isinstance(result.type, Memory):
                continue
            type_ = tensor(result)
            dtype = np.dtype({"f32": "f4", "i32": "i4", "i64": "i8"}[type_.dtype])
            shape = (rows, *row_shape(type_))
            outputs.append((*guarded(int(np.prod(shape)) * dtype.itemsize), dtype, shape))
        pointers += [inner.ctypes.data for inner, *_ in outputs]
        at = (ctypes.c_void_p * len(pointers))(*pointers)
        step = _Step(
            ctypes.pointer(args or StepArgs(tokens=rows)), ctypes.pointer(self.emulation.context)
        )
        self.emulation.begin(order)
        launch = getattr(self.emulation.library, f"{self.unit.name}_launch")
        launch(ctypes.byref(step), ctypes.c_int64(rows), at)
        self.emulation.end(step.status)
        for inner, whole, *_ in outputs:
            check_guards(inner, whole)
        return [inner.view(dtype).reshape(shape) for inner, _, dtype, shape in outputs]


def compile_units(
    texts: Sequence[str], *, compute: str = "auto", sm: int = 80, phases: Sequence[str] = (),
    fast_prefill: bool = False,
) -> list[CudaUnit]:  # fmt: skip
    """Compile bodies (texts of functions, or functions) to one library; of prefill by default."""
    target = parse_target("cuda:sm_80+sm_90a")
    options = KernelOptions(target, compute, fast_prefill=fast_prefill)  # type: ignore[arg-type]
    units, groups = Units(options), []
    for text, phase in zip(texts, phases or ["prefill"] * len(texts), strict=True):
        group = as_group(parse_func(text) if isinstance(text, str) else text, phase)
        chosen = choose(group, options)
        group.op._attrs = group.op.card.check_attrs({**group.op.attrs, "kernel": chosen.name})
        groups.append((group, units.add(group)))
    empty = tuple(Phase(name, ()) for name in ("prefill", "decode"))
    scratch = max((int(s.shared) for s in units.scratches()), default=0)
    names = tuple(sorted(units.by_name))
    params = CudaStepParams(names, cuda_kernels(units), 1, 1, 1, 0, 0, 0, scratch, empty)
    library = emulated_library(
        {name: units.by_name[name].code for name in names}, render("cuda_step.cpp.j2", params), sm
    )
    return [CudaUnit(group, unit, Emulation(library, sm), fast_prefill) for group, unit in groups]


def compile_unit(text: str, **options: object) -> CudaUnit:
    """Compile one body."""
    return compile_units([text], **options)[0]  # type: ignore[arg-type]


def step_library(module: Module, *, compute: str = "auto", sm: int = 80) -> ctypes.CDLL:
    """Select kernels, plan memory and compile the step functions of a module under emulation."""
    select = SelectKernels(target="cuda:sm_80+sm_90a", compute=compute)
    run_passes(module, [select, PlanMemory()], given={"fused", "kv-planned"})
    sources = generate(module, select.options()).sources()
    codes = {s.file_name.split(".")[0]: s.code for s in sources if s.file_name != STEP_FILE}
    step = next(s.code for s in sources if s.file_name == STEP_FILE)
    return emulated_library(codes, step, sm)
