"""Mixtures of experts kept whole, by transformers' experts interface.

Every experts module becomes one `inferc::experts` node over its stacked parameters. What a module
computes between its two products is a Python function; it is recognised by evaluating it, never by
the name of its class. Runs in the capture process only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import custom_op
from transformers.integrations.moe import ExpertsInterface

from inferc.errors import CompileError

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "relu": nn.functional.relu,
    "relu2": lambda x: nn.functional.relu(x).square(),
    "sigmoid": torch.sigmoid,
}
_TOLERANCE = 1e-5  # relative; between float32 and itself in another order
_GATES: dict[nn.Module, Gate] = {}


@dataclass(frozen=True)
class Gate:
    """What stands between the products: `act(min(g, limit)) * (clamp(u, limit) + offset)`.

    `silu` is `x * sigmoid(alpha * x)`. Experts without a gate compute `act(u)`.
    """

    activation: str
    limit: float | None = None
    alpha: float = 1.0
    offset: float = 0.0

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """The function on tensors, to compare a module's own with."""
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        if self.activation == "silu":
            return gate * torch.sigmoid(gate * self.alpha) * (up + self.offset)
        return _ACTIVATIONS[self.activation](gate) * (up + self.offset)


@custom_op("inferc::experts", mutates_args=())
def experts_op(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    matrices: list[Tensor],
    biases: list[Tensor],
    gated: bool,
    transposed: bool,
    concatenated: bool,
    activation: str,
    limit: float | None,
    alpha: float,
    offset: float,
) -> Tensor:
    """Experts of rows `[T, H]` by `[T, K]` indices and weights.

    Matrices are gate-up and down, or gate, up and down.
    """
    raise NotImplementedError("inferc::experts exists in exported graphs only")


@experts_op.register_fake
def _experts_shape(x: Tensor, indices: Tensor, weights: Tensor, *_: Any) -> Tensor:
    if x.ndim != 2 or indices.ndim != 2 or weights.shape != indices.shape:
        raise CompileError(
            f"experts got rows {tuple(x.shape)}, indices {tuple(indices.shape)} and weights "
            f"{tuple(weights.shape)}; expected [T, H], [T, K] and [T, K]."
        )
    return x.new_empty(x.shape)


def recognise_gates(model: nn.Module) -> None:
    """Evaluate the gate of every experts module of the model. Raises CompileError."""
    _GATES.clear()
    for path, module in model.named_modules():
        if hasattr(module, "_apply_gate") and hasattr(module, "is_concatenated"):
            _GATES[module] = _recognised(path, module)


def _recognised(path: str, module: nn.Module) -> Gate:
    if getattr(module, "has_post_expert_norm", False):
        raise CompileError(
            f"the experts of {path} ({type(module).__name__}) normalise their results, which the "
            "compiler has no operation for."
        )
    numbers = sorted({float(v) for v in vars(module).values() if type(v) in (int, float)})
    gate, up = _probes(numbers)
    found = _evaluated(module, gate, up)
    for candidate in _candidates(module, numbers):
        wanted = candidate(gate, up if module.has_gate else torch.ones_like(up))
        if bool(((found - wanted).abs() <= _TOLERANCE * (1 + wanted.abs())).all()):
            return candidate
    raise CompileError(
        f"the experts of {path} ({type(module).__name__}) join gate and up projection by a "
        "function that the compiler does not know; known are act(g) * u and its clamped forms, "
        f"act one of {', '.join(_ACTIVATIONS)}."
    )


def _candidates(module: nn.Module, numbers: list[float]) -> Iterator[Gate]:
    """Simple forms first; constants of other forms are among the numbers that the module has."""
    for activation in _ACTIVATIONS:
        yield Gate(activation)
    if not module.has_gate:
        return
    limits = [None, *(n for n in numbers if n > 0)]
    for limit, alpha, offset in itertools.product(limits, [1.0, *numbers], (0.0, 1.0)):
        yield Gate("silu", limit, alpha, offset)
    for limit, activation in itertools.product(limits, _ACTIVATIONS):
        yield Gate(activation, limit)


def _probes(numbers: list[float]) -> tuple[Tensor, Tensor]:
    """Pairs of a gate and an up value, also beyond every number that could be a limit."""
    ends = [20.0, *(1.5 * abs(n) for n in numbers)]
    line = torch.cat([torch.linspace(-6, 6, 49), *(torch.linspace(-e, e, 9) for e in ends)])
    gate, up = torch.meshgrid(line, line, indexing="ij")
    return gate.reshape(-1), up.reshape(-1)


def _evaluated(module: nn.Module, gate: Tensor, up: Tensor) -> Tensor:
    if not module.has_gate:
        return module.act_fn(gate)  # type: ignore[no-any-return]
    joined = torch.cat if module.is_concatenated else torch.stack
    both = joined([gate[:, None], up[:, None]], dim=-1).reshape(gate.numel(), 2)
    return module._apply_gate(both).reshape(-1)  # type: ignore[no-any-return]


def _experts(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The experts interface."""
    gate: Gate = _GATES[module]
    first = module.gate_up_proj if module.has_gate else module.up_proj
    names = ("gate_up_proj_bias" if module.has_gate else "up_proj_bias", "down_proj_bias")
    return experts_op(
        hidden_states,
        top_k_index,
        top_k_weights,
        [first, module.down_proj],
        [getattr(module, name) for name in names] if module.has_bias else [],
        module.has_gate,
        module.is_transposed,
        module.is_concatenated,
        gate.activation,
        gate.limit,
        gate.alpha,
        gate.offset,
    )


def experts(
    rows: Tensor, indices: Tensor, weights: Tensor, matrices: list[Tensor], activation: str
) -> Tensor:
    """Plain gated experts: matrices `[E, out, in]`, gate and up in one or apart, then down."""
    return experts_op(
        rows, indices, weights, matrices, [], True, False, True, activation, None, 1.0, 0.0
    )


def activation_of(function: Callable[[Tensor], Tensor]) -> str:
    """The name of an activation, found by evaluating it. Raises CompileError."""
    line = torch.linspace(-20, 20, 161)
    found = function(line)
    for name, candidate in _ACTIVATIONS.items():
        wanted = candidate(line)
        if bool(((found - wanted).abs() <= _TOLERANCE * (1 + wanted.abs())).all()):
            return name
    raise CompileError(
        f"experts have an activation that the compiler does not know; known are "
        f"{', '.join(_ACTIVATIONS)}."
    )


def register(name: str) -> None:
    """Register the interface function."""
    ExpertsInterface.register(name, _experts)
