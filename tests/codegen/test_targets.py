"""Target specs: names, resolution, refusals."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inferc.codegen.targets import joined_name, list_targets, parse_target, parse_targets
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
    target = native_target("riscv64", V4)
    assert (target.name, target.machine, target.flags) == ("cpu:portable", "riscv64", ())


def test_arm_has_levels_of_its_own() -> None:
    assert native_target("aarch64", V4).name == "cpu:portable"
    assert native_target("aarch64", frozenset({"neon", "fp"})).name == "cpu:armv8-a"
    assert native_target("aarch64", frozenset({"neon", "dotprod"})).name == "cpu:armv8-a"
    isa = frozenset({"neon", "atomics", "crc32", "asimdrdm", "i8mm", "dotprod", "sve"})
    target = native_target("aarch64", isa)
    assert (target.name, target.machine) == ("cpu:armv8.2-a+dotprod+i8mm", "aarch64")
    assert target.flags == ("-march=armv8.2-a+dotprod+i8mm",)
    assert not target.has_bf16_dots and parse_target("cpu:armv8.2-a+bf16").has_bf16_dots


SEVERAL = [
    ("cpu:x86-64-v3,cpu:x86-64-v4+bf16+vnni", "cpu:x86-64-v4+vnni+bf16,x86-64-v3"),
    ("cpu:x86-64-v3,x86-64-v3,portable", "cpu:x86-64-v3,portable"),
    ("cpu:x86-64", "cpu:x86-64-v4+vnni+bf16,x86-64-v4,x86-64-v3"),
    ("cpu:aarch64", "cpu:armv8.2-a+dotprod+i8mm+bf16,armv8.2-a+dotprod,armv8-a"),
    ("cpu:armv8.2-a+dotprod,armv8-a", "cpu:armv8.2-a+dotprod,armv8-a"),
    ("cpu:x86-64-v3", "cpu:x86-64-v3"),
    ("cuda:sm_90a+sm_80", "cuda:sm_80+sm_90a"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "name"), SEVERAL)
def test_several_stand_from_the_most_to_the_least_capable(spec: str, name: str) -> None:
    targets = parse_targets(spec)
    assert joined_name(targets) == name and parse_targets(name) == targets
    for stronger, weaker in pairwise(targets):
        assert not set(stronger.isa) < set(weaker.isa)


def test_one_target_is_one() -> None:
    with pytest.raises(CompileError, match="stands for 3 targets, and one is wanted"):
        parse_target("cpu:x86-64")


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
        ("cpu:x86-64-v3+vnni", "cpu:x86-64-v3 takes no '+' features"),
        ("cpu:aarch64+bf16", "takes no '+' features"),
        ("cpu:armv8.2-a+sve", "unknown feature 'sve'. Known: dotprod, i8mm, bf16"),
        ("cpu:x86-64-v3,", "Unknown target 'cpu:'"),
        ("cpu:native+bf16", "takes no '+' features"),
    ],
)
def test_refusals(spec: str, message: str) -> None:
    with pytest.raises(CompileError, match=message.replace("+", r"\+")):
        parse_target(spec)


def test_list_names_what_parses() -> None:
    assert all(parse_targets(name) for name, _ in list_targets())
