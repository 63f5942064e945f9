"""Raises rotary embedding: the tables of cos and sin, and the rotation of heads.

    %a = core.mul(%column, %inv_freq)      %cos, %sin = nn.rope_table(%positions, %inv_freq)
    %t = core.concat(%a, %a)           =>  %y = nn.rope(%x, %cos, %sin)
    %c = core.cos(%t)
    %s = core.sin(%t)
    %m = core.mul(%x, %c)
    %r = core.concat(%minus_upper, %lower)
    %n = core.mul(%r, %s)
    %y = core.add(%m, %n)

Forms: a quarter turn of the head added to it (halves, or neighbours stacked), the two rotated parts
joined (tables of half the width), either with the rotation in the other direction; tables doubled
before or after cos and sin, scaled or not. A rotation of the first dims joined with the untouched
rest is one partial rotation.

Not raised: heads that are not next to the last axis (unless there is only one), tables laid out for
the other pairing, cos and sin of different angles or factors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Size
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, Pattern, apply_patterns, has_one_use, pattern
from inferc.passes.match import axis_attr, made_by, same_but_lead, same_shape, tensor
from inferc.passes.match_rope import (
    Pairing,
    Region,
    Table,
    frequencies,
    join,
    joined_region,
    last_size,
    region,
    same_but_units,
    table,
)


@dataclass(frozen=True)
class RaiseRope(Pass):
    """Raises rotary embedding."""

    name = "raise-rope"
    requires = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function."""
        for func in module:
            _raise(func, context)


def _raise(func: Func, context: PassContext) -> None:
    tables = _Tables()
    patterns = (
        Pattern("rope", frozenset({"core.add", "core.sub"}), tables.rotate_whole),
        Pattern("rope-parts", frozenset({"core.concat", "core.reshape"}), tables.rotate_parts),
        partial_rope,
    )
    apply_patterns(func, context, patterns)


@dataclass(frozen=True)
class _Term:
    """Plus or minus data * factor, where the factor is a table."""

    product: Op
    sign: float
    data: Value
    factor: Value
    table: Table


@dataclass(frozen=True)
class _Rotation:
    """A head times cos, plus or minus (by `direction`) its quarter turn times sin.

    `parts` has the head, or its two rotated parts; `layout` is how its tables have to be laid out.
    """

    parts: tuple[Value, ...]
    cos: _Term
    sin: _Term
    pairing: Pairing
    layout: str
    direction: float


@dataclass
class _Tables:
    """The rope tables made so far: every layer of a model reads the same ones."""

    made: dict[tuple[Value, float, float], Op] = field(default_factory=dict)

    def rotate_whole(self, op: Op, edit: Edit) -> Value | None:
        """Raise x * cos + turned(x) * sin."""
        terms = _terms(op.result)
        if terms is None:
            return None
        cos, sin = terms
        turned = _quarter_turn(sin.data)
        if turned is None or region(cos.data) != turned[0]:
            return None
        _, pairing, direction = turned
        direction *= cos.sign * sin.sign
        return self._build(_Rotation((cos.data,), cos, sin, pairing, pairing, direction), edit)

    def rotate_parts(self, op: Op, edit: Edit) -> Value | None:
        """Raise join(a * cos - b * sin, b * cos + a * sin)."""
        parts = join(op.result)
        if parts is None:
            return None
        first, second, pairing = _terms(parts[0]), _terms(parts[1]), parts[2]
        if first is None or second is None:
            return None
        (cos, minus_sin), (cos2, sin) = first, second
        same = cos.data is sin.data and minus_sin.data is cos2.data
        same_tables = cos.table == cos2.table and sin.table == minus_sin.table
        if not same or not same_tables or cos.sign != cos2.sign or sin.sign == minus_sin.sign:
            return None
        edit.covers(minus_sin.product, cos2.product, parts[0].producer, parts[1].producer)
        halves, direction = (cos.data, cos2.data), cos.sign * sin.sign
        return self._build(_Rotation(halves, cos, sin, pairing, "narrow", direction), edit)

    def _build(self, rotation: _Rotation, edit: Edit) -> Value | None:
        cos, sin = rotation.cos.table, rotation.sin.table
        reason = _mismatch(rotation)
        source = frequencies(cos.angle)
        if reason is None and source is None:
            reason = "the angle is not positions times a vector of frequencies"
        if reason is not None or source is None:
            edit.refuse(reason or "")
            return None
        scale = rotation.cos.sign * cos.factor
        direction = rotation.direction * sin.factor / cos.factor
        made = self._table(cos.angle, source, scale, direction, edit)
        edit.covers(rotation.cos.product, rotation.sin.product)
        x = _head(rotation, edit)
        x = _viewed(x, _seated(rotation), edit)
        turned = edit.op("nn.rope", x, *made.results, pairing=rotation.pairing)
        return _viewed(turned, tensor(edit.root.result).shape, edit)

    def _table(
        self, angle: Value, source: tuple[Value, Value], scale: float, direction: float, edit: Edit
    ) -> Op:
        key = (angle, scale, direction)
        if key not in self.made:
            positions, inverse = source
            before = angle.producer
            assert before is not None
            of = [before, *angle.users]
            if direction < 0:  # cos(-a) = cos(a), sin(-a) = -sin(a)
                inverse = edit.add("core.neg", inverse, attrs={}, before=before, of=of).result
            self.made[key] = edit.add(
                "nn.rope_table", positions, inverse, attrs={"scale": scale}, before=before, of=of,
                hint=("cos", "sin"),
            )  # fmt: skip
        return self.made[key]


def _terms(value: Value) -> tuple[_Term, _Term] | None:
    """A sum of two products with tables: the one with cos, the one with sin."""
    op = made_by(value, "core.add", "core.sub")
    if op is None:
        return None
    second_sign = -1.0 if op.name == "core.sub" else 1.0
    first, second = _term(op.operands[0], 1.0), _term(op.operands[1], second_sign)
    if first is None or second is None:
        return None
    by_name = {first.table.function: first, second.table.function: second}
    return (by_name["cos"], by_name["sin"]) if by_name.keys() == {"cos", "sin"} else None


def _term(value: Value, sign: float) -> _Term | None:
    op = made_by(value, "core.neg")
    if op is not None:
        value, sign = op.operands[0], -sign
    product = made_by(value, "core.mul")
    if product is None:
        return None
    for data, factor in (product.operands, product.operands[::-1]):
        found = table(factor)
        if found.function is not None:
            negated = made_by(data, "core.neg")
            if negated is not None:
                data, sign = negated.operands[0], -sign
            return _Term(product, sign, data, factor, found)
    return None


def _quarter_turn(value: Value) -> tuple[Region, Pairing, float] | None:
    """What (-b, a) is a turn of, for parts (a, b) of a head; (b, -a) is the other direction."""
    parts = join(value)
    if parts is None:
        return None
    first, second, pairing = parts
    negated, direction = made_by(first, "core.neg"), 1.0
    b, a = (negated.operands[0] if negated is not None else first), second
    if negated is None:
        negated, direction = made_by(second, "core.neg"), -1.0
        if negated is None:
            return None
        a = negated.operands[0]
    whole = joined_region(region(a), region(b), pairing)
    return (whole, pairing, direction) if whole is not None else None


def _whole(rotation: _Rotation) -> Region | None:
    """The head that the rotated parts are the parts of."""
    a, b = rotation.parts
    return joined_region(region(a), region(b), rotation.pairing)


def _head(rotation: _Rotation, edit: Edit) -> Value:
    """The rotated head as one value."""
    if len(rotation.parts) == 1:
        return rotation.parts[0]
    whole, axis = _whole(rotation), tensor(rotation.parts[0]).rank - 1
    if whole is None:
        return edit.op("core.concat", *rotation.parts, axis=axis)
    return _taken(whole, edit)


def _taken(part: Region, edit: Edit) -> Value:
    """The value of a region without steps."""
    if part.start == 0 and part.count == last_size(part.base):
        return part.base
    axis, stop = tensor(part.base).rank - 1, part.start + part.count
    return edit.op("core.slice", part.base, axis=axis, start=part.start, stop=stop)


def _viewed(value: Value, shape: tuple[Size, ...], edit: Edit) -> Value:
    """The value with another shape, that differs in axes of one element."""
    if same_shape(tensor(value).shape, shape):
        return value
    return edit.op("core.reshape", value, shape=shape)


def _seated(rotation: _Rotation) -> tuple[Size, ...]:
    """The shape of the head with the axis of heads next to the last."""
    shape = tensor(rotation.parts[0]).shape
    lead = tensor(rotation.cos.table.angle).shape[:-1]
    width = last_size(rotation.parts[0])
    assert width is not None
    lead = (*lead, 1) if not same_but_lead(lead, shape[:-2]) else shape[:-1]
    return (*lead, width * len(rotation.parts))


def _mismatch(rotation: _Rotation) -> str | None:
    """Why the rotation cannot be raised; None if it can."""
    cos, sin, layout = rotation.cos.table, rotation.sin.table, rotation.layout
    if cos.angle is not sin.angle or abs(cos.factor) != abs(sin.factor):
        return "cos and sin are of different angles or factors"
    if cos.layout != layout or sin.layout != layout:
        return f"tables are laid out {cos.layout} and {sin.layout}, the rotation needs {layout}"
    if len(rotation.parts) == 2 and rotation.pairing == "interleaved" and _whole(rotation) is None:
        return "the rotated parts are not the neighbours of one head"
    head = tensor(rotation.parts[0]).shape
    expected = (*tensor(cos.angle).shape[:-1], 1, head[-1])
    single = same_but_units(head, expected)  # its only head may stand anywhere
    for factor in (rotation.cos.factor, rotation.sin.factor):
        shape = tensor(factor).shape
        if not (same_shape(shape, head) if single else same_but_lead(expected, shape)):
            return f"{factor.type} is not one table for all heads of {rotation.parts[0].type}"
    if not single and not same_but_lead(expected[:-2], head[:-2]):
        return f"{rotation.parts[0].type} does not have its heads next to the last axis"
    return None


@pattern("core.concat")
def partial_rope(op: Op, edit: Edit) -> Value | None:
    """A rotation of the first dims of a head, joined with its other dims."""
    if len(op.operands) != 2 or axis_attr(op) != tensor(op.result).rank - 1:
        return None
    rotated, rest = op.operands
    rope, after = made_by(rotated, "nn.rope"), region(rest)
    first = region(rope.operands[0]) if rope is not None else None
    if rope is None or first is None or after is None or first.step != 1:
        return None
    if after != Region(first.base, first.start + first.count, after.count):
        return None
    if not has_one_use(rotated, edit.func):
        edit.refuse("the rotated part has another reader")
        return None
    edit.covers(rope)
    whole = Region(first.base, first.start, first.count + after.count)
    return edit.like(rope, _taken(whole, edit), *rope.operands[1:])
