"""CUDA attention under emulation: against float64, and equal bits however the work is cut."""

from __future__ import annotations

import numpy as np
import pytest
from attention_world import Chunk, Shape, Units, World, compile_shapes
from cuda_runner import ORDERS

SHAPES = (
    Shape(),
    Shape(heads=6, kv_heads=2, k_dim=64, v_dim=48, page=48, kv="f16", softcap=5.0, sinks=True),
    Shape(heads=18, kv_heads=1, k_dim=16, v_dim=16, page=64, window=40, alibi=True),
    Shape(heads=3, kv_heads=3, k_dim=80, v_dim=80, page=16, chunk=300, scale=-0.2),
    Shape(heads=20, kv_heads=1, k_dim=80, v_dim=64, page=16, v_in_k=True),
    Shape(heads=12, kv_heads=2, k_dim=64, v_dim=48, kv="f8e4m3", softcap=20.0),
    Shape(heads=3, kv_heads=1, k_dim=96, v_dim=80, page=16, kv="f8e4m3", v_in_k=True, sinks=True),
    Shape(heads=6, kv_heads=2, k_dim=64, v_dim=48, kv="i8", window=300),
    Shape(heads=3, kv_heads=1, k_dim=96, v_dim=80, page=16, kv="i8", v_in_k=True, softcap=20.0),
    Shape(kv="f32", plain=True),
    Shape(heads=6, kv_heads=2, k_dim=40, v_dim=33, page=48, kv="f16", plain=True, sinks=True,
          alibi=True, softcap=3.0),
    Shape(heads=5, kv_heads=1, k_dim=24, v_dim=20, kv="f32", plain=True, v_in_k=True, window=50),
    Shape(heads=4, kv_heads=2, k_dim=20, v_dim=17, page=48, kv="i8", plain=True),
)  # fmt: skip
LARGE = (
    Shape(heads=20, kv_heads=1, k_dim=576, v_dim=512, page=16, v_in_k=True, scale=0.06),
    Shape(heads=2, kv_heads=1, k_dim=256, v_dim=256, page=48, scale=0.1),
)
LENGTHS = (1060, 45, 1, 530)
# New tokens of four sequences in one step: over a long prefix, none before, one token, across the
# end of a partition.
BATCH: list[Chunk] = [(0, 1020, 1053), (1, 0, 45), (2, 0, 1), (3, 500, 530)]


@pytest.fixture(scope="module")
def units() -> Units:
    return compile_shapes(SHAPES + LARGE, sm=86)  # the least shared memory: small tiles if need be


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill(shape: Shape, units: Units) -> None:
    world, unit = World(shape, LENGTHS), units[shape, "prefill"]
    whole = world.run(unit, BATCH)
    wanted, room = world.reference(BATCH)
    for got, want, most in zip(whole, wanted, room, strict=True):
        assert (np.abs(got - want) <= most).all(), np.abs(got - want).max()
    for order, split in ((ORDERS[1], True), (ORDERS[0], True)):
        assert equal(world.run(unit, BATCH, order=order, split=split), whole)
    parts = [world.run(unit, [(0, 1020, 1029), (3, 500, 501)])]
    parts += [world.run(unit, [(1, 45, 45), (0, 1029, 1053)])]  # the first has no new token
    assert np.array_equal(np.concatenate([parts[0][0], parts[1][1]]), whole[0])
    assert np.array_equal(parts[0][1], whole[3][:1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_equals_prefill(shape: Shape, units: Units) -> None:
    world, decode = World(shape, LENGTHS), units[shape, "decode"]
    whole = world.run(units[shape, "prefill"], BATCH)
    last: list[Chunk] = [(r, e - 1, e) for r, _, e in BATCH]
    for order in ORDERS:
        for split in (False, True):
            got = world.run(decode, last, order=order, split=split)
            assert all(np.array_equal(g[0], w[-1]) for g, w in zip(got, whole, strict=True))
    for i in (0, 3):
        assert np.array_equal(world.run(decode, [last[i]])[0][0], whole[i][-1])


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.window], ids=str)
def test_pages_before_the_window_are_not_touched(shape: Shape, units: Units) -> None:
    for phase, first in (("prefill", 1020), ("decode", 1052)):
        world = World(shape, LENGTHS[:1])
        whole = world.run(units[shape, phase], [(0, first, 1053)])
        assert shape.window is not None
        gone = (first - shape.window + 1) // shape.page
        world.pages[0][:gone] = [1 << 29] * gone
        assert equal(world.run(units[shape, phase], [(0, first, 1053)], split=True), whole)


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_large_heads(shape: Shape, units: Units) -> None:
    """Tiles of 16 keys."""
    batch: list[Chunk] = [(0, 40, 57), (1, 0, 20)]
    last: list[Chunk] = [(r, e - 1, e) for r, _, e in batch]
    for phase, chunks in (("prefill", batch), ("decode", last)):
        world = World(shape, (57, 20))
        got = world.run(units[shape, phase], chunks)
        for rows, want, most in zip(got, *world.reference(chunks), strict=True):
            assert (np.abs(rows - want) <= most).all(), np.abs(rows - want).max()
