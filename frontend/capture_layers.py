"""Layers whose Python depends on data or length: other methods while a model is exported.

transformers keeps most mixtures and recurrences behind functions that can be exchanged
(`capture_experts`, `capture_recurrent`). These classes compute theirs in loops of their own. Each
entry of `METHODS` says the same by the ops that we have. What a method is given must be what ours
expects, else the capture stops: a class that has changed is not guessed at. Runs in the capture
process only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferc.errors import CompileError
from inferc.frontend.capture_experts import activation_of, experts
from inferc.frontend.capture_recurrent import linear_op, ssd_op

Method = Callable[..., Any]


def _dbrx_experts(module: Any) -> Method:
    """Experts `[E * I, H]` below each other, the last one transposed."""
    activation = activation_of(module.mlp.activation_fn)
    shape = (module.num_experts, module.ffn_hidden_size, module.hidden_size)

    def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        mlp, rows = module.mlp, hidden_states.reshape(-1, module.hidden_size)
        matrices = [mlp.w1.view(shape), mlp.v1.view(shape), mlp.w2.view(shape).transpose(1, 2)]
        y = experts(rows, top_k_index, top_k_weights, matrices, activation)
        return y.view(hidden_states.shape)

    return forward


def _longcat_experts(module: Any) -> Method:
    """The last experts give the row itself; their weights add up."""
    activation, routed = activation_of(module.act_fn), module.num_routed_experts

    def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        matrices = [module.gate_up_proj[:routed], module.down_proj]
        y = experts(hidden_states, top_k_index, top_k_weights, matrices, activation)
        kept = torch.where(top_k_index >= routed, top_k_weights, 0.0).sum(-1, keepdim=True)
        return y + hidden_states * kept

    return forward


def _llama4_moe(module: Any) -> Method:
    """The score of an expert multiplies what goes in, not what comes out."""
    activation = activation_of(module.experts.act_fn)

    def forward(hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        rows = hidden_states.reshape(-1, module.hidden_dim)
        logits = F.linear(rows, module.router.weight)
        values, indices = torch.topk(logits, module.top_k, dim=1)
        scores, out = torch.sigmoid(values), module.shared_expert(rows)
        up, down = (
            w.transpose(1, 2) for w in (module.experts.gate_up_proj, module.experts.down_proj)
        )
        for k in range(module.top_k):
            chosen, scaled = indices[:, k : k + 1], rows * scores[:, k : k + 1]
            out = out + experts(
                scaled, chosen, torch.ones_like(values[:, :1]), [up, down], activation
            )
        return out, logits

    return forward


def _jetmoe_moe(module: Any) -> Method:
    activation = activation_of(module.activation)

    def forward(layer_input: Tensor) -> Tensor:
        rows = layer_input.reshape(-1, module.input_size)
        indices, weights = _jetmoe_route(module.router, rows)
        matrices = [module.input_linear.weight, module.output_linear.weight]
        y = experts(rows, indices, weights, matrices, activation)
        return y.view(layer_input.shape) + module.bias

    return forward


def _jetmoe_route(router: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = router.layer(rows).topk(router.top_k, dim=1)
    return indices, torch.softmax(values, dim=1)


def _jetmoe_map(module: Any) -> Method:
    """A query projection for each chosen expert: all of them, of which the chosen are taken."""

    def forward(layer_input: Tensor) -> tuple[Tensor, None, tuple[Tensor, Tensor]]:
        rows = layer_input.reshape(-1, module.input_size)
        indices, weights = _jetmoe_route(module.router, rows)
        chosen = (indices[..., None] == torch.arange(module.num_experts)).to(rows.dtype)
        matrix = module.input_linear.weight.reshape(-1, module.input_size)
        all_ = F.linear(rows, matrix).view(-1, 1, module.num_experts, module.hidden_size)
        y = (chosen[..., None] * all_).sum(2)
        shape = (*layer_input.shape[:2], module.top_k, module.hidden_size)
        return y.view(shape), None, (chosen, weights)

    return forward


def _jetmoe_reduce(module: Any) -> Method:
    """The output projections of the chosen experts, weighted, as one product."""

    def forward(layer_input: Tensor, topo_info: tuple[Tensor, Tensor]) -> Tensor:
        chosen, weights = topo_info
        rows = layer_input.reshape(-1, module.top_k, 1, module.hidden_size)
        spread = ((chosen * weights[..., None])[..., None] * rows).sum(1)
        matrix = module.output_linear.weight.permute(1, 0, 2).reshape(module.input_size, -1)
        y = F.linear(spread.reshape(-1, module.num_experts * module.hidden_size), matrix)
        return y.view(*layer_input.shape[:2], module.input_size) + module.bias

    return forward


def _lightning_attention(module: Any) -> Method:
    """Linear attention with a fixed decay a head: h = exp(-slope) h + k v, y = q h."""

    def forward(
        hidden_states: Tensor,
        position_embeddings: Any,
        attention_mask: Tensor | None,
        cache: None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        batch, length, _ = hidden_states.shape
        heads, size = module.num_attention_heads, module.head_dim
        qkv = module.act_fn(module.qkv_proj(hidden_states))
        q, k, v = torch.split(qkv.reshape(batch, length, heads, 3 * size), size, dim=3)
        steps = hidden_states.new_ones((batch, length, heads))
        y = ssd_op(v, steps, -module.slope_rate.reshape(heads), k, q)
        y = module.norm(y.reshape(batch, length, heads * size))
        return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * y), None

    return forward


def _rglru_scan(module: Any) -> Method:
    """H = gate h + x, from zeros where a sequence begins."""

    def forward(
        hidden_states: Tensor,
        recurrent_gate: Tensor,
        reset: Tensor,
        recurrent_states: None,
        acc_dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, None]:
        return linear_op(hidden_states, recurrent_gate), None

    return forward


METHODS: Mapping[tuple[str, str], Callable[[Any], Method]] = {
    ("DbrxExperts", "forward"): _dbrx_experts,
    ("LongcatFlashExperts", "forward"): _longcat_experts,
    ("Llama4TextMoe", "forward"): _llama4_moe,
    ("JetMoeMoE", "forward"): _jetmoe_moe,
    ("JetMoeMoA", "map"): _jetmoe_map,
    ("JetMoeMoA", "reduce"): _jetmoe_reduce,
    ("MiniMaxLightningAttention", "forward"): _lightning_attention,
    ("RecurrentGemmaRglru", "_rnn_scan"): _rglru_scan,
}
"""What stands for a method of a class, made for each module."""


@contextmanager
def exchanged(model: nn.Module) -> Iterator[None]:
    """Put our methods into the modules of the model. Raises CompileError for changed classes."""
    changed = []
    try:
        for path, module in model.named_modules():
            for (class_, method), make in METHODS.items():
                if type(module).__name__ == class_:
                    theirs, ours = getattr(module, method), make(module)
                    _check_parameters(path, class_, theirs, ours)
                    setattr(module, method, ours)
                    changed.append((module, method))
        yield
    finally:
        for module, method in changed:
            delattr(module, method)


def _check_parameters(path: str, class_: str, theirs: Method, ours: Method) -> None:
    names = [_names(f) for f in (theirs, ours)]
    if names[0] != names[1]:
        raise CompileError(
            f"{path} ({class_}) takes {', '.join(names[0])} in this version of transformers; the "
            f"compiler knows the layer with {', '.join(names[1])}."
        )


def _names(method: Method) -> list[str]:
    """Names of the parameters, without the instance and whatever else is passed on."""
    parameters = inspect.signature(inspect.unwrap(method)).parameters
    return [n for n, p in parameters.items() if n != "self" and p.kind != p.VAR_KEYWORD]
