"""From a transformers config to an exported graph, without ever allocating a weight.

The model is built on the meta device; buffers that no checkpoint holds (rotary frequencies,
embedding scales) are rebuilt with real values, parameters become fake CPU tensors. Runs in the
capture process.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import UserError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inferc.errors import CompileError
from inferc.frontend import capture_experts, capture_hooks, capture_layers, capture_recurrent
from inferc.frontend.capture_guards import (
    always_true,
    excludes_longest,
    guards_of,
    holds,
    is_specialised,
)
from inferc.frontend.capture_inplace import make_functional

Axes = tuple[dict[int, Dim], ...]

BATCH_MAX = 1024
_TRACED_BATCH, _TRACED_LENGTH = 2, 8
_COUNTS_POSITIONS = "create_position_ids_from_input_ids"


@dataclass
class ActiveModules:
    """The modules that are being called; what is left after a crash tells where it happened.

    Attributes:
        stack: path and class of the modules.
        length: the traced length of the sequence, symbolic as long as nothing made it a number.
        specialised: path and class of the innermost module that did; empty if none.
        owners: path and class of the innermost module that made each guard of the sizes.
    """

    stack: list[tuple[str, str]] = field(default_factory=list)
    length: int | torch.SymInt = 0
    specialised: str = ""
    owners: list[str] = field(default_factory=list)

    def enter(self, path: str, class_: str) -> None:
        """Enter a module of the innermost one."""
        self._look()
        self.stack.append((path, class_))

    def leave(self) -> None:
        """Leave the innermost module."""
        self._look()
        self.stack.pop()

    def _look(self) -> None:
        """Note the innermost module for new guards, and if the length has become a number."""
        if not self.stack or not isinstance(self.length, torch.SymInt):
            return
        path, class_ = self.stack[-1]
        where, node = (f"{path} ({class_})" if path else class_), self.length.node
        self.owners += [where] * (len(node.shape_env.guards) - len(self.owners))
        if not self.specialised and not node.expr.free_symbols:
            self.specialised = where

    def culprit(self, longest: int) -> str:
        """The innermost module because of which there is no graph for all lengths, if known."""
        if self.specialised or not isinstance(self.length, torch.SymInt):
            return self.specialised
        made = zip(self.length.node.shape_env.guards, self.owners, strict=False)
        return next((w for g, w in made if not holds(g.expr, self.length.node.expr, longest)), "")


ACTIVE = ActiveModules()


class _Forward(nn.Module):
    """Plain forward pass: no cache, every position's logits.

    A model that takes no positions counts them itself; `raise-positions` finds the counts.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model_ = model
        parameters = inspect.signature(model.forward).parameters
        # Some count positions from the tokens that are no padding; given ones would differ.
        counts = any(hasattr(m, _COUNTS_POSITIONS) for m in model.modules())
        self.takes_positions = "position_ids" in parameters and not counts
        self.takes_cache = "use_cache" in parameters

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits `[B, S, V]`."""
        ACTIVE.length = ids.shape[1]
        options: dict[str, Any] = {"position_ids": positions} if self.takes_positions else {}
        if self.takes_cache:
            options["use_cache"] = False
        return self.model_(input_ids=ids, return_dict=True, **options).logits


def build_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The model on the meta device in float32, hooks on, non-persistent buffers with values."""
    capture_hooks.register()
    name = capture_hooks.IMPLEMENTATION
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _from_config(config)
    model.eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._experts_implementation = name
            module.config.use_cache = False  # also where the outer forward does not pass it on
    capture_experts.recognise_gates(model)
    _rebuild_buffers(model)
    return model


def _from_config(config: PreTrainedConfig) -> PreTrainedModel:
    """Build the model; attention that is not part of the interface is captured op by op."""
    class_ = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    whole = hasattr(sys.modules[class_.__module__], "ALL_ATTENTION_FUNCTIONS")
    model = AutoModelForCausalLM.from_config(
        config,
        attn_implementation=capture_hooks.IMPLEMENTATION if whole else "eager",
        dtype=torch.float32,
    )
    if not whole:
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                module.config._attn_implementation = capture_hooks.ADDITIVE
    return model


def _rebuild_buffers(model: PreTrainedModel) -> None:
    """Give non-persistent buffers their values, as `from_pretrained` does.

    Every module is initialised by its nearest enclosing PreTrainedModel, not only the owners of the
    buffers: some models fill the buffers of their children.
    """
    persistent = set(model.state_dict())
    rebuilt: list[tuple[str, nn.Module, str]] = []
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            full = f"{path}.{name}" if path else name
            if buffer is not None and buffer.is_meta and full not in persistent:
                fill = float("nan") if buffer.is_floating_point() else 0
                module._buffers[name] = torch.full_like(buffer, fill, device="cpu")
                rebuilt.append((full, module, name))
    if rebuilt:
        _initialise(model, model)
    for full, module, name in rebuilt:
        value = module._buffers[name]
        if value is not None and value.is_floating_point() and bool(value.isnan().any()):
            raise CompileError(
                f"the buffer {full} is in no checkpoint and transformers does not initialise it, "
                "so its values are unknown."
            )


def _initialise(module: nn.Module, owner: PreTrainedModel) -> None:
    owner = module if isinstance(module, PreTrainedModel) else owner
    for child in module.children():
        _initialise(child, owner)
    owner._init_weights(module)


def resolve_longrope(model: PreTrainedModel, context_tokens: int) -> None:
    """Choose longrope's short or long factors once, for every request.

    transformers chooses by the longest position of the batch, which changes the meaning of keys
    that are already cached. A compiled model has a context limit; the factors that fit it are used
    throughout.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if kinds == "longrope":
            _set_longrope(module, None, context_tokens)
            module.rope_type = "default"
        elif isinstance(kinds, dict):
            for layer_type in [k for k, kind in kinds.items() if kind == "longrope"]:
                _set_longrope(module, layer_type, context_tokens)
                kinds[layer_type] = "default"


def _set_longrope(module: nn.Module, layer_type: str | None, context_tokens: int) -> None:
    layer = {"layer_type": layer_type} if layer_type is not None else {}
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](
        module.config, torch.device("cpu"), seq_len=context_tokens, **layer
    )
    name = f"{layer_type}_inv_freq" if layer_type is not None else "inv_freq"
    module._buffers[name] = frequencies


def divide_frequencies(model: PreTrainedModel, divisors: tuple[float, ...]) -> None:
    """Divide the rotary frequencies by stored factors (GGUF keeps llama3 scaling as a tensor)."""
    factors = torch.tensor(divisors, dtype=torch.float32)
    found = False
    for path, module in model.named_modules():
        for name, buffer in list(module._buffers.items()):
            if buffer is None or not name.endswith("inv_freq"):
                continue
            if buffer.shape != factors.shape:
                raise CompileError(
                    f"the file scales {len(divisors)} rotary frequencies (rope_freqs.weight), but "
                    f"{path}.{name} has {tuple(buffer.shape)}."
                )
            module._buffers[name], found = buffer / factors, True
    if not found:
        raise CompileError("the file scales rotary frequencies, but the model has none.")


def export(model: PreTrainedModel, context_tokens: int) -> ExportedProgram:
    """Export the plain forward pass with symbolic batch and length, functionalised."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    _fake_parameters(model, mode)
    shape = (_TRACED_BATCH, min(_TRACED_LENGTH, context_tokens))
    with mode:
        inputs = tuple(torch.zeros(shape, dtype=torch.long) for _ in range(2))
    axes = {0: Dim("B", min=1, max=BATCH_MAX), 1: Dim("S", min=1, max=context_tokens)}
    layers = capture_layers.exchanged(model)
    with torch.no_grad(), _tracked(model), capture_recurrent.hooked(model), layers:
        program = _export(_Forward(model), inputs, (axes, axes))
    if make_functional(program):
        return program
    # An empty table only functionalises: in-place ops go, composite ops stay whole.
    return program.run_decompositions({})


def _export(
    forward: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    axes: Axes,
    deferred: bool = False,
    shortened: bool = False,
) -> ExportedProgram:
    """Export; what stands against a graph for all lengths is looked at, not believed."""
    longest = int(axes[0][1].max)  # type: ignore[attr-defined]
    try:
        return torch.export.export(
            forward, inputs, dynamic_shapes=axes, strict=False,
            prefer_deferred_runtime_asserts_over_guards=deferred,
        )  # fmt: skip
    except UserError as error:
        if "Constraints violated" not in str(error):
            raise
        guards = guards_of(str(error))
        if not is_specialised(str(error)) and not deferred:
            if always_true(guards, longest):
                return _export(forward, inputs, axes, True, shortened)
            if excludes_longest(guards, longest) and not shortened:
                # A table is cut to the length, a top-k to the keys: as a whole it would be no cut.
                shorter = {0: axes[0][0], 1: Dim("S", min=1, max=longest - 1)}
                return _export(forward, inputs, (shorter, shorter), shortened=True)
        raise CompileError(
            f"the forward pass is not one graph for all sequence lengths: the Python code of "
            f"{ACTIVE.culprit(longest) or 'a layer'} depends on the length, as a loop over the "
            f"sequence does ({', '.join(guards[:2]) or 'the length became a number'}). It needs a "
            "form without the loop (frontend/capture_layers.py), which this one does not have."
        ) from error


def _fake_parameters(model: nn.Module, mode: FakeTensorMode) -> None:
    """Fake CPU tensors for all meta parameters; tied ones stay one object."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in made:
                with mode:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=False)
            module._parameters[name] = made[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                with mode:
                    module._buffers[name] = torch.empty(
                        buffer.shape, dtype=buffer.dtype, device="cpu"
                    )


@contextlib.contextmanager
def _tracked(model: nn.Module) -> Iterator[None]:
    """Keep `ACTIVE` up to date while the model runs."""
    ACTIVE.stack.clear()
    ACTIVE.specialised = ""
    ACTIVE.owners.clear()
    handles = []
    for path, module in model.named_modules():

        def enter(module: nn.Module, _args: Any, path: str = path) -> None:
            ACTIVE.enter(path, type(module).__name__)

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            ACTIVE.leave()

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))
    yield
    for handle in handles:
        handle.remove()
