"""The manager: order from facts, records, instruments, fuel, bisection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module
from inferc.ir.verify import VerifyError
from inferc.passes.base import Pass, PassContext
from inferc.passes.bisect import first_bad_rewrite
from inferc.passes.facts import FACTS, FactBroken
from inferc.passes.instruments import CheckFacts, Dump, StageTexts, Verify
from inferc.passes.manager import PipelineError, prove_order, run_passes
from inferc.passes.pipeline import PHASES, PipelineOptions, phase_ends, pipeline
from inferc.passes.registry import find_pass, format_pipeline, parse_pipeline, pass_names

CHAIN = """func @forward(%x: f32[T, 4]) -> (f32[T, 4]) where T in 1..8 {
  %a = core.neg(%x) : f32[T, 4] loc("a")
  %b = core.neg(%a) : f32[T, 4] loc("b")
  %c = core.neg(%b) : f32[T, 4] loc("c")
  %d = core.neg(%c) : f32[T, 4] loc("d")
  return %d
}
"""


@dataclass(frozen=True)
class NegToAbs(Pass):
    """Wrong on purpose, but valid IR."""

    name = "neg-to-abs"
    requires = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        for func in module:
            rewriter = context.rewriter(func)
            for op in list(func.ops):
                if op.name == "core.neg":
                    new = rewriter.insert("core.abs", *op.operands, before=op, of=[op])
                    rewriter.replace(op, new.result)
                    context.hit("neg", func, 16)
                else:
                    context.refuse("neg", op, "is no neg")


@dataclass(frozen=True)
class Forgets(Pass):
    """Erases an op without a word about its source module."""

    name = "forgets"

    def run(self, module: Module, context: PassContext) -> None:
        func = module.funcs["forward"]
        op = func.ops[-1]
        context.rewriter(func).replace(op, op.operands[0])


@dataclass(frozen=True)
class Lies(Pass):
    """Claims a fact that does not hold."""

    name = "lies"
    ensures = frozenset({"phases"})

    def run(self, module: Module, context: PassContext) -> None:
        pass


@dataclass(frozen=True)
class Breaks(Pass):
    name = "breaks"
    breaks = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        pass


@dataclass(frozen=True)
class Unknown(Pass):
    name = "unknown"
    requires = frozenset({"tidy"})

    def run(self, module: Module, context: PassContext) -> None:
        pass


DCE = parse_pipeline("dce")


def test_order_is_proven_before_anything_runs() -> None:
    module = parse_module(CHAIN)
    with pytest.raises(PipelineError, match="neg-to-abs requires normalized") as caught:
        run_passes(module, [*DCE, Breaks(), NegToAbs()])
    assert "after dce, breaks (holds: nothing)" in str(caught.value)
    assert print_module(module, locations=True) == CHAIN
    assert prove_order([*DCE, NegToAbs()]) == {"normalized"}
    assert prove_order([NegToAbs(), Breaks()], given={"normalized", "raised"}) == {"raised"}


def test_unknown_facts_are_refused() -> None:
    with pytest.raises(PipelineError, match="tidy, which is no fact"):
        prove_order([Unknown()], given={"tidy"})


def test_the_pipeline_is_in_order() -> None:
    facts = prove_order(pipeline())
    assert {"paged", "phases", "logits-last", "hoisted", "fused", "kv-planned"} <= facts


def test_the_pipeline_knows_its_phases() -> None:
    ends = phase_ends()
    assert [p.name for p in ends.values()] == [p.name for p in PHASES]
    assert max(ends) == len(pipeline()) - 1


def test_the_pipeline_hands_options_to_passes() -> None:
    options = PipelineOptions(step_tokens=7, sequences=3, page_tokens=16, kv_dtype="bf16")
    text = format_pipeline(pipeline(options))
    assert "split-phases{step_tokens=7, sequences=3}" in text
    assert 'plan-kv{page_tokens=16, dtype="bf16"}' in text


def test_records() -> None:
    module = parse_module(CHAIN)
    first, second = run_passes(module, [*DCE, NegToAbs()])
    assert (first.changed, first.rewrites, first.name) == (False, 0, "dce")
    assert (second.changed, second.rewrites, second.index) == (True, 4, 1)
    assert (second.ops_before, second.ops_after) == (4, 4)
    assert second.bytes_before == second.bytes_after == {"forward": 4 * 2 * 512 * 16}
    assert second.hits == {"neg": 4}
    assert second.bytes_saved == {"forward": 64}
    assert json.loads(json.dumps(second.to_json()))["hits"] == {"neg": 4}


def test_refusals_are_recorded_with_their_place() -> None:
    module = parse_module(CHAIN)
    run_passes(module, [NegToAbs()], given={"normalized"})
    (record,) = run_passes(module, [NegToAbs()], given={"normalized"})
    assert [(r.pattern, r.op, r.module, r.reason) for r in record.refused] == [
        ("neg", "core.abs", name, "is no neg") for name in "abcd"
    ]


@pytest.mark.parametrize("fuel", [0, 1, 3, 4, 9])
def test_fuel_is_shared_by_all_passes(fuel: int) -> None:
    module = parse_module(CHAIN)
    records = run_passes(module, [NegToAbs(), NegToAbs()], given={"normalized"}, fuel=fuel)
    text = print_module(module)
    assert text.count("core.abs(") >= min(fuel, 4)
    assert sum(r.rewrites for r in records) == min(fuel, 4)
    assert len(records) == (1 if fuel < 4 else 2)


def test_lost_modules_are_found() -> None:
    with pytest.raises(VerifyError, match="source module 'd' is in no location") as caught:
        run_passes(parse_module(CHAIN), [Forgets()], instruments=[Verify()])
    assert "inferc opt FILE.ir --pass 'forgets' --verify" in str(caught.value)


def test_stages_are_verified_where_they_are_due() -> None:
    run_passes(parse_module(CHAIN), DCE, instruments=[Verify(stages={0: "tensor"})])
    with pytest.raises(VerifyError, match=r"core\.neg may not occur at stage fused"):
        run_passes(parse_module(CHAIN), DCE, instruments=[Verify(stages={0: "fused"})])


def test_false_claims_are_found() -> None:
    with pytest.raises(FactBroken, match="found the step functions forward"):
        run_passes(parse_module(CHAIN), [Lies()], instruments=[CheckFacts()])


def test_dump(tmp_path: Path) -> None:
    module = parse_module(CHAIN)
    run_passes(module, [*DCE, NegToAbs()], instruments=[Dump(tmp_path / "d")])
    written = sorted(p.name for p in (tmp_path / "d").iterdir())
    assert written == [
        "000-input.ir", "002-neg-to-abs.diff", "002-neg-to-abs.ir", "passes.jsonl",
    ]  # fmt: skip
    text = (tmp_path / "d" / "002-neg-to-abs.ir").read_text()
    assert text == print_module(module, locations=True)
    diff = (tmp_path / "d" / "002-neg-to-abs.diff").read_text()
    assert '-  %a = core.neg(%x) : f32[T, 4] loc("a")\n' in diff
    lines = (tmp_path / "d" / "passes.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["dce", "neg-to-abs"]


def test_stage_texts() -> None:
    texts = StageTexts({0: "tidy"})
    module = parse_module(CHAIN)
    run_passes(module, [*DCE, NegToAbs()], instruments=[texts])
    assert list(texts.texts) == ["tidy"]
    assert "core.abs" not in texts.texts["tidy"]


def test_bisection_finds_pass_and_rewrite() -> None:
    module = parse_module(CHAIN)

    def has_few_abs(found: Module) -> bool:
        return print_module(found).count("core.abs(") < 3

    passes = [*DCE, NegToAbs(), *DCE]
    bad = first_bad_rewrite(module, passes, has_few_abs)
    assert bad is not None
    assert (bad.pass_name, bad.index, bad.rewrite) == ("neg-to-abs", 1, 3)
    assert has_few_abs(bad.before)
    assert not has_few_abs(bad.after)
    assert print_module(module, locations=True) == CHAIN
    assert first_bad_rewrite(module, passes, lambda m: True) is None


# -- registry
def test_every_pass_file_is_found_by_name() -> None:
    names = pass_names()
    assert {"dce", "fuse-epilogue", "plan-memory"} <= set(names)
    assert not {"base", "manager", "driver", "check"} & set(names)
    for name in names:
        assert find_pass(name).name == name


def test_every_pass_names_known_facts() -> None:
    for name in pass_names():
        cls = find_pass(name)
        assert cls.requires | cls.ensures | cls.breaks <= set(FACTS), name


def test_every_pass_has_golden_cases_and_one_where_it_does_not_fire() -> None:
    folder = Path(__file__).parent
    for name in pass_names():
        text = (folder / f"{name.replace('-', '_')}.ir").read_text()
        assert "// EXPECT-UNCHANGED" in text, name


@pytest.mark.parametrize(
    "text",
    ["dce", "cse,dce", "split-phases{step_tokens=128},dce", 'plan-kv{dtype="f16"}', ""],
)
def test_pipelines_print_as_they_parse(text: str) -> None:
    assert format_pipeline(parse_pipeline(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dcee", "There is no pass 'dcee'; did you mean dce"),
        ("base", "There is no pass 'base'"),
        ("../dce", "Bad pipeline: line 1: unexpected character"),
        ("dce{x=1}", "has no option 'x'; options: it has none"),
        ("split-phases{steps=1}", "options: step_tokens, sequences, context_tokens"),
        ("split-phases{step_tokens=1.5}", "option 'step_tokens' must be like 512, got 1.5"),
        ("dce,", "expected word"),
        ("dce cse", "expected ,"),
    ],
)
def test_bad_pipelines(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_pipeline(text)
    assert message in str(caught.value)
