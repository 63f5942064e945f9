"""The runtime's mirror of the step's C interface, against the header itself."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from inferc.codegen.render import INCLUDE
from inferc.codegen.toolchain import find_compiler
from inferc.runtime.artifact import ABI_VERSION, READABLE_ABI_VERSIONS
from inferc.runtime.executors.step_library import PoolOptions, StepArgs

HEADER = INCLUDE / "inferc/step_abi.h"
MIRRORS = {"inferc_step_args": StepArgs, "inferc_pool_options": PoolOptions}


def fields_in_c(struct: str, mirror: type[ctypes.Structure], folder: Path) -> dict[str, list[int]]:
    """Offset and bytes of each field that the mirror names; "" for the whole struct."""
    names = [field[0] for field in mirror._fields_]
    lines = [
        f'printf("{n} %zu %zu\\n", offsetof({struct}, {n}), sizeof((({struct} *)0)->{n}));'
        for n in names
    ]
    source, program = folder / "layout.cpp", folder / "layout"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "inferc/step_abi.h"\nint main() {\n'
        + "\n".join(lines)
        + f'\nprintf("- 0 %zu\\n", sizeof({struct}));\n}}\n'
    )
    command = [*find_compiler().command, "-I", str(INCLUDE), str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in text.splitlines())
    return {name: [int(offset), int(size)] for name, offset, size in rows}


@pytest.mark.parametrize("struct", MIRRORS)
def test_struct_is_laid_out_as_in_c(struct: str, tmp_path: Path) -> None:
    mirror = MIRRORS[struct]
    found = fields_in_c(struct, mirror, tmp_path)
    expected = {
        field[0]: [getattr(mirror, field[0]).offset, getattr(mirror, field[0]).size]
        for field in mirror._fields_
    }
    assert found == {**expected, "-": [0, ctypes.sizeof(mirror)]}


def test_the_runtime_speaks_the_version_of_the_header() -> None:
    match = re.search(r"#define INFERC_ABI_VERSION (\d+)", HEADER.read_text())
    assert match is not None and int(match[1]) == ABI_VERSION == max(READABLE_ABI_VERSIONS)
