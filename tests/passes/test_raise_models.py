"""Captured models through normalize and raise: the same numbers, and nothing but nn ops left."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from inferc.ir.core import Func, Module, Value
from inferc.ir.interp import run
from inferc.ir.rewrite import clone_module
from inferc.ir.types import Type
from inferc.passes.instruments import CheckFacts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.record import PassRecord
from inferc.passes.registry import parse_pipeline
from tests import tiny
from tests.frontend.captured import captured
from tests.tiny_experts import EXPERT_CASES

PIPELINE = (
    "fold-constants,cse,canonicalize,cse,dce,"
    "raise-norm,raise-rope,raise-attention,raise-gated-mlp,canonicalize,dce"
)
ACTIVATIONS = {
    "param", "core.constant", "core.embedding", "core.linear", "core.add", "core.mul",
    "core.reshape", "core.slice", "core.gelu",
    "nn.rms_norm", "nn.layer_norm", "nn.rope_table", "nn.rope", "nn.attention", "nn.glu",
}  # fmt: skip
LOGITS = {"core.div", "core.tanh"}  # soft-capped or scaled logits
WEIGHTS = {"core.transpose", "core.slice", "core.add"}  # expressions over parameters
TOLERANCE = 3e-7  # float64, but constants are rounded to float32 as ops and not as attributes


def raised(name: str, *instruments: object) -> tuple[Module, list[PassRecord]]:
    module = captured(name)[0]
    return module, run_passes(module, parse_pipeline(PIPELINE), instruments=list(instruments))


def logits(name: str, module: Module) -> np.ndarray:
    values, length = tiny.parameters(name), tiny.CASES[name].longest

    def param(path: str, type_: Type) -> np.ndarray:
        return values[path]

    ids = tiny.ids(name, 2, length)
    positions = np.broadcast_to(np.arange(length), ids.shape)
    return run(module.funcs["forward"], [ids, positions], param, precision="f64")[0]


class SameNumbers:
    """An instrument: the logits after every pass are those before the first."""

    def __init__(self, name: str) -> None:
        self.name, self.wanted = name, logits(name, captured(name)[0])

    def before(self, module: Module, pass_: object) -> None:
        pass

    def after(self, module: Module, pass_: object, record: PassRecord) -> None:
        if record.changed:
            found = logits(self.name, module)
            error = np.linalg.norm(found - self.wanted) / np.linalg.norm(self.wanted)
            assert error < TOLERANCE, record.name


@pytest.mark.parametrize("name", [n for n in tiny.CASES if n not in EXPERT_CASES])
def test_raises_completely(name: str) -> None:
    module, records = raised(name, Verify(), CheckFacts(), SameNumbers(name))
    func = module.funcs["forward"]
    others = [op for op in func.ops if op.name not in ACTIVATIONS]
    left = {op.name for op in others if not _is_weight(op.result)}
    assert left <= LOGITS
    assert [r.refused for r in records if r.refused] == []
    assert _counts(func) == _expected(name)


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_is_a_fixed_point(name: str) -> None:
    module, _ = raised(name)
    again = clone_module(module)
    records = run_passes(again, parse_pipeline(PIPELINE))
    assert [r.name for r in records if r.changed] == []


def _is_weight(value: Value) -> bool:
    op = value.producer
    allowed = WEIGHTS | {"param", "core.constant"}
    return op is not None and op.name in allowed and all(map(_is_weight, op.operands))


def _counts(func: Func) -> dict[str, int]:
    """Ops that the architecture promises, and the attributes that it carries them with."""
    found = Counter(op.name for op in func.ops)
    windows = [op.attrs["window"] for op in func.ops if op.name == "nn.attention"]
    assert all(op.attrs["causal"] for op in func.ops if op.name == "nn.attention")
    return {
        "attention": found["nn.attention"],
        "windowed": sum(w is not None for w in windows),
        "rope": found["nn.rope"],
        "glu": found["nn.glu"],
        "norm": found["nn.rms_norm"] + found["nn.layer_norm"],
    }


def _expected(name: str) -> dict[str, int]:
    """Counts by reading the configuration the way the model's documentation describes it."""
    model_type = tiny.CASES[name].model_type
    config = tiny.model(name).config
    layers = config.num_hidden_layers
    rotated = layers
    if model_type == "gpt2":
        rotated = 0
    elif model_type == "smollm3":
        rotated = sum(config.no_rope_layers)
    elif model_type == "cohere2":
        rotated = config.layer_types.count("sliding_attention")
    kinds = getattr(config, "layer_types", None)
    windowed = kinds.count("sliding_attention") if kinds else 0
    if kinds is None and getattr(config, "sliding_window", None):
        windowed = layers
    norms = {"olmo2": 4, "qwen3": 4, "gemma2": 4, "gemma3_text": 6, "cohere2": 1}
    return {
        "attention": layers,
        "windowed": windowed,
        "rope": 2 * rotated,
        "glu": 0 if model_type == "gpt2" else layers,
        "norm": norms.get(model_type, 2) * layers + 1,
    }
