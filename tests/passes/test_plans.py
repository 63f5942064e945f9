"""Memory plan, barriers and KV plan: properties that must hold for any model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import nn_models
import pytest
from test_serve_models import GIVEN, PIPELINE

from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.ir.parse import parse_module
from inferc.ir.types import CacheType
from inferc.passes.analysis.barriers import barriers
from inferc.passes.manager import run_passes
from inferc.passes.plan_kv import PlanKv, kv_plan
from inferc.passes.plan_memory import groups, lifetimes, memory_plan
from inferc.passes.rebuild import step_funcs
from inferc.passes.registry import parse_pipeline
from inferc.runtime.artifact import CacheEntry, KvPlan
from inferc.runtime.executors.kv_pools import pool_sizes


def planned(name: str, **changes: object) -> Module:
    module = nn_models.build(name, **changes)
    run_passes(module, parse_pipeline(PIPELINE + ",plan-memory"), given=GIVEN)
    return module


@pytest.mark.parametrize("name", nn_models.MODELS)
def test_live_buffers_do_not_overlap(name: str) -> None:
    module = planned(name)
    plan = memory_plan(module)
    assert plan.arena_bytes % 64 == 0
    for a, b in combinations([x for x in plan.buffers if x.phase == "prefill"], 2):
        alive = a.first_step <= b.last_step and b.first_step <= a.last_step
        shared = a.offset_bytes < b.offset_bytes + b.nbytes and b.offset_bytes < (
            a.offset_bytes + a.nbytes
        )
        assert not (alive and shared), (a, b)
    assert all(b.offset_bytes % 64 == 0 for b in plan.buffers)


@pytest.mark.parametrize("name", nn_models.MODELS)
def test_sharing_memory_costs_no_barrier(name: str) -> None:
    module = planned(name)
    for func in step_funcs(module):
        waits, runs = barriers(func), [life.first_run for life in lifetimes(func)]
        assert sum(waits) <= max(runs) + 1  # the last run may only write the logits


def test_barriers_where_data_flows_and_nowhere_else() -> None:
    func = planned("smollm3").funcs["prefill"]
    kinds = [str(op.attrs["kind"]) for op in groups(func)]
    found = dict(zip(range(len(kinds)), zip(kinds, barriers(func), strict=True), strict=True))
    assert found[0] == ("embedding", False)
    assert found[1] == ("rope_table", False)  # reads positions only
    attention = [i for i, kind in enumerate(kinds) if kind == "attention"]
    assert all(found[i][1] for i in attention)  # reads the cache that rope_append writes
    gathers = [i for i, kind in enumerate(kinds) if kind == "gather"]
    assert [found[i][1] for i in gathers] == [True, False]


def test_a_buffer_in_the_place_of_one_just_read_needs_a_barrier() -> None:
    text = """
    func @prefill(%ids: i32[T]) -> (f32[T, 8]) where T in 1..8 {
      %e = param @embed : f32[16, 8]
      %x = fuse.group(%e = %e, %ids = %ids) {kind = "a", offsets = (0,)} : f32[T, 8] {
        %x = core.embedding(%e, %ids) : f32[T, 8]
        yield %x
      }
      %y = fuse.group(%x = %x) {kind = "b", offsets = (256,)} : f32[T, 8] {
        %y = core.exp(%x) : f32[T, 8]
        yield %y
      }
      %z = fuse.group(%e = %e, %ids = %ids) {kind = "c", offsets = (OFFSET,)} : f32[T, 8] {
        %z = core.embedding(%e, %ids) : f32[T, 8]
        yield %z
      }
      %w = fuse.group(%y = %y, %z = %z) {kind = "d", offsets = (none,)} : f32[T, 8] {
        %w = core.add(%y, %z) : f32[T, 8]
        yield %w
      }
      return %w
    }"""
    apart = parse_module(text.replace("OFFSET", "512")).funcs["prefill"]
    shared = parse_module(text.replace("OFFSET", "192")).funcs["prefill"]
    assert barriers(apart) == (False, True, False, True)
    assert barriers(shared) == (False, True, True, True)


def test_a_value_of_which_each_worker_has_a_copy_is_not_waited_for() -> None:
    text = """
    func @decode(%ids: i32[T]) -> (f32[T, 8]) where T in 1..8 {
      %e = param @embed : f32[16, 8]
      %x = fuse.group(%e = %e, %ids = %ids) {kind = "a", offsets = (0,)} : f32[T, 8] {
        %x = core.embedding(%e, %ids) : f32[T, 8]
        yield %x
      }
      %y = fuse.group(%x = %x) {kind = "b", offsets = (256,)} : f32[T, 8] {
        %y = core.exp(%x) : f32[T, 8]
        yield %y
      }
      %v = core.reshape(%y) {shape = (T, 8)} : f32[T, 8]
      %z = fuse.group(%y = %v) {kind = "c", offsets = (OFFSET,)} : f32[T, 8] {
        %z = core.exp(%y) : f32[T, 8]
        yield %z
      }
      %w = fuse.group(%z = %z) {kind = "d", offsets = (none,)} : f32[T, 8] {
        %w = core.exp(%z) : f32[T, 8]
        yield %w
      }
      return %w
    }"""
    apart = parse_module(text.replace("OFFSET", "512")).funcs["decode"]
    over = parse_module(text.replace("OFFSET", "0")).funcs["decode"]  # in the place of %x
    assert barriers(apart) == barriers(over) == (False, True, True, True)
    y = [[op.result for op in groups(func)][1] for func in (apart, over)]
    assert barriers(apart, [y[0]]) == (False, True, False, True)
    assert barriers(over, [y[1]]) == (False, True, True, True)


def test_arena_does_not_grow_with_layers() -> None:
    sizes = [memory_plan(planned("gemma3", layers=n)).arena_bytes for n in (4, 12)]
    assert sizes[0] == sizes[1]


def test_kv_plan_counts_bytes() -> None:
    plan = kv_plan(planned("gemma2").funcs["decode"])
    assert [c.window_tokens for c in plan.caches] == [5, None]
    heads, dims = nn_models.GROUPS, 2 * nn_models.HEAD
    assert plan.bytes_per_token == 2 * heads * dims * 4
    assert plan.page_bytes == plan.page_tokens * plan.bytes_per_token
    assert plan.pages_for(3 * plan.page_bytes + 1) == 3


def test_a_cache_of_i8_has_two_scales_a_token_and_head() -> None:
    cache = CacheType(3, 40, 24, "i8", 16)
    assert cache.bytes_per_token == 3 * (40 + 24 + 2 * 4)
    assert replace(cache, v_in_k=True).bytes_per_token == 3 * (40 + 4)
    entries = tuple(CacheEntry("kv", 3, 40, 24, None, v_in_k=shared) for shared in (False, True))
    page_bytes = [16 * replace(cache, v_in_k=e.v_in_k).bytes_per_token for e in entries]
    for entry, nbytes in zip(entries, page_bytes, strict=True):
        (size,) = pool_sizes(KvPlan(16, "i8", nbytes // 16, nbytes, (entry,)))
        assert size.k_bytes == 3 * 16 * (40 + 4) and size.k_bytes + size.v_bytes == nbytes


@pytest.mark.parametrize("options", [{"page_tokens": 24}, {"dtype": "u8"}])
def test_kv_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(CompileError, match="not supported: choose"):
        PlanKv(**options).run(Module(), None)  # type: ignore[arg-type]


def test_no_plan_before_the_pass() -> None:
    module = nn_models.build("llama")
    run_passes(module, parse_pipeline("flatten-tokens,page-attention"), given=GIVEN)
    with pytest.raises(ValueError, match="run plan-kv first"):
        kv_plan(module.funcs["forward"])
