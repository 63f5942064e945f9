"""Tests that every op gets from its card: inference against reference, precision, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from inferc.ir.card import CARDS, BadSample, Card, Sample, TypeMismatch, card, register
from inferc.ir.core import Builder, Func, Op, Value
from inferc.ir.interp import run
from inferc.ir.location import ModuleLoc
from inferc.ir.ops.serve import pools_of_keys
from inferc.ir.parse import parse_func
from inferc.ir.text import print_func, structural_hash
from inferc.ir.types import CacheType, Memory, StateType, TensorType, Type, numpy_dtype
from inferc.ir.verify import verify

SPECIAL = {"param", "fuse.group"}  # types are given, or come from the body
LOC = ModuleLoc("test")
POSITIVE = {"core.log", "core.sqrt", "core.rsqrt", "core.pow", "core.div", "core.reciprocal"}
SAMPLES = [
    pytest.param(c, s, id=f"{c.name}-{i}") for c in CARDS.values() for i, s in enumerate(c.samples)
]
BAD = [
    pytest.param(c, s, id=f"{c.name}-{i}") for c in CARDS.values() for i, s in enumerate(c.refused)
]
ORDINARY = [c for c in CARDS.values() if c.name not in SPECIAL]


def function_of(spec: Card, sample: Sample) -> Func:
    """A function that is one op."""
    func = Func("f")
    args = [func.add_arg(f"x{i}", t) for i, t in enumerate(sample.operands)]
    op = Builder(func).ops(spec.name, *args, loc=LOC, **sample.attrs)
    return Builder(func).returns(*op.results)


def array(type_: Type, rng: np.random.Generator, *, positive: bool) -> Any:
    if isinstance(type_, CacheType):
        page = type_.page_tokens or 4
        k = rng.standard_normal((3, type_.kv_heads, type_.k_dim, page))
        if type_.v_in_k:
            return pools_of_keys(k, type_.v_dim)
        return k, rng.standard_normal((3, type_.kv_heads, page, type_.v_dim))
    if isinstance(type_, StateType):
        return rng.standard_normal((3, *type_.shape))
    shape = tuple(int(s) for s in type_.shape)  # type: ignore[arg-type]
    if type_.dtype == "bool":
        return rng.random(shape) < 0.5
    if not type_.is_float:
        return rng.integers(0, 5, shape).astype(numpy_dtype(type_.dtype))
    values = rng.standard_normal(shape)
    return np.abs(values) + 0.5 if positive else values


def inputs_of(spec: Card, sample: Sample) -> list[Any]:
    rng = np.random.default_rng(sum(map(ord, spec.name)))
    made = []
    for i, type_ in enumerate(sample.operands):
        value = array(type_, rng, positive=spec.name in POSITIVE)
        if i in sample.values:
            value = np.array(sample.values[i], value.dtype).reshape(value.shape)
        made.append(value)
    return made


def test_every_op_has_samples_and_refusals() -> None:
    without = [c.name for c in ORDINARY if not c.samples]
    assert without == []
    can_refuse = [c for c in ORDINARY if len(c.operands) > 1]
    assert [c.name for c in can_refuse if not c.refused] == []


@pytest.mark.parametrize(("spec", "sample"), SAMPLES)
def test_reference_fits_inference(spec: Card, sample: Sample) -> None:
    func = function_of(spec, sample)
    for result, found in zip(func.results, run(func, inputs_of(spec, sample)), strict=True):
        if isinstance(result.type, CacheType):
            assert [a.dtype for a in found] == [np.float32] * 2
            continue
        if isinstance(result.type, StateType):
            assert (found.dtype, found.shape) == (np.float32, (3, *result.type.shape))
            continue
        assert found.shape == result.type.shape
        expected = np.dtype(np.float32) if result.type.is_float else numpy_dtype(result.type.dtype)
        assert found.dtype == expected


@pytest.mark.parametrize(("spec", "sample"), SAMPLES)
def test_float32_agrees_with_float64(spec: Card, sample: Sample) -> None:
    func, inputs = function_of(spec, sample), inputs_of(spec, sample)
    narrow, wide = run(func, inputs), run(func, inputs, precision="f64")
    for result, a, b in zip(func.results, narrow, wide, strict=True):
        pair = zip(a, b, strict=True) if isinstance(result.type, CacheType) else [(a, b)]
        for x, y in pair:
            if x.dtype.kind == "f":
                assert y.dtype == np.float64
                assert np.linalg.norm(x - y) <= 1e-5 * np.linalg.norm(y)
            else:
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("spec", "sample"), SAMPLES)
def test_inputs_are_not_changed(spec: Card, sample: Sample) -> None:
    func, inputs = function_of(spec, sample), inputs_of(spec, sample)
    run(func, inputs, precision="f64")
    for before, after in zip(inputs_of(spec, sample), inputs, strict=True):
        pair = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
        for x, y in pair:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("spec", "sample"), SAMPLES)
def test_text_round_trip(spec: Card, sample: Sample) -> None:
    func = function_of(spec, sample)
    text = print_func(func, locations=True)
    again = parse_func(text)
    assert print_func(again, locations=True) == text
    assert structural_hash(again) == structural_hash(func)


@pytest.mark.parametrize(("spec", "sample"), SAMPLES)
def test_cost_is_declared(spec: Card, sample: Sample) -> None:
    types = list(sample.operands)
    attrs = spec.check_attrs(sample.attrs)
    results = spec.infer(types, attrs)
    assert spec.reads is None or len(spec.reads(types, attrs)) == len(types)
    assert spec.writes is None or len(spec.writes(types, attrs)) == len(results)
    assert spec.flops(types, attrs) is not None


@pytest.mark.parametrize(("spec", "bad"), BAD)
def test_refuses(spec: Card, bad: BadSample) -> None:
    with pytest.raises(TypeMismatch, match=re.escape(bad.message)):
        spec.infer(list(bad.operands), spec.check_attrs(bad.attrs))


@pytest.mark.parametrize("spec", ORDINARY, ids=lambda c: c.name)
def test_refuses_bad_attributes(spec: Card) -> None:
    sample = spec.samples[0]
    with pytest.raises(TypeMismatch, match="unknown attribute 'nonsense'"):
        spec.check_attrs({**sample.attrs, "nonsense": 1})
    for attr in spec.attrs:
        if attr.required:
            rest = {k: v for k, v in sample.attrs.items() if k != attr.name}
            with pytest.raises(TypeMismatch, match=f"attribute '{attr.name}' is missing"):
                spec.check_attrs(rest)
        with pytest.raises(TypeMismatch, match=attr.name):
            spec.check_attrs({**sample.attrs, attr.name: [1]})  # type: ignore[dict-item]
        if attr.choices:
            wrong = "?" if attr.kinds == (str,) else -99
            with pytest.raises(TypeMismatch, match="must be one of"):
                spec.check_attrs({**sample.attrs, attr.name: wrong})


@pytest.mark.parametrize("spec", [c for c in ORDINARY if c.operands], ids=lambda c: c.name)
def test_refuses_wrong_operands(spec: Card) -> None:
    sample, func = spec.samples[0], Func("f")
    args = [func.add_arg("x", t) for t in sample.operands]
    low, high = spec.arity
    if low:
        with pytest.raises(TypeMismatch):
            Op(spec, args[: low - 1], sample.attrs, loc=LOC)
    if high is not None:
        extra = [*args, *[args[-1]] * (high + 1 - len(args))]
        with pytest.raises(TypeMismatch, match="operands"):
            Op(spec, extra, sample.attrs, loc=LOC)
    other: Type = CacheType(1, 2, 2, "f32")
    if isinstance(sample.operands[0], CacheType):
        other = TensorType((2,), "f32")
    swapped = [Value(other, None, 0, "x"), *args[1:]]
    with pytest.raises(TypeMismatch):
        Op(spec, swapped, sample.attrs, loc=LOC)


@pytest.mark.parametrize(("spec", "sample"), SAMPLES)
def test_verifies(spec: Card, sample: Sample) -> None:
    from inferc.ir.core import Module

    func = function_of(spec, sample)
    if any(isinstance(a.type, Memory) for a in func.args) and not spec.stateful:
        caches = [a for a in func.args if isinstance(a.type, Memory)]
        func.results += caches  # a function hands back the caches it was given
    verify(Module({"f": func}))


def test_one_card_a_name() -> None:
    with pytest.raises(ValueError, match="two cards"):
        register(card("core.add"))
    with pytest.raises(KeyError, match=r"did you mean core\.add"):
        card("core.ad")
