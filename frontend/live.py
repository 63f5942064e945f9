"""A torch.nn.Module in this process as a model: exported here, weights taken as they are needed.

The module is a plain language model: token ids `[B, S]` in (and, if its forward takes them,
positions), logits `[B, S, vocabulary]` out. Positions that it counts itself are recognised by the
passes. Its code is traced on a copy without weights, so that nothing of the module changes and no
weight is copied before it is packed.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import UserError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from inferc.errors import CompileError
from inferc.frontend.live_graph import live_graph
from inferc.frontend.live_options import LiveOptions
from inferc.frontend.live_weights import live_tensors
from inferc.frontend.onnx_source import tokens_of, without_tokenizer
from inferc.frontend.param_binding import bind_weights
from inferc.frontend.position_tables import context_of_tables, with_constant_tables
from inferc.frontend.tokens import TokenizerFiles
from inferc.frontend.weight_transforms import Binding
from inferc.frontend.weights import StoredTensor, WeightStore
from inferc.ir.core import Func, Module
from inferc.ir.dims import Symbol
from inferc.ir.types import TensorType

BATCH_MAX, CONTEXT_MAX = 1024, 1 << 20
_TRACED_BATCH, _TRACED_LENGTH = 2, 8
_CAUSE_CHARACTERS = 600


@dataclass(frozen=True)
class LiveModel:
    """The module as `@forward(ids, positions) -> logits` over stored weights, and its facts."""

    name: str
    module: Module
    tensors: Mapping[str, StoredTensor]
    store: WeightStore
    tokenizer: TokenizerFiles
    hidden_size: int
    layers: int
    context_tokens: int


def import_live(module: nn.Module, options: LiveOptions) -> LiveModel:
    """Export, translate and bind. Raises CompileError."""
    name = type(module).__name__
    if module.training:
        raise CompileError(f"{name} is in training mode; call eval() on it before compiling.")
    skeleton, mode = _skeleton(module)
    program = _exported(skeleton, mode, options, name)
    tensors = live_tensors(module, name)
    graph = live_graph(program, {p: type(m).__name__ for p, m in module.named_modules()}, tensors)
    func = with_constant_tables(graph.module.funcs["forward"], graph.tensors)
    _check_logits(func, name)
    context = _context(func, options.context_tokens, name)
    func.symbols["S"] = Symbol("S", 1, context)
    used = {k: t for k, t in graph.tensors.items() if k in func.params()}
    store = WeightStore(Path(name), used)
    plain = Module()
    plain.add(func)
    bound = bind_weights(plain, {n: Binding(n, (n,)) for n in used}, store)
    files = without_tokenizer({}) if options.tokenizer is None else _tokenizer(options.tokenizer)
    layers = sum(op.name in ("core.softmax", "nn.attention") for op in func.ops)
    return LiveModel(
        name, bound.module, bound.tensors, store, files, _hidden_size(func), layers, context
    )


def _tokenizer(folder: Path) -> TokenizerFiles:
    folder = folder.parent if folder.name == "tokenizer.json" else folder
    if not (folder / "tokenizer.json").is_file():
        raise CompileError(f"{folder} has no tokenizer.json; name the directory that has it.")
    return tokens_of(folder, {})


# -- export
class _Forward(nn.Module):  # type: ignore[misc]
    """Ids and positions in, logits out; positions may go unread."""

    def __init__(self, module: nn.Module, takes: str | None) -> None:
        super().__init__()
        self.model_ = module
        self.takes = takes

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits `[B, S, V]`."""
        named = {} if self.takes is None else {self.takes: positions}
        out = self.model_(ids, **named)
        out = getattr(out, "logits", out)
        if isinstance(out, Mapping):
            out = out["logits"]
        found = out[0] if isinstance(out, tuple | list) else out
        assert isinstance(found, torch.Tensor)
        return found


def _skeleton(module: nn.Module) -> tuple[nn.Module, FakeTensorMode]:
    """A copy with fake float32 parameters; buffers keep their values."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        with mode:
            empty = torch.empty(parameter.shape, dtype=torch.float32)
            memo[id(parameter)] = nn.Parameter(empty, requires_grad=False)
    for buffer in module.buffers():
        is_float = buffer.dtype.is_floating_point
        memo[id(buffer)] = buffer.detach().cpu().float() if is_float else buffer.detach().cpu()
    return copy.deepcopy(module, memo), mode


def _exported(
    module: nn.Module, mode: FakeTensorMode, options: LiveOptions, name: str
) -> ExportedProgram:
    batch, length = _TRACED_BATCH, _TRACED_LENGTH
    if options.example_ids is not None:
        shape = tuple(torch.as_tensor(options.example_ids).shape)
        if len(shape) != 2:
            raise CompileError(f"example_ids: expected [batch, sequence], found shape {shape}.")
        batch, length = max(batch, shape[0]), max(2, shape[1])
    with mode:
        inputs = tuple(torch.zeros((batch, length), dtype=torch.long) for _ in range(2))
    wrapper = _Forward(module, _positions_argument(module))
    context = options.context_tokens or CONTEXT_MAX
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _with_context(wrapper, inputs, context, name).run_decompositions({})


def _positions_argument(module: nn.Module) -> str | None:
    """The name under which the module takes positions, if it does."""
    names = list(inspect.signature(module.forward).parameters)
    return next((n for n in names[1:] if n in ("positions", "position_ids", "pos_ids")), None)


def _with_context(
    wrapper: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    context: int,
    name: str,
    *,
    deferred: bool = False,
) -> ExportedProgram:
    """Export; where the module's tables are shorter than `context`, with what they allow.

    torch may insist that slices of a table differ from the whole table, which does not matter here:
    then what it would guard is left to run time.
    """
    dims = {0: Dim("B", min=1, max=BATCH_MAX), 1: Dim("S", min=1, max=context)}
    try:
        return torch.export.export(
            wrapper, inputs, dynamic_shapes=(dims, dims), strict=False,
            prefer_deferred_runtime_asserts_over_guards=deferred,
        )  # fmt: skip
    except UserError as error:
        if not deferred and re.search(r"generated guard \S+ != \d+", str(error)):
            return _with_context(wrapper, inputs, context, name, deferred=True)
        shorter = _suggested_length(str(error))
        if shorter is not None and shorter < context:
            return _with_context(wrapper, inputs, shorter, name, deferred=deferred)
        text = " ".join(str(error).split())[:_CAUSE_CHARACTERS]
        raise CompileError(
            f"{name} cannot be exported as one graph for all batches and lengths: {text}"
        ) from error


def _suggested_length(message: str) -> int | None:
    """The longest S that torch.export says the module takes."""
    found = re.search(r"S = Dim\('S',(?: min=\d+,)? max=(\d+)\)", message)
    return int(found[1]) if found else None


# -- facts
def _check_logits(func: Func, name: str) -> None:
    type_ = func.results[0].type
    ids = func.args[0].type
    assert isinstance(type_, TensorType) and isinstance(ids, TensorType)
    if type_.rank != 3 or type_.shape[:2] != ids.shape or not isinstance(type_.shape[2], int):
        raise CompileError(
            f"{name} returns {type_}; expected logits of every token, "
            "[batch, sequence, vocabulary]."
        )


def _context(func: Func, wanted: int | None, name: str) -> int:
    tables, exported = context_of_tables(func), func.symbols["S"].high
    limits = [n for n in (wanted, tables, exported) if n is not None and n < CONTEXT_MAX]
    if not limits:
        raise CompileError(
            f"Nothing says how long a sequence {name} takes: give context_tokens as an option."
        )
    if wanted is not None and min(limits) < wanted:
        raise CompileError(
            f"A context of {wanted} tokens was asked for, but {name} has tables of {min(limits)}."
        )
    return min(limits)


def _hidden_size(func: Func) -> int:
    table = next((op for op in func.ops if op.name == "core.embedding"), None)
    size = table.result.type.shape[-1] if table is not None else 0  # type: ignore[union-attr]
    if not isinstance(size, int) or size == 0:
        raise CompileError("the module looks up no token: it is no language model.")
    return size
