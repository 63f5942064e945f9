"""Attention and masks kept whole, by transformers' own extension points.

Each interface function emits one custom op, so that the exported graph holds `inferc::attention`
and `inferc::mask` nodes with every parameter the model passed. Nothing is patched per model. Runs
in the capture process only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import custom_op
from torch.utils._sympy.functions import Min
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from inferc.errors import CompileError
from inferc.frontend import capture_experts

IMPLEMENTATION = "inferc"
ADDITIVE = "inferc_additive"  # the mask of models whose attention is not part of the interface

# Arguments of the attention interface that do not change what full-sequence attention computes.
_NEUTRAL_ARGUMENTS = frozenset(
    "cache_position cache past_key_values use_cache output_attentions output_hidden_states "
    "output_router_logits return_dict position_ids position_embeddings num_items_in_batch "
    "layer_idx logits_to_keep".split()
)


@custom_op("inferc::attention", mutates_args=())
def attention_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention over `[B, H, S, D]` query and `[B, G, S, D]` key and value, before repetition."""
    raise NotImplementedError("inferc::attention exists in exported graphs only")


@attention_op.register_fake
def _attention_shape(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    batch, heads, length, dim = query.shape
    groups = key.shape[1]
    if heads % groups or value.shape[1] != groups or key.shape[-1] != dim:
        raise CompileError(
            f"attention got {heads} query heads of {dim}, {groups} key heads of {key.shape[-1]} "
            f"and {value.shape[1]} value heads; query heads must be a multiple of equal key and "
            "value heads. Check num_attention_heads, num_key_value_heads and head_dim."
        )
    return query.new_empty((batch, length, heads, value.shape[-1]))


@custom_op("inferc::mask", mutates_args=())
def mask_op(
    like: Tensor, batch: int, length: int, kind: str, window: int | None, chunk: int | None
) -> Tensor:
    """Boolean mask `[B, 1, S, S]`."""
    raise NotImplementedError("inferc::mask exists in exported graphs only")


@mask_op.register_fake
def _mask_shape(
    like: Tensor, batch: int, length: int, kind: str, window: int | None, chunk: int | None
) -> Tensor:
    return like.new_empty((batch, 1, length, length), dtype=torch.bool)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    _check_selection(module, key, indices)
    given = {k for k, v in others.items() if v is not None} - _NEUTRAL_ARGUMENTS
    if given:
        raise CompileError(
            f"{type(module).__name__} passes {', '.join(sorted(given))} to its attention, "
            "which the compiler has no operation for."
        )
    if softcap == 0:
        raise CompileError(
            f"{type(module).__name__} has a soft-cap of 0, which makes all scores 0: expected a "
            "positive number, or null in config.json for none."
        )
    scale = float(scaling) if scaling is not None else float(query.shape[-1]) ** -0.5
    masked = attention_mask is not None
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    out = attention_op(
        query,
        key,
        value,
        attention_mask,
        s_aux if s_aux is not None else sinks,
        scale,
        # With a mask, transformers' reference attention looks at nothing but the mask.
        bool(causal) and not masked,
        None if masked else sliding_window,
        None if softcap is None else float(softcap),
    )
    return out, None


def _check_selection(module: nn.Module, key: Tensor, indices: Tensor | None) -> None:
    """An index that selects all keys selects nothing. Raises CompileError for any other."""
    if indices is None:
        return
    selected, keys = (_longest(size) for size in (indices.shape[-1], key.shape[2]))
    if selected[0] != keys[0] or selected[1] < keys[1]:
        raise CompileError(
            f"{type(module).__name__} attends to the keys that an index selects for each query, "
            "for which there is no operation. A context in which all keys are selected can be "
            f"compiled: give a context length of at most {selected[1]} tokens."
        )


def _longest(size: int | torch.SymInt) -> tuple[Any, int]:
    """A size without an upper limit, and the limit: of min(s, 2048) s and 2048."""
    if isinstance(size, int):
        return size, size
    expr, ranges = size.node.expr, size.node.shape_env
    if not isinstance(expr, Min):
        return expr, int(ranges.bound_sympy(expr).upper)
    limits = [a for a in expr.args if a.is_number]
    others = [a for a in expr.args if not a.is_number]
    return (others[0] if len(others) == 1 else expr), int(min(limits, default=0))


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Any],
    device: torch.device,
    **_: Any,
) -> Tensor:
    """The mask interface. One sequence a row: padding and packed-sequence parts are left out."""
    parts = dict(_decode(mask_function))
    kind = "causal" if "causal" in parts else "bidirectional"
    like = torch.empty((0,), device=device)
    return mask_op(like, batch_size, q_length, kind, parts.get("window"), parts.get("chunk"))


def _additive_mask(dtype: torch.dtype = torch.float32, **arguments: Any) -> Tensor:
    """The mask as transformers' own eager attention wants it: added to the scores."""
    seen = _mask(**arguments)
    hidden = torch.finfo(dtype).min
    return torch.where(seen, torch.zeros((), dtype=dtype), torch.full((), hidden, dtype=dtype))


def _decode(function: Callable[..., Any]) -> list[tuple[str, int]]:
    """The parts of a transformers mask function, read from its closure."""
    name = function.__qualname__
    cells = dict(
        zip(
            function.__code__.co_freevars,
            (c.cell_contents for c in function.__closure__ or ()),
            strict=True,
        )
    )
    if name == "causal_mask_function":
        return [("causal", 1)]
    if name == "bidirectional_mask_function":
        return [("bidirectional", 1)]
    if name.startswith("and_masks"):
        return [part for inner in cells["mask_functions"] for part in _decode(inner)]
    if name.startswith("sliding_window_overlay"):
        return [("window", int(cells["sliding_window"]))]
    if name.startswith("chunked_overlay"):
        return [("chunk", int(cells["chunk_size"]))]
    if name.startswith(("packed_sequence_mask_function", "padding_mask_function")):
        return []
    if name.startswith(("remap_positions", "add_offsets")):
        return _decode(cells["mask_function"])
    raise CompileError(
        f"the model builds its attention mask with {name.split('.')[0]}, which the compiler does "
        "not know; causal, sliding-window and chunked masks are supported."
    )


def register() -> None:
    """Register the interface functions under the name `inferc`."""
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _mask)
    AttentionMaskInterface.register(ADDITIVE, _additive_mask)
    capture_experts.register(IMPLEMENTATION)
