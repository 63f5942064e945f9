"""Scratch that CPU kernels need, as their headers compute it (``matmul.h``, ``attention.h``)."""

_PANEL_K = 256
_CHUNK_BYTES = 112 * 4 * 16 * 4
_PANEL_BYTES = _PANEL_K * 2 * 64 + 2 * (_PANEL_K // 16 * 2 * 64)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _prepared_bytes(rows: int, k: int) -> int:
    return rows * (4 * (k + 1) + k // 8 + k // 4 + k // 4 + 4) + 64


def matmul_scratch_bytes(rows: int, k: int) -> int:
    """Scratch of one worker for up to ``rows`` rows of ``k``; a kernel needs that many times."""
    panel_rows = 112 if k <= 4096 else 56
    prepared = min(_round_up(rows, 8) + 14, panel_rows + 14)
    return _round_up(_prepared_bytes(prepared, k) + 28 * 128, 64) + _CHUNK_BYTES + _PANEL_BYTES


_PARTITION_TOKENS = 256
_TILE_QUERY_ROWS = 32
_MAX_PAGE_TOKENS = 64


def attention_scratch_bytes(
    heads: int, kv_heads: int, k_dim: int, v_dim: int, context_tokens: int, workers: int
) -> int:
    """Scratch of all workers together, for contexts up to ``context_tokens``."""
    v_padded = _round_up(v_dim, 16)
    worker = _round_up(_TILE_QUERY_ROWS * (k_dim + _MAX_PAGE_TOKENS + 2 * v_padded) * 4, 64)
    partials = 0
    if workers > 1 and context_tokens > _PARTITION_TOKENS:
        partials = 4 * workers * (heads // kv_heads) * -(-context_tokens // _PARTITION_TOKENS)
    return workers * worker + partials * (v_padded + 16) * 4
