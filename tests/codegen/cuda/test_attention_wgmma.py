"""CUDA attention of many rows by wgmma, under emulation: against float64."""

from __future__ import annotations

import numpy as np
import pytest
from attention_world import Chunk, Shape, Units, World, compile_shapes
from cuda_runner import ORDERS, as_group

from inferc.codegen.kernel import KernelOptions
from inferc.codegen.registry import choose
from inferc.codegen.targets import parse_target
from inferc.ir.parse import parse_func

SHAPES = (
    Shape(heads=4, kv_heads=2, k_dim=128, v_dim=128, scale=0.09),
    Shape(heads=3, kv_heads=1, k_dim=64, v_dim=64, page=16, window=100, sinks=True),
    Shape(heads=2, kv_heads=1, k_dim=64, v_dim=128, page=64, softcap=5.0, alibi=True),
)
OTHERS = (
    Shape(heads=2, kv_heads=1, k_dim=80, v_dim=64),
    Shape(heads=2, kv_heads=1, k_dim=64, v_dim=64, page=48),
    Shape(heads=2, kv_heads=1, k_dim=64, v_dim=64, kv="f16"),
)
BATCH: list[Chunk] = [(0, 250, 330), (1, 0, 20), (2, 0, 1)]
"""Over a prefix, with a second tile of rows; none before; one token."""


@pytest.fixture(scope="module")
def units() -> Units:
    return compile_shapes(SHAPES, 90, phases=("prefill",), fast_prefill=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill(shape: Shape, units: Units) -> None:
    world, unit = World(shape, (330, 20, 1)), units[shape, "prefill"]
    whole = world.run(unit, BATCH)
    for got, want, most in zip(whole, *world.reference(BATCH), strict=True):
        assert (np.abs(got - want) <= most).all(), np.abs(got - want).max()
    again = world.run(unit, BATCH, order=ORDERS[1])
    assert all(np.array_equal(x, y) for x, y in zip(whole, again, strict=True))
    # With a multiprocessor for each tile it is the other kernel, whose sums are of rounded shares.
    few = world.run(unit, BATCH, split=True)
    assert not np.array_equal(few[0], whole[0])
    for got, want, most in zip(few, *world.reference(BATCH), strict=True):
        assert (np.abs(got - want) <= most).all(), np.abs(got - want).max()


def test_pages_before_the_window_are_not_touched(units: Units) -> None:
    shape, world = SHAPES[1], World(SHAPES[1], (330,))
    whole = world.run(units[shape, "prefill"], [(0, 250, 330)])
    assert shape.window is not None
    gone = (250 - shape.window + 1) // shape.page
    world.pages[0][:gone] = [1 << 29] * gone
    assert np.array_equal(world.run(units[shape, "prefill"], [(0, 250, 330)])[0], whole[0])


def chosen(shape: Shape, target: str = "cuda:sm_80+sm_90a", phase: str = "prefill") -> str:
    options = KernelOptions(parse_target(target), fast_prefill=True)
    return choose(as_group(parse_func(shape.text()), phase), options).name


def test_where_it_is_chosen() -> None:
    assert {chosen(shape) for shape in SHAPES} == {"attention_wgmma"}
    assert {chosen(shape) for shape in OTHERS} == {"attention"}
    assert chosen(SHAPES[0], phase="decode") == chosen(SHAPES[0], "cuda:sm_80") == "attention"
    group = as_group(parse_func(SHAPES[0].text()), "prefill")
    assert choose(group, KernelOptions(parse_target("cuda:sm_90a"))).name == "attention"
