"""The translation check finds planted faults, at every stage."""

from __future__ import annotations

import re
from dataclasses import dataclass

import nn_models
import numpy as np
import pytest

from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module
from inferc.ir.types import TensorType
from inferc.passes.base import Pass, PassContext
from inferc.passes.check import Checker, CheckTranslation, TranslationError, relative_error
from inferc.passes.check_inputs import RandomParams, canonical_prompts
from inferc.passes.manager import run_passes
from inferc.passes.registry import parse_pipeline

SERVE = "flatten-tokens,page-attention,last-token-logits,split-phases,hoist-weights"
GIVEN = {"normalized", "raised"}
# text in the captured graph, what a careless pass makes of it
FAULTS = {
    "soft-cap dropped": (r", softcap = [\d.]+", ""),
    "window dropped": (r", window = \d+", ""),
    "window off by one": (r"window = 5\b", "window = 6"),
    "other epsilon": (r"eps = 1e-0[56]", "eps = 1.1e-05"),
    "other scale": (r"scale = ([\d.]+)", "scale = 0.2501"),
    "other pairing": (r"nn\.rope\((.*?)\)", r'nn.rope(\1) {pairing = "interleaved"}'),
    "other activation": (r'"silu"', '"gelu"'),
}


def source() -> Module:
    return nn_models.build("gemma2")


def served() -> Module:
    module = source()
    run_passes(module, parse_pipeline(SERVE), given=GIVEN)
    return module


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stage", ["source", "served"])
def test_planted_faults_are_found(fault: str, stage: str) -> None:
    checker = Checker(source())
    module = source() if stage == "source" else served()
    assert checker.is_good(module)
    text = print_module(module)
    wrong = re.sub(*FAULTS[fault], text)
    assert wrong != text
    assert not checker.is_good(parse_module(wrong))


def test_a_wrong_slot_is_found() -> None:
    text = print_module(served())
    match = re.search(r"serve\.kv_append\(%kv_1, (%\w+), (%\w+), %slots\)", text)
    assert match is not None
    swapped = f"serve.kv_append(%kv_1, {match[1]}, {match[1]}, %slots)"
    assert not Checker(source()).is_good(parse_module(text.replace(match[0], swapped)))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_each_phase_is_checked(phase: str) -> None:
    text = print_module(served())
    head, mark, tail = text.partition("func @decode")
    wrong = [re.sub(r"scale = [\d.]+", "scale = 0.3", part) for part in (head, tail)]
    text = wrong[0] + mark + tail if phase == "prefill" else head + mark + wrong[1]
    bad = {
        c.phase for c in Checker(source()).compare(parse_module(text)) if c.relative_error > 1e-6
    }
    assert phase in bad
    if phase == "decode":
        assert bad == {"decode"}


@dataclass(frozen=True)
class WrongScale(Pass):
    """Changes the second attention it sees."""

    name = "wrong-scale"

    def run(self, module: Module, context: PassContext) -> None:
        for func in module:
            rewriter = context.rewriter(func)
            for op in [o for o in func.ops if o.name == "nn.attention"][1:]:
                rewriter.spend()
                rewriter.set_attrs(op, scale=0.4)


def test_the_instrument_names_the_pass() -> None:
    check = CheckTranslation()
    passes = [*parse_pipeline("cse,dce"), WrongScale()]
    with pytest.raises(TranslationError, match="Pass wrong-scale changes the result") as caught:
        run_passes(source(), passes, instruments=[check])
    assert re.search(r"error of the logits \d\.\d\de[-+]\d\d in forward of", str(caught.value))
    assert "of its 1 rewrites" in str(caught.value)
    assert check.worst > 1e-6


def test_unchanged_modules_are_not_run_again() -> None:
    check = CheckTranslation()
    run_passes(source(), parse_pipeline("dce"), instruments=[check])
    assert check.results == {}
    assert check.worst == 0


def test_not_a_number_is_an_error() -> None:
    assert relative_error(np.array([1.0, np.nan]), np.array([1.0, 1.0])) == float("inf")


def test_prompts_reach_beyond_windows_and_pages() -> None:
    lengths = [[len(ids) for ids in p.ids] for p in canonical_prompts(source())]
    assert [1] in lengths
    assert any(len(set(each)) > 1 for each in lengths)
    assert max(max(each) for each in lengths) >= 5 + 3  # its window is 5


def test_parameters_depend_on_name_and_shape_only() -> None:
    type_ = TensorType((3, 5), "bf16")
    a, b = RandomParams(source()), RandomParams(source(), kept_bytes=0)
    np.testing.assert_array_equal(a("w", type_), b("w", type_))
    assert not np.array_equal(a("w", type_), a("v", type_))
    assert np.array_equal(a("w", type_), a("w", type_))


def test_no_language_model_is_said_so() -> None:
    text = "func @forward(%x: f32[2]) -> (f32[2]) {\n  return %x\n}"
    with pytest.raises(CompileError, match="looks no token up"):
        Checker(parse_module(text))
    with pytest.raises(CompileError, match="no @forward or @prefill among main"):
        module = source()
        module.funcs = {"main": module.funcs["forward"]}
        Checker(module)
