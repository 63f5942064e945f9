"""The rewriter keeps uses, order, names, locations and the version right."""

from __future__ import annotations

import pytest

from inferc.ir.card import TypeMismatch
from inferc.ir.core import Builder, Eliminated, Func, Module, Op
from inferc.ir.location import DerivedLoc, FusedLoc, ModuleLoc, derive, fuse
from inferc.ir.parse import parse_func, parse_module
from inferc.ir.rewrite import Fuel, OutOfFuel, Rewriter, clone_module, outline
from inferc.ir.text import print_func, print_module, structural_hash
from inferc.ir.types import TensorType
from inferc.ir.verify import verify

TEXT = """func @f(%x: f32[4], %y: f32[4]) -> (f32[4], f32[4]) {
  %a = core.add(%x, %y) : f32[4] loc("a", "Add")
  %b = core.mul(%a, %a) : f32[4] loc("b")
  %hidden = core.neg(%b) : f32[4] loc("c")
  return %hidden, %b
}
"""


@pytest.fixture
def func() -> Func:
    return parse_func(TEXT)


def checked(func: Func) -> str:
    verify(Module({func.name: func}))
    return print_func(func, locations=True)


def test_replace_moves_uses_results_and_the_name(func: Func) -> None:
    rewriter, op = Rewriter(func, "square"), func.ops[1]
    version = func.version
    new = rewriter.insert("core.square", op.operands[0], before=op, of=[func.ops[0], op])
    rewriter.replace(op, new.result)
    text = checked(func)
    assert '%b = core.square(%a) : f32[4] loc(square(["a", "Add" | "b"]))' in text
    assert "return %hidden, %b" in text
    assert func.version > version
    assert op.operands == ()


def test_replacing_by_an_older_value_keeps_its_name(func: Func) -> None:
    Rewriter(func, "p").replace(func.ops[2], func.args[0])
    assert "return %x, %b" in checked(func)


def test_replace_refuses_other_types_and_counts(func: Func) -> None:
    rewriter, op = Rewriter(func, "p"), func.ops[1]
    wide = func.add_arg("w", TensorType((5,), "f32"))
    with pytest.raises(ValueError, match=r"p: replacing core\.mul of type f32\[4\] by f32\[5\]"):
        rewriter.replace(op, wide)
    with pytest.raises(ValueError, match="has 1 results, got 2 values"):
        rewriter.replace(op, func.args[0], func.args[1])


def test_erase_refuses_what_is_read(func: Func) -> None:
    rewriter = Rewriter(func, "p")
    for op in func.ops:
        with pytest.raises(ValueError, match="is still read"):
            rewriter.erase(op)
    rewriter.set_results(func.ops[1].result)
    rewriter.erase(func.ops[2])
    assert "core.neg" not in checked(func)


def test_set_operand_and_attrs(func: Func) -> None:
    rewriter = Rewriter(func, "p")
    rewriter.set_operand(func.ops[1].operands[0].uses[1], func.args[0])
    assert "core.mul(%a, %x)" in checked(func)
    with pytest.raises(TypeMismatch, match="unknown attribute"):
        rewriter.set_attrs(func.ops[1], eps=1.0)


def test_operands_and_attributes_cannot_be_assigned(func: Func) -> None:
    with pytest.raises(AttributeError, match=r"Rewriter\.set_operand"):
        func.ops[0].operands = ()
    with pytest.raises(AttributeError, match=r"Rewriter\.set_attrs"):
        func.ops[0].attrs = {}


def test_iteration_survives_edits_of_the_current_op(func: Func) -> None:
    rewriter, seen = Rewriter(func, "p"), []
    for op in list(func.ops):
        seen.append(op.name)
        new = rewriter.insert(op.name, *op.operands, before=op, of=[op])
        rewriter.replace(op, new.result)
    assert seen == ["core.add", "core.mul", "core.neg"]
    assert [op.name for op in func.ops] == seen
    checked(func)


def test_insert_param_and_group(func: Func) -> None:
    rewriter, first = Rewriter(func, "p"), func.ops[0]
    param = rewriter.insert_param("w", TensorType((4,), "f32"), before=first, of=first.loc)
    rewriter.set_operand(first.operands[1].uses[0], param.result)
    operands, body = outline(func.ops[2:4], func.results, func.symbols)
    assert operands == [first.result]  # the parameter is no operand: nothing inside reads it
    group = rewriter.insert_group(operands, body, before=None, of=func.ops[2:4], kind="k")
    rewriter.set_results(group.results[0], group.results[1])
    for op in reversed(func.ops[2:4]):
        rewriter.erase(op)
    assert 'loc(p(["b" | "c"]))' in checked(func)


def test_fuel_is_shared_and_leaves_nothing_dangling(func: Func) -> None:
    fuel = Fuel(1)
    first, second = (Rewriter(func, "p", fuel=fuel) for _ in range(2))
    op = func.ops[0]
    first.replace(op, first.insert("core.sub", *op.operands, before=op, of=[op]).result)
    before = print_func(func)
    op = func.ops[1]
    with pytest.raises(OutOfFuel):
        second.replace(op, second.insert("core.add", *op.operands, before=op, of=[op]).result)
    assert print_func(func) == before
    assert fuel.used == 1


def test_eliminated_is_logged_once() -> None:
    module = parse_module(TEXT)
    func = module.funcs["f"]
    rewriter = Rewriter(func, "dce", module=module)
    rewriter.eliminated(func.ops[0], "unused")
    rewriter.eliminated(func.ops[0], "unused")
    assert module.eliminated == [Eliminated("a", "dce", "unused")]


def test_foreign_anchor_is_refused(func: Func) -> None:
    other = parse_func(TEXT).ops[0]
    with pytest.raises(ValueError, match=r"core\.add is not in @f"):
        Rewriter(func, "p").insert("core.neg", func.args[0], before=other, of=[other])


def test_clone_shares_no_values() -> None:
    module = parse_module(TEXT)
    copied = clone_module(module)
    assert print_module(copied, locations=True) == print_module(module, locations=True)
    assert structural_hash(copied) == structural_hash(module)
    mine = {id(v) for f in module for op in f.ops for v in (*op.operands, *op.results)}
    assert not mine & {id(v) for f in copied for op in f.ops for v in (*op.operands, *op.results)}
    verify(copied)


def test_builder_gives_every_op_a_location() -> None:
    func = Func("g")
    builder, loc = Builder(func), ModuleLoc("m")
    x = func.add_arg("x", TensorType((2, 4), "f32"))
    w = builder.param("m.norm.weight", TensorType((4,), "f32"), loc=loc)
    n = builder.op("nn.rms_norm", x, w, loc=loc, hint="n", eps=1e-6)
    builder.returns(builder.op("core.mul", n, builder.constant(2.0, "f32", loc=loc), loc=loc))
    assert w.hint == "norm"
    assert all(op.loc == loc for op in func.ops)
    with pytest.raises(TypeError, match="loc"):
        Op(func.ops[1].card, (x, w), {"eps": 1e-6})  # type: ignore[call-arg]


# -- locations
A, B, C = (ModuleLoc(p) for p in "abc")


def test_fused_locations_are_flat_and_unique() -> None:
    assert fuse([A]) == A
    assert fuse([A, FusedLoc((B, A)), C]) == FusedLoc((A, B, C))
    assert fuse([A, B]).roots() == (A, B)
    with pytest.raises(ValueError, match="at least one origin"):
        fuse([])


def test_derived_locations_keep_the_last_pass_only() -> None:
    first = derive("one", [A, B])
    assert derive("two", [first, C]) == DerivedLoc("two", FusedLoc((A, B, C)))
    assert str(derive("two", [first])) == 'two(["a" | "b"])'
    assert first.roots() == (A, B)
