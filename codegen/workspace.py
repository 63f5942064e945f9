"""Scratch that CPU kernels need, as their headers compute it.

The headers are `matmul.h`, `attention.h` and `experts.h`; tests compare each function with its
twin there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferc.codegen.step import StepParams

_PANEL_K = 256
_CHUNK_BYTES = 112 * 4 * 16 * 4
_PANEL_BYTES = _PANEL_K * 2 * 64 + 2 * (_PANEL_K // 16 * 2 * 64)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _prepared_bytes(rows: int, k: int) -> int:
    k = _round_up(k, 32)
    return rows * (4 * (k + 1) + k // 8 + k // 4 + k // 4 + 4) + 64


def matmul_scratch_bytes(rows: int, k: int) -> int:
    """Scratch of one worker for up to ``rows`` rows of ``k``; a kernel needs that many times."""
    panel_rows = 112 if k <= 4096 else 56
    prepared = min(_round_up(rows, 8) + 14, panel_rows + 14)
    return _round_up(_prepared_bytes(prepared, k) + 28 * 128, 64) + _CHUNK_BYTES + _PANEL_BYTES


_PARTITION_TOKENS = 128
_TILE_QUERY_ROWS = 48
_MAX_PAGE_TOKENS = 64


def attention_scratch_bytes(
    heads: int,
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    context_tokens: int,
    workers: int,
    v_in_k: bool = False,
) -> int:
    """Scratch of all workers together, for contexts up to ``context_tokens``."""
    v_padded = _round_up(v_dim, 16)
    floats = _TILE_QUERY_ROWS * (k_dim + _MAX_PAGE_TOKENS + 2 * v_padded)
    worker = _round_up((floats + (_MAX_PAGE_TOKENS * (v_padded + 16) if v_in_k else 0)) * 4, 64)
    partials = 0
    if workers > 1 and context_tokens > _PARTITION_TOKENS:
        partials = 4 * workers * (heads // kv_heads) * -(-context_tokens // _PARTITION_TOKENS)
    return workers * worker + partials * (v_padded + 16) * 4


_EXPERT_ROWS = 112


def experts_scratch_bytes(rows: int, chosen: int, experts: int, hidden: int, inner: int) -> int:
    """Scratch of one worker for mixtures of experts."""
    lists = _round_up(4 * (experts + 1 + 2 * rows * chosen), 64)
    gathered = _EXPERT_ROWS * hidden * 4
    return lists + gathered + matmul_scratch_bytes(_EXPERT_ROWS, max(hidden, inner))


def experts_shared_bytes(rows: int, chosen: int, hidden: int, inner: int) -> int:
    """Scratch of all workers together for mixtures of experts."""
    return _round_up(4 * rows * chosen * inner, 64) + 4 * rows * chosen * hidden


_FUNCTIONS = {
    f.__name__: f
    for f in (
        matmul_scratch_bytes,
        attention_scratch_bytes,
        experts_scratch_bytes,
        experts_shared_bytes,
    )
}


def scratch_bytes(step: StepParams, threads: int) -> int:
    """Scratch that a pool of so many threads allocates: `inferc_scratch_bytes` of the library."""
    names = {
        **_FUNCTIONS,
        "kStepTokens": step.step_tokens,
        "kSequences": step.sequences,
        "kTablePages": step.table_pages,
        "workers": threads,
    }

    def largest(expressions: tuple[str, ...]) -> int:
        # Our own C++ expressions: calls of the functions above, which read the same in Python.
        return max((int(eval(e, {"__builtins__": {}}, names)) for e in expressions), default=0)

    per_worker, shared = largest(step.worker_scratch), largest(step.shared_scratch)
    return threads * _round_up(per_worker, 64) + _round_up(shared, 64)
