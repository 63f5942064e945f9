"""Target specs: names, resolution, refusals."""

from __future__ import annotations

import pytest

from inferc.codegen.targets import list_targets, parse_target
from inferc.codegen.targets.cpu import native_target
from inferc.errors import CompileError

V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe"})
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("isa", "name"),
    [
        (frozenset({"sse2"}), "cpu:portable"),
        (V3, "cpu:x86-64-v3"),
        (V3 | {"avx512f"}, "cpu:x86-64-v3"),
        (V4, "cpu:x86-64-v4"),
        (V4 | {"avx512bf16", "avx512vnni"}, "cpu:x86-64-v4+vnni+bf16"),
        (None, "cpu:portable"),
    ],
)
def test_native_is_the_best_that_fits(isa: frozenset[str] | None, name: str) -> None:
    assert native_target("x86_64", isa).name == name


def test_other_machines_are_portable() -> None:
    target = native_target("aarch64", V4)
    assert (target.name, target.machine, target.flags) == ("cpu:portable", "aarch64", ())


def test_order_of_features_does_not_matter() -> None:
    assert parse_target("cpu:x86-64-v4+bf16+vnni") == parse_target("cpu:x86-64-v4+vnni+bf16")
    assert parse_target("cpu:x86-64-v4+bf16").isa[-1] == "avx512bf16"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpu:x", "Unknown target"),
        ("cpu:", "Known targets: cpu:native"),
        ("cpu:x86-64-v9", "Unknown target"),
        ("cpu:x86-64-v4+amx", "unknown feature 'amx'. Known: vnni, bf16"),
        ("cpu:x86-64-v3+vnni", "needs cpu:x86-64-v4"),
        ("cpu:native+bf16", "takes no '+' features"),
    ],
)
def test_refusals(spec: str, message: str) -> None:
    with pytest.raises(CompileError, match=message.replace("+", r"\+")):
        parse_target(spec)


def test_list_names_what_parses() -> None:
    assert all(parse_target(name) for name, _ in list_targets())
