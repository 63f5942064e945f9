"""Compiles one row kernel and runs it on arrays, beside the interpreter."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inferc.codegen.build import Source, build_library
from inferc.codegen.cache import Cache, default_root
from inferc.codegen.group import Group, has_rows, row_shape, tensor
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.registry import choose
from inferc.codegen.system_headers import make_system_header
from inferc.codegen.targets import parse_target
from inferc.codegen.toolchain import find_compiler
from inferc.codegen.units import Units
from inferc.ir.core import Builder, Func
from inferc.ir.location import ModuleLoc
from inferc.ir.parse import parse_func

LOC = ModuleLoc("test")


def as_group(body: Func) -> Group:
    """A function as the body of a group whose operands are the arguments of a step."""
    step = Func("prefill", dict(body.symbols))
    operands = [step.add_arg(a.hint, a.type) for a in body.args]
    op = Builder(step).group(operands, body, loc=LOC)
    return Group(op, step)


@dataclass
class RowKernel:
    """A compiled row kernel."""

    body: Func
    name: str
    library: ctypes.CDLL
    path: Path

    def __call__(
        self, arrays: Sequence[np.ndarray], rows: int, *, workers: int = 1, shift: int = 0
    ) -> list[np.ndarray]:
        """Run all workers one after another; results begin `shift` floats off alignment."""
        outputs = []
        for result in self.body.results:
            shape = (rows, *row_shape(tensor(result)))
            guarded = np.full(int(np.prod(shape)) + shift + 16, np.nan, np.float32)
            outputs.append((guarded, shape))
        pointers = [np.ascontiguousarray(a).ctypes.data for a in arrays]
        pointers += [guarded.ctypes.data + 4 * shift for guarded, _ in outputs]
        at = (ctypes.c_void_p * len(pointers))(*pointers)
        kernel = getattr(self.library, self.name)
        for worker in range(workers):
            kernel(None, ctypes.c_int64(rows), at, ctypes.c_int(worker), ctypes.c_int(workers))
        for guarded, _ in outputs:  # nothing before or behind the results is written
            assert np.isnan(guarded[:shift]).all() and np.isnan(guarded[-16:]).all()
        return [g[shift : len(g) - 16].reshape(shape) for g, shape in outputs]


def compile_row(text: str, *, tvm: bool, target: str = "cpu:native") -> RowKernel:
    """Compile a body, given as the text of a function."""
    body = parse_func(text)
    options = KernelOptions(parse_target(target), use_tvm=tvm)
    group = as_group(body)
    chosen = choose(group, options)
    group.op._attrs = group.op.card.check_attrs({**group.op.attrs, "kernel": chosen.name})
    unit = Units(options).add(group)
    # The kernel must be visible for ctypes; in a step library only the step functions are.
    code = unit.code + f'\nextern "C" __attribute__((visibility("default"))) Kernel {unit.name};\n'
    folder = Path(tempfile.mkdtemp(prefix="row-"))
    path = folder / "row.so"
    rows = [(unit.lowered_name, unit.lowered_text)] if unit.lowered_name else []
    compiler, cache = find_compiler(), Cache(default_root())
    make_system_header(compiler, options.target, cache)  # there are many rows, one at a time
    build_library(
        [Source(unit.file_name, code, code)], rows, path, target=options.target,  # type: ignore[list-item]
        compiler=compiler, cache=cache, progress=lambda *a: None,
    )  # fmt: skip
    library = ctypes.CDLL(str(path))
    shutil.rmtree(folder)
    return RowKernel(body, unit.name, library, path)


def random_arrays(body: Func, rows: int, seed: int = 0) -> list[np.ndarray]:
    """Arguments of a body for a number of rows."""
    rng = np.random.default_rng(seed)
    shapes = [
        (rows, *row_shape(tensor(a))) if has_rows(a.type) else row_shape(tensor(a))
        for a in body.args
    ]
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]
