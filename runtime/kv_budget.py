"""How many KV pages an engine gets, and why."""

from dataclasses import dataclass

from inferc.errors import RequestError
from inferc.runtime.artifact import KvPlan, Limits
from inferc.runtime.checks import is_count, require
from inferc.runtime.host import physical_memory_bytes

DEFAULT_TOKENS = 16_384
_MEMORY_SHARE = 4
"""By default KV takes at most one part in so many of the machine's memory."""
_DEVICE_SHARE = 0.9
"""By default KV takes at most this part of what the model leaves free on a device."""


@dataclass(frozen=True)
class KvBudget:
    """Pages, and what they come to. Memory becomes resident as pages are first used."""

    pages: int
    tokens: int
    nbytes: int
    reason: str

    def __str__(self) -> str:
        size = f"{self.tokens} tokens in {self.pages} pages, {self.nbytes / 2**20:.0f} MiB"
        return f"KV: {size} ({self.reason})"


def kv_budget(kv: KvPlan, limits: Limits, budget_bytes: int | None = None) -> KvBudget:
    """Pages for `budget_bytes`; by default room for one full context or 16,384 tokens."""
    require(
        "kv_budget_bytes", budget_bytes, "None or an integer of at least 1",
        budget_bytes is None or is_count(budget_bytes),
    )  # fmt: skip
    if budget_bytes is not None and kv.page_bytes:
        return _checked(kv, budget_bytes // kv.page_bytes, "as asked for")
    tokens = min(
        max(limits.context_tokens, DEFAULT_TOKENS), limits.context_tokens * limits.sequences
    )
    pages = -(-tokens // kv.page_tokens)
    reason = f"room for {tokens} tokens"
    memory_bytes = physical_memory_bytes()
    if kv.page_bytes == 0:
        reason += ", which take no memory: the model has no attention"
    elif memory_bytes is not None and pages * kv.page_bytes > memory_bytes // _MEMORY_SHARE:
        pages = memory_bytes // _MEMORY_SHARE // kv.page_bytes
        reason = "a quarter of this machine's memory"
    return _checked(kv, pages, reason)


def device_kv_budget(
    kv: KvPlan, limits: Limits, budget_bytes: int | None, room_bytes: int
) -> KvBudget:
    """Pages on a device with room for so many bytes: by default for all sequences at full length.

    Memory of a device is taken at once, used or not.
    """
    if budget_bytes is not None:
        return kv_budget(kv, limits, budget_bytes)
    pages = limits.sequences * -(-limits.context_tokens // kv.page_tokens)
    reason = f"room for {limits.sequences} sequences of {limits.context_tokens} tokens"
    if kv.page_bytes and pages * kv.page_bytes > room_bytes * _DEVICE_SHARE:
        pages = int(room_bytes * _DEVICE_SHARE) // kv.page_bytes
        reason = f"{_DEVICE_SHARE:.0%} of the device's free memory"
    return _checked(kv, pages, reason)


def _checked(kv: KvPlan, pages: int, reason: str) -> KvBudget:
    if pages < 1 or pages * kv.page_tokens < 2:
        raise RequestError(
            f"kv_budget_bytes: expected at least one page of {kv.page_bytes} bytes"
            f" ({kv.page_tokens} tokens), found room for {pages}."
        )
    return KvBudget(pages, pages * kv.page_tokens, pages * kv.page_bytes, reason)
