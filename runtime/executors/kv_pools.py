"""Bytes of the pools that hold keys and values."""

from dataclasses import dataclass

from inferc.errors import ArtifactError
from inferc.runtime.artifact import KvPlan

_DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "i8": 1}
_SCALE_BYTES = {"i8": 4}  # of a token and KV head


@dataclass(frozen=True)
class PoolSize:
    """Bytes of one page of a cache. `shared`: the values lie in the keys and take none."""

    k_bytes: int
    v_bytes: int
    shared: bool


def pool_sizes(kv: KvPlan) -> tuple[PoolSize, ...]:
    """One entry a cache. Raises ArtifactError if they do not add up to the plan's page."""
    item_bytes = _DTYPE_BYTES.get(kv.dtype)
    if item_bytes is None:
        raise ArtifactError(
            f"manifest.json: kv.dtype: expected one of {', '.join(_DTYPE_BYTES)},"
            f" found '{kv.dtype}'."
        )

    def part(kv_heads: int, dim: int) -> int:
        return kv.page_tokens * kv_heads * (dim * item_bytes + _SCALE_BYTES.get(kv.dtype, 0))

    sizes = tuple(
        PoolSize(part(c.kv_heads, c.k_dim), 0 if c.v_in_k else part(c.kv_heads, c.v_dim), c.v_in_k)
        for c in kv.caches
    )
    expected = sum(size.k_bytes + size.v_bytes for size in sizes)
    if expected != kv.page_bytes:
        raise ArtifactError(
            f"manifest.json: kv.page_bytes: expected {expected} from the caches listed,"
            f" found {kv.page_bytes}; compile the model again."
        )
    return sizes
