"""The headers under sanitizers, and compiled by another compiler for another machine."""

import importlib.util
import os
import subprocess
import sys

import pytest
from kernel_library import HERE, INCLUDE, ISAS, cached, cpu_flags

SANITIZERS = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
    "-Wno-psabi",
]


@pytest.mark.parametrize("isa", ["avx512", "portable"])
def test_address_and_undefined_behaviour_sanitizers(isa):
    missing = set(ISAS[isa][0].split()) - cpu_flags()
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")
    options = [
        "-std=c++17",
        "-fno-exceptions",
        "-fno-rtti",
        "-ffp-contract=off",
        *ISAS[isa][1].split(),
        *SANITIZERS,
    ]
    program = cached(f"sanitize-{isa}", [*options, *WARNINGS], HERE / "sanitize.cpp", ("-pthread",))
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=1200)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-6000:]


@pytest.mark.parametrize(
    "target",
    [["-target", "aarch64-linux-gnu"], ["-target", "x86_64-linux-gnu", "-mcpu=x86_64_v4"]],
    ids=" ".join,
)
def test_compiles_without_the_cxx_library(target, tmp_path):
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the ziglang package (another compiler, with targets) is not installed")
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-x",
        "c++",
        "-std=c++17",
        "-O1",
        "-nostdlib++",
    ]
    command += [
        "-fno-exceptions",
        "-fno-rtti",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
        "-Werror",
        *target,
    ]
    command += [f"-I{INCLUDE}", "-c", str(HERE / "sanitize.cpp"), "-o", str(tmp_path / "out.o")]
    environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(tmp_path / "zig")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr[-6000:]
