"""Recurrent cores kept whole: module-level functions of the modeling code become custom ops.

transformers writes the core of every recurrent layer as a function of its module, so that a kernel
can take its place. While a model is exported, ours take it. A function is known by its name; what
it does besides the recurrence (biases, soft-plus, skips, gates) becomes plain ops around the core.
Runs in the capture process only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import custom_op

from inferc.errors import CompileError

# Arguments of the functions that do not change what they compute for whole sequences.
_NEUTRAL = frozenset(
    "chunk_size use_mambapy use_associative_scan cache cache_params past_key_values use_cache "
    "output_attentions output_hidden_states output_router_logits return_dict position_ids "
    "position_embeddings num_items_in_batch layer_idx logits_to_keep".split()
)
_L2_EPSILON = 1e-6


@custom_op("inferc::causal_conv1d", mutates_args=())
def conv_op(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Of x `[B, C, S]`, weight `[C, K]`."""
    raise NotImplementedError("inferc::causal_conv1d exists in exported graphs only")


@conv_op.register_fake
def _conv_shape(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return x.new_empty(x.shape)


@custom_op("inferc::selective_scan", mutates_args=())
def selective_op(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Of x and dt `[B, C, S]`, a `[C, N]`, b and c `[B, N, S]`."""
    raise NotImplementedError("inferc::selective_scan exists in exported graphs only")


@selective_op.register_fake
def _selective_shape(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@custom_op("inferc::ssd_scan", mutates_args=())
def ssd_op(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Of x `[B, S, H, P]`, dt `[B, S, H]`, a `[H]`, b and c `[B, S, G, N]`."""
    raise NotImplementedError("inferc::ssd_scan exists in exported graphs only")


@ssd_op.register_fake
def _ssd_shape(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@custom_op("inferc::gated_delta_rule", mutates_args=())
def delta_op(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Of q and k `[B, S, G, K]`, v `[B, S, H, V]`, g `[B, S, H, 1 or K]`, beta `[B, S, H]`."""
    raise NotImplementedError("inferc::gated_delta_rule exists in exported graphs only")


@delta_op.register_fake
def _delta_shape(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return v.new_empty(v.shape)


@custom_op("inferc::linear_scan", mutates_args=())
def linear_op(x: Tensor, gate: Tensor) -> Tensor:
    """H = gate h + x of x and gate `[B, S, C]`."""
    raise NotImplementedError("inferc::linear_scan exists in exported graphs only")


@linear_op.register_fake
def _linear_shape(x: Tensor, gate: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _refuse(function: str, others: Mapping[str, Any]) -> None:
    given = {k for k, v in others.items() if v is not None and v is not False} - _NEUTRAL
    if given:
        raise CompileError(
            f"{function} is given {', '.join(sorted(given))}, for which the compiler has no "
            "operation."
        )


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **others: Any,
) -> Tensor:
    _refuse("the causal convolution", others)
    return conv_op(x, weight, bias, activation or "none")


def _selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **others: Any,
) -> Tensor:
    _refuse("the selective scan", others)
    dt = dt if delta_bias is None else dt + delta_bias[..., None]
    dt = F.softplus(dt) if delta_softplus else dt
    y = selective_op(x, dt, a, b, c)
    y = y if D is None else y + x * D[None, :, None]
    return y if z is None else y * F.silu(z)


def _ssd_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk_size: int = 0,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **others: Any,
) -> Tensor:
    _refuse("the state space scan", others)
    dt = dt if dt_bias is None else dt + dt_bias
    dt = F.softplus(dt) if dt_softplus else dt
    dt = torch.clamp(dt, min=dt_limit[0], max=dt_limit[1])
    y = ssd_op(x, dt, a, b, c)
    return y if D is None else y + x * D[..., None]


def _delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> tuple[Tensor, None]:
    """Decay `g` by head (gated delta net) or by key channel (Kimi delta attention)."""
    _refuse("the gated delta rule", others)
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    g = g if g.dim() == k.dim() else g[..., None]
    return delta_op(q * float(k.shape[-1]) ** -0.5, k, v, g, beta), None


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + _L2_EPSILON)


CORES: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _conv,
    "mamba_selective_scan": _selective_scan,
    "mamba2_chunk_scan": _ssd_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
}
"""What stands for each function while a model is exported."""


@contextmanager
def hooked(model: nn.Module) -> Iterator[None]:
    """Put our functions into the modules that define the model's layers."""
    modules = {id(m): m for m in (sys.modules[type(x).__module__] for x in model.modules())}
    kept = [
        (module, name, vars(module)[name])
        for module in modules.values()
        for name in CORES
        if name in vars(module)
    ]
    try:
        for module, name, _ in kept:
            setattr(module, name, CORES[name])
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)
