"""Experts on their way in: gates recognised, stored pieces bound without being joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from inferc.errors import CompileError
from inferc.frontend import capture_experts
from inferc.frontend.capture_experts import Gate
from inferc.frontend.param_binding import bind_weights
from inferc.frontend.safetensors_store import open_safetensors
from inferc.frontend.weight_transforms import Binding, Stack
from inferc.ir import interp
from inferc.ir.parse import parse_module
from tests import tiny
from tests.tiny_experts import EXPERT_CASES


class Experts(nn.Module):
    """What transformers' decorator leaves behind, without parameters."""

    has_gate, has_bias, is_concatenated, is_transposed = True, False, True, False
    limit, alpha, act_fn = 7.0, 1.702, nn.functional.silu

    def __init__(self, gate: object, **fields: object) -> None:
        super().__init__()
        self._gate = gate
        for name, value in fields.items():
            setattr(self, name, value)

    def _apply_gate(self, both: torch.Tensor) -> torch.Tensor:
        if self.is_concatenated:
            gate, up = both.chunk(2, -1)
        else:
            gate, up = both[..., ::2], both[..., 1::2]
        return self._gate(gate, up)  # type: ignore[operator]


def recognised(module: nn.Module) -> Gate:
    whole = nn.Module()
    whole.mlp = module
    capture_experts.recognise_gates(whole)
    return capture_experts._GATES[module]


def clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(gate * 1.702)


def test_gates_are_recognised_by_what_they_compute() -> None:
    functional = nn.functional
    cases = {
        Gate("silu"): lambda g, u: functional.silu(g) * u,
        Gate("gelu"): lambda g, u: functional.gelu(g) * u,
        Gate("gelu_tanh"): lambda g, u: functional.gelu(g, approximate="tanh") * u,
        Gate("relu2"): lambda g, u: functional.relu(g) ** 2 * u,
        Gate("silu", 7.0): lambda g, u: functional.silu(g.clamp(max=7)) * u.clamp(-7, 7),
    }
    for gate, function in cases.items():
        assert recognised(Experts(function, limit=7.0, alpha=1.702)) == gate
    for concatenated in (True, False):
        module = Experts(clamped, limit=7.0, alpha=1.702, is_concatenated=concatenated)
        assert recognised(module) == Gate("silu", 7.0, 1.702, 1.0)
    plain = Experts(None, has_gate=False, act_fn=nn.functional.relu)
    assert recognised(plain) == Gate("relu")


@pytest.mark.parametrize(
    "function",
    [
        lambda g, u: nn.functional.silu(u) * g,
        lambda g, u: nn.functional.silu(g).clamp(max=7.0) * u,
        lambda g, u: nn.functional.silu(g) * u.clamp(-7.0, 7.0),
        lambda g, u: clamped(g, u) * 1.001,
        lambda g, u: nn.functional.silu(g) * u + 0.01 * (g > 6),
    ],
)
def test_other_gates_are_refused_by_class(function: object) -> None:
    with pytest.raises(CompileError, match=r"experts of mlp \(Experts\) join gate and up"):
        recognised(Experts(function, limit=7.0, alpha=1.702))


def test_a_limit_beyond_the_usual_is_seen() -> None:
    module = Experts(
        lambda g, u: nn.functional.silu(g.clamp(max=90)) * u.clamp(-90, 90), limit=90.0
    )
    assert recognised(module) == Gate("silu", 90.0)


GRAPH = """\
func @forward(%ids: i64[B, S], %positions: i64[B, S]) \
-> (f32[2, 6, 4], f32[2, 3, 4], f32[2, 3, 4]) where B in 1..4, S in 1..8 {
  %w = param @e.gate_up : f32[2, 6, 4]
  %g = core.slice(%w) {axis = 1, start = 0, stop = 3} : f32[2, 3, 4]
  %u = core.slice(%w) {axis = 1, start = 3, stop = 6} : f32[2, 3, 4]
  return READ
}
"""


def stored(folder: Path, names: list[str], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(shape).astype(np.float32) for n in names}
    save_file(arrays, folder / "model.safetensors")
    return arrays


@pytest.mark.parametrize("form", ["one by one", "two stacks"])
@pytest.mark.parametrize("read", ["%w, %g, %u", "%g, %g, %u"])
def test_joined_parameters(form: str, read: str, tmp_path: Path) -> None:
    if form == "one by one":
        names = [f"e.{i}.{part}" for i in range(2) for part in ("gate", "up")]
        binding = Binding("e.gate_up", tuple(names), (Stack(2),))
        arrays = stored(tmp_path, names, (3, 4))
        parts = [np.stack([arrays[f"e.{i}.{p}"] for i in range(2)]) for p in ("gate", "up")]
    else:
        names = ["e.gate", "e.up"]
        binding = Binding("e.gate_up", tuple(names), axis=1)
        arrays = stored(tmp_path, names, (2, 3, 4))
        parts = [arrays[n] for n in names]
    whole = np.concatenate(parts, 1)
    store = open_safetensors(tmp_path)
    assert binding.shape(store) == (2, 6, 4)
    np.testing.assert_array_equal(binding.evaluate(store), whole)
    text = GRAPH.replace("READ", read)
    if "%w" not in read:
        text = text.replace("(f32[2, 6, 4], ", "(f32[2, 3, 4], ")
    bound = bind_weights(parse_module(text), {"e.gate_up": binding}, store)
    func = bound.module.funcs["forward"]
    ids = np.zeros((1, 2), np.int64)
    found = interp.run(func, [ids, ids], lambda name, _: bound.tensors[name].read())
    wanted = {"%w": whole, "%g": parts[0], "%u": parts[1]}
    for array, name in zip(found, read.split(", "), strict=True):
        np.testing.assert_array_equal(array, wanted[name])
    # The pieces are put together only for the whole.
    assert ("core.slice" in {op.name for op in func.ops}) is False
    joins = [op for op in func.ops if op.name == "core.concat"]
    assert len(joins) == (3 if form == "one by one" else 1) - (0 if "%w" in read else 1)


def test_entries_of_different_sizes_are_no_stack(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(
        {"a": np.zeros((2, 4), np.float32), "b": np.zeros((4, 4), np.float32)},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ValueError, match="cannot be stacked"):
        Binding("e", ("a", "b"), (Stack(2),)).shape(open_safetensors(tmp_path))


@pytest.mark.parametrize("name", ["mixtral", "granitemoe", "gpt_oss"])
def test_a_missing_expert_is_named(name: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    from inferc.frontend.importer import ImportOptions, import_model

    folder = tiny.save(name, tmp_path / name)
    file = folder / "model.safetensors"
    arrays = load_file(file)
    lost = next(k for k in arrays if "expert" in k or "input_linear" in k)
    del arrays[lost]
    save_file(arrays, file)
    with pytest.raises(CompileError, match=r"expert|input_linear"):
        import_model(folder, ImportOptions(cache_folder=tmp_path / "cache"))


def test_every_case_has_experts() -> None:
    for name in EXPERT_CASES:
        assert any("expert" in path for path, _ in tiny.model(name).named_modules()), name
