"""The verifier: one broken function per rule.

Files in `verify/` are named after the rule that they break and say which message is expected. What
cannot be written as text is broken by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from inferc.errors import CompileError
from inferc.ir.core import Eliminated, Module, Op, Use
from inferc.ir.location import DerivedLoc, ModuleLoc
from inferc.ir.parse import parse_module
from inferc.ir.stages import STAGES
from inferc.ir.types import TensorType
from inferc.ir.verify import VerifyError, provenance, verify

FILES = sorted((Path(__file__).parent / "verify").glob("*.ir"))
CASES = [(f, i) for f in FILES for i in range(len(f.read_text().split("// -----")))]


def directive(text: str, name: str) -> str | None:
    found = re.search(rf"^// {name}: *(.+?) *$", text, flags=re.M)
    return found[1] if found else None


@pytest.mark.parametrize(("file", "index"), CASES, ids=lambda x: getattr(x, "stem", x))
def test_broken_text(file: Path, index: int) -> None:
    text = file.read_text().split("// -----")[index]
    module = parse_module(text)
    with pytest.raises(VerifyError) as caught:
        verify(module, stage=directive(text, "STAGE"))
    problem = caught.value.problems[0]
    assert problem.rule == file.stem
    message = directive(text, "ERROR")
    assert message is not None
    assert message in str(problem)


GOOD = """func @f(%x: f32[4], %y: f32[4]) -> (f32[4]) {
  %w = param @w : f32[4]
  %a = core.add(%x, %w) : f32[4]
  %g = fuse.group(%i = %a, %j = %y) : f32[4] {
    %b = core.mul(%i, %j) : f32[4]
    yield %b
  }
  return %g
}
"""


def twice(module: Module) -> None:
    module.funcs["f"].ops.append(module.funcs["f"].ops[1])


def late(module: Module) -> None:
    ops = module.funcs["f"].ops
    ops.append(ops.pop(1))


def foreign(module: Module) -> None:
    other = parse_module(GOOD).funcs["f"]
    module.funcs["f"].ops[1]._set_operands((other.args[0], other.args[1]))


def foreign_result(module: Module) -> None:
    module.funcs["f"].results = [parse_module(GOOD).funcs["f"].args[0]]


def lost_use(module: Module) -> None:
    module.funcs["f"].args[0]._uses.clear()


def extra_use(module: Module) -> None:
    func = module.funcs["f"]
    func.args[0]._uses[(0, 0)] = Use(func.ops[2], 1)


def renamed(module: Module) -> None:
    module.funcs["f"].name = "g"


def open_body(module: Module) -> None:
    func = module.funcs["f"]
    body = func.ops[2].body
    assert body is not None
    body.ops[0]._set_operands((body.args[0], func.args[1]))


def body_without_argument(module: Module) -> None:
    body = module.funcs["f"].ops[2].body
    assert body is not None
    body.args.append(body.add_arg("k", TensorType((4,), "f32")))


def no_body(module: Module) -> None:
    module.funcs["f"].ops[2].body = None


def wrong_type(module: Module) -> None:
    module.funcs["f"].ops[1].results[0].type = TensorType((4,), "f64")


def wrong_attr(module: Module) -> None:
    module.funcs["f"].ops[1]._attrs = {"approximate": "tanh"}


def wrong_producer(module: Module) -> None:
    ops = module.funcs["f"].ops
    ops[1].results[0].producer = ops[0]


def wrong_body_type(module: Module) -> None:
    body = module.funcs["f"].ops[2].body
    assert body is not None
    body.args[0].type = TensorType((5,), "f32")


def body_param(module: Module) -> None:
    func = module.funcs["f"]
    body = func.ops[2].body
    assert body is not None
    body.ops.insert(0, _detached(func.ops[0]))


def _detached(op: Op) -> Op:
    return Op(op.card, (), op.attrs, loc=op.loc, result_types=[op.result.type])


BROKEN: dict[str, tuple[Callable[[Module], None], str, str]] = {
    "twice": (twice, "single-definition", "core.add stands twice in the list"),
    "producer": (wrong_producer, "single-definition", "names another op as its producer"),
    "late": (late, "order", "operand 0 (%a) is defined below its use"),
    "foreign": (foreign, "foreign-value", "operand 0 (%x) belongs to no op of this function"),
    "foreign result": (foreign_result, "foreign-value", "result %x belongs to no op"),
    "lost use": (lost_use, "use-list", "%x lists 0 uses, 1 ops read it"),
    "extra use": (extra_use, "use-list", "%x lists 2 uses, 1 ops read it"),
    "renamed": (renamed, "function-name", "@g is stored as @f"),
    "open body": (open_body, "body-closed", "in the body: operand 1 (%y) belongs to no op"),
    "body arity": (body_without_argument, "body", "the body takes 4 values, the group 2"),
    "no body": (no_body, "body", "exactly fuse.group has a body"),
    "body param": (body_param, "body-param", "param @w must be an operand of the group"),
    "type": (wrong_type, "types", "expected (f32[4]) from the card of core.add, found (f64[4])"),
    "attribute": (wrong_attr, "types", "unknown attribute 'approximate'"),
    "body type": (wrong_body_type, "body-types", "its body (f32[5], f32[4], f32[4])"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_by_hand(name: str) -> None:
    spoil, rule, message = BROKEN[name]
    module = parse_module(GOOD)
    verify(module)
    spoil(module)
    with pytest.raises(VerifyError) as caught:
        verify(module)
    matching = [p for p in caught.value.problems if p.rule == rule]
    assert matching, [str(p) for p in caught.value.problems]
    assert message in str(matching[0])


def test_message_shows_the_op_its_neighbours_and_the_pass() -> None:
    module = parse_module(GOOD)
    wrong_type(module)
    module.funcs["f"].ops[1].loc = DerivedLoc("fuse-add", ModuleLoc("layers.3.mlp", "Mlp"))
    with pytest.raises(VerifyError) as caught:
        verify(module, hint="To run the pass again: inferc opt x.ir")
    text = str(caught.value)
    assert 'in @f, at fuse-add("layers.3.mlp", "Mlp"), last touched by pass fuse-add' in text
    assert "\n>   %a = core.add(%x, %w) : f64[4]\n" in text
    assert "\n    %w = param @w : f32[4]\n" in text
    assert text.endswith("To run the pass again: inferc opt x.ir")


def test_provenance_is_conserved() -> None:
    module = parse_module(GOOD.replace("@w : f32[4]", '@w : f32[4] loc("model.w", "Linear")'))
    roots = provenance(module)
    assert list(roots) == ["model.w", "<text>"]
    func = module.funcs["f"]
    func.ops[0].loc = ModuleLoc("<text>")
    with pytest.raises(VerifyError, match=r"source module .model\.w. is in no location") as caught:
        verify(module, roots=roots)
    assert caught.value.problems[0].rule == "provenance"
    module.eliminated.append(Eliminated("model.w", "dce", "unused"))
    verify(module, roots=roots)


def test_provenance_looks_into_groups() -> None:
    module = parse_module(GOOD)
    body = module.funcs["f"].ops[2].body
    assert body is not None
    body.ops[0].loc = ModuleLoc("model.inside")
    assert "model.inside" in provenance(module)


def test_every_rule_has_a_test() -> None:
    source = "".join(
        p.read_text() for p in (Path(__file__).parents[2] / "ir").glob("*.py")
    )  # fmt: skip
    rules = set(re.findall(r'Problem\(\s*"([a-z-]+)"', source))
    rules |= set(re.findall(r'yield "([a-z-]+)",', source)) | {"body-closed"}
    tested = {f.stem for f in FILES} | {rule for _, rule, _ in BROKEN.values()} | {"provenance"}
    assert rules - tested == set()


def test_every_stage_is_named_and_unknown_ones_are_refused() -> None:
    assert list(STAGES) == ["tensor", "nn", "serve", "fused", "planned"]
    with pytest.raises(CompileError, match="no stage 'final'"):
        verify(parse_module(GOOD), stage="final")
