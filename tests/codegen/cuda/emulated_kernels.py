"""Kernels of a `.cu` file of the tests, run one at a time on arrays under emulation."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inferc.runtime.executors.cuda_library import LaunchConfig
from tests.codegen.cuda.cuda_runner import check_guards, compile_emulated, guarded

FAIR, EAGER, GREEDY, REVERSED, SHUFFLED = 0, 1, 2, 4, 8
ORDERS = (FAIR, EAGER, GREEDY, GREEDY | EAGER, REVERSED, REVERSED | GREEDY | EAGER, SHUFFLED)
DEPENDENT = 1  # INFERC_LAUNCH_DEPENDENT
_HEADER = "emulation_test.cuh"
_KERNEL = re.compile(r"^(?:INFERC_KERNEL|PLANTED)\((\w+)", re.M)


class EmulationError(Exception):
    """A launch that failed, with what the emulation says."""


class _Args(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_void_p * 3),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_int32),
    )


class EmulatedKernels:
    """A compiled file: `run(name, ...)` launches a kernel of it."""

    def __init__(self, file: Path, sm: int) -> None:
        text = file.read_text(encoding="utf-8")
        self.names = _KERNEL.findall(text)
        header = (file.parent / _HEADER).read_text(encoding="utf-8")
        text = f'#line 1 "{file.name}"\n' + text.replace(
            f'#include "{_HEADER}"', f'#line 1 "{_HEADER}"\n{header}#line 4 "{file.name}"'
        ).replace("#pragma once", "")
        table = ", ".join(f'{{"{name}", {name}_emulated}}' for name in self.names)
        text += f"""
#include "inferc/cuda/step_abi.h"
static const EmulatedKernel kTable[] = {{{table}}};
extern "C" int32_t test_launch(int32_t kernel, const inferc_launch_config *config,
                               const void *args, uint64_t bytes) {{
    inferc_launch *launch = emulation_launch;
    return launch(const_cast<EmulatedKernel *>(kTable), kernel, config, args, bytes);
}}
"""
        self.library = compile_emulated(text, sm)
        self.library.inferc_emulation_error.restype = ctypes.c_char_p

    def run(
        self, name: str, inputs: Sequence[np.ndarray], shape: tuple[int, ...], dtype: str = "f4", *,
        threads: int, grid: tuple[int, int, int] = (1, 1, 1), shared_bytes: int = 0, n: int = 0,
        order: int = FAIR, fill: int = 0xFF, flags: int = 0,
    ) -> np.ndarray:  # fmt: skip
        """The output, filled with `fill` before; its guards are checked after.

        With the flag of dependent launches the inputs are zero until the kernel waits for them.

        Raises:
            EmulationError: the launch failed.
            AssertionError: the kernel wrote before or behind its output.
        """
        kept = []
        for array in inputs:
            inner, _ = guarded(array.nbytes)
            inner[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
            kept.append(inner)
        inner, whole = guarded(int(np.prod(shape)) * np.dtype(dtype).itemsize, fill)
        addresses = [a.ctypes.data for a in kept] + [0] * (3 - len(kept))
        args = _Args((ctypes.c_void_p * 3)(*addresses), inner.ctypes.data, n)
        config = LaunchConfig((ctypes.c_uint32 * 3)(*grid), threads, shared_bytes, 1, flags)
        self.library.inferc_emulation_order(order)
        late = [a.copy() for a in kept] if flags & DEPENDENT else []
        regions = (ctypes.c_uint64 * (3 * len(late)))()
        for i, (there, here) in enumerate(zip(kept, late, strict=False)):
            there[:] = 0
            regions[3 * i : 3 * i + 3] = [there.ctypes.data, here.ctypes.data, here.nbytes]
        self.library.inferc_emulation_withhold(regions, len(late))
        code = self.library.test_launch(
            self.names.index(name), ctypes.byref(config), ctypes.byref(args),
            ctypes.c_uint64(ctypes.sizeof(args)),
        )  # fmt: skip
        if code != 0:
            raise EmulationError(self.library.inferc_emulation_error().decode())
        check_guards(inner, whole)
        return inner.view(dtype).reshape(shape).copy()
