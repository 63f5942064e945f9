"""The ops that the capture hooks put into the graph."""

from __future__ import annotations

from inferc.frontend.aten_table import Emitter, aten, rank, tensor, unsupported
from inferc.ir.core import Value


@aten("inferc.attention.default")
def _attention(
    e: Emitter,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    sinks: Value | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> Value:
    """From `[B, H, S, D]` to `[B, S, H, D]`; the transposes of the model cancel against these."""
    if mask is not None and tensor(mask).dtype != "bool":
        raise unsupported(f"attention with a computed bias {tensor(mask)} is not supported.")
    operands = [_heads_last(e, v) for v in (query, key, value)]
    operands += [v for v in (mask, sinks) if v is not None]
    return e.op(
        "nn.attention",
        *operands,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
    )


def _heads_last(e: Emitter, x: Value) -> Value:
    assert rank(x) == 4
    return e.transpose(x, (0, 2, 1, 3))


@aten("inferc.mask.default")
def _mask(
    e: Emitter,
    _like: Value,
    _batch: object,
    _length: object,
    kind: str,
    window: int | None,
    chunk: int | None,
) -> Value:
    """One sequence a row and contiguous positions: the mask is a function of positions alone."""
    for what, tokens in (("a sliding window", window), ("an attention chunk", chunk)):
        if tokens is not None and tokens < 1:
            raise unsupported(
                f"{what} of {tokens} tokens shows no token: expected at least 1, or null in "
                "config.json for none."
            )
    return e.op("nn.mask", e.positions, kind=kind, window=window, chunk=chunk)


@aten("aten.empty.memory_format")
def _empty(e: Emitter, *_: object, **__: object) -> None:
    """Uninitialised memory: nothing may read it, except the mask op, which ignores it."""
