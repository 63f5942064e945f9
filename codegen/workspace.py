"""Scratch that CPU kernels need, as their headers compute it (``matmul.h``, ``attention.h``)."""

_PANEL_K = 256
_CHUNK_BYTES = 112 * 4 * 16 * 4
_PANEL_BYTES = _PANEL_K * 2 * 64 + 2 * (_PANEL_K // 16 * 2 * 64)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _prepared_bytes(rows: int, k: int) -> int:
    return rows * (4 * (k + 1) + k // 8 + k // 4 + k // 4 + 4) + 64


def matmul_scratch_bytes(rows: int, k: int) -> int:
    """Scratch of one worker for up to ``rows`` rows of ``k``; a kernel needs this times the workers."""
    panel_rows = 112 if k <= 4096 else 56
    prepared = min(_round_up(rows, 8) + 14, panel_rows + 14)
    return _round_up(_prepared_bytes(prepared, k) + 28 * 128, 64) + _CHUNK_BYTES + _PANEL_BYTES
