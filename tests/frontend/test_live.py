"""Torch modules of the process: positions of their own, tables, masks, types; refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inferc.errors import CompileError
from inferc.frontend.importer import ImportedModel, import_module
from inferc.frontend.live_options import LiveOptions
from inferc.ir.interp import run
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import PHASES
from inferc.passes.registry import make_pass

V, H, N, D = 64, 32, 4, 8
ROOT = Path(__file__).resolve().parents[2]
RAISE = [name for phase in PHASES if phase.stage in ("tensor", "nn") for name in phase.passes]


class Model(nn.Module):
    """One attention layer; the options are how it knows positions and hides later tokens."""

    def __init__(self, positions: str = "learned", mask: str = "sdpa", context: int = 96) -> None:
        super().__init__()
        self.how, self.mask = positions, mask
        self.tokens, self.qkv = nn.Embedding(V, H), nn.Linear(H, 3 * H)
        self.norm, self.head = nn.LayerNorm(H), nn.Linear(H, V, bias=False)
        if positions == "learned":
            self.places = nn.Embedding(context, H)
        if positions == "table":
            self.register_buffer("sines", torch.randn(context, H), persistent=False)
        if mask == "buffer":
            ones = torch.ones(1, 1, context, context, dtype=torch.bool)
            self.register_buffer("seen", ones.tril(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.tokens(ids)
        if self.how == "learned":
            x = x + self.places(torch.arange(length))
        if self.how == "table":
            x = x + self.sines[:length]
        q, k, v = (t.view(batch, length, N, D).transpose(1, 2) for t in self.qkv(x).split(H, -1))
        x = x + self.attend(q, k, v).transpose(1, 2).reshape(batch, length, H)
        return self.head(self.norm(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        if self.mask == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.mask == "given":
            seen = torch.ones(length, length, dtype=torch.bool).tril()
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        scores = q @ k.transpose(-2, -1) / D**0.5
        if self.mask == "triu":
            hidden = torch.full((length, length), float("-inf")).triu(1)
            return (scores + hidden).softmax(-1) @ v
        return scores.masked_fill(~self.seen[:, :, :length, :length], -1e9).softmax(-1) @ v


def build(**options: object) -> Model:
    torch.manual_seed(0)
    return Model(**options).eval().requires_grad_(False)  # type: ignore[arg-type]


def imported(module: nn.Module, context: int | None = 96) -> ImportedModel:
    return import_module(module, LiveOptions(context_tokens=context))


def numbers(model: ImportedModel, ids: np.ndarray) -> np.ndarray:
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    func = model.module.funcs["forward"]
    return run(func, [ids, positions], lambda name, _: model.tensors[name].read())[0]


@pytest.mark.parametrize(
    "positions,mask",
    [("learned", "sdpa"), ("table", "given"), ("learned", "triu"), ("table", "buffer")],
)
def test_positions_and_masks(positions: str, mask: str) -> None:
    module = build(positions=positions, mask=mask)
    model = imported(module)
    ids = np.random.default_rng(0).integers(0, V, (2, 17))
    wanted = module(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(numbers(model, ids), wanted, rtol=1e-4, atol=1e-5)
    run_passes(model.module, [make_pass(name) for name in RAISE])
    np.testing.assert_allclose(numbers(model, ids), wanted, rtol=1e-4, atol=1e-5)
    (attention,) = [op for op in model.module.funcs["forward"].ops if op.name == "nn.attention"]
    assert attention.attrs["causal"] is True
    assert len(attention.operands) == 3


def test_weights_keep_their_type_and_are_not_copied() -> None:
    module = build()
    module.qkv.to(torch.bfloat16)
    model = imported(module)
    assert model.tensors["qkv.weight"].dtype == "bf16"
    assert model.tensors["head.weight"].dtype == "f32"
    module.head.weight.fill_(3.0)  # read when it is packed, not before
    assert (model.tensors["head.weight"].read() == 3.0).all()


def test_tied_weights_are_one_parameter() -> None:
    module = build()
    module.head.weight = module.tokens.weight
    model = imported(module)
    assert "head.weight" not in model.tensors
    assert model.facts.parameters == sum(p.numel() for p in module.parameters())


def test_context_comes_from_tables() -> None:
    assert imported(build(), None).facts.context_tokens == 96
    with pytest.raises(CompileError, match="give context_tokens"):
        imported(build(positions="none"), None)


def test_positions_may_be_an_argument() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build(positions="none")
            self.places = nn.Embedding(96, V)

        def forward(self, ids: Tensor, positions: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(ids) + self.places(positions)}

    module = Given().eval().requires_grad_(False)
    ids = np.random.default_rng(0).integers(0, V, (2, 9))
    places = torch.arange(9).expand(2, 9)
    wanted = module(torch.from_numpy(ids), places)["logits"].numpy()
    np.testing.assert_allclose(numbers(imported(module), ids), wanted, rtol=1e-4, atol=1e-5)


# -- refusals
def test_training_mode_is_refused() -> None:
    with pytest.raises(CompileError, match=r"training mode; call eval\(\)"):
        imported(build().train())


def test_no_module_is_refused() -> None:
    with pytest.raises(CompileError, match=r"path or a torch.nn.Module to compile, found list"):
        import_module([], LiveOptions())  # type: ignore[arg-type]


def test_other_results_than_logits_are_refused() -> None:
    class Pooled(Model):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).mean(1)

    with pytest.raises(CompileError, match="expected logits of every token"):
        imported(Pooled().eval())


def test_code_that_depends_on_the_length_is_refused() -> None:
    class Looped(Model):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            return torch.stack([logits[:, i] for i in range(ids.shape[1])], 1)

    with pytest.raises(CompileError, match="cannot be exported as one graph"):
        imported(Looped().eval())


def test_unknown_operations_are_named() -> None:
    class Sorted(Model):
        def forward(self, ids: Tensor) -> Tensor:
            return torch.kthvalue(super().forward(ids), 1, -1, True)[0] + super().forward(ids)

    with pytest.raises(CompileError, match=r"aten.kthvalue"):
        imported(Sorted().eval())


def test_the_example_has_parity() -> None:
    """`examples/custom_module.py`: nothing of it is known to inferc."""
    script = ROOT / "examples" / "custom_module.py"
    out = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=1200
    ).stdout
    error = float(out.split("relative to the module:")[1].split()[0])
    assert error < 1e-5
