"""Reads the text form written by `inferc.ir.text`."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.card import AttrValue, TypeMismatch, card
from inferc.ir.core import Eliminated, Func, Module, Op, Value
from inferc.ir.dims import Symbol
from inferc.ir.lexer import ParseError, Token
from inferc.ir.reader import Reader
from inferc.ir.types import Type

__all__ = ["ParseError", "parse_func", "parse_module", "parse_specs"]


@dataclass(frozen=True)
class _Statement:
    name: str
    operands: list[Value]
    attrs: dict[str, AttrValue]
    hints: list[str]
    types: list[Type]
    body: Func | None
    token: Token


class _Parser(Reader):
    def func(self) -> Func:
        self.next(text="func")
        func = Func(self.next("param")[1:])
        names: dict[str, Value] = {}
        self.next(text="(")
        while not self.accept(")"):
            name = self.next("value")[1:]
            self.next(text=":")
            names[name] = func.add_arg(name, self.type())
            if not self.accept(",") and self.peek.text != ")":
                raise self.error("expected , or )")
        self.next("arrow")
        self.next(text="(")
        declared = [] if self.peek.text == ")" else self.types()
        self.next(text=")")
        if self.accept("where"):
            self.ranges(func)
        self.next(text="{")
        end = self.peek
        self.body(func, names, "return")
        if [str(v.type) for v in func.results] != [str(t) for t in declared]:
            found = ", ".join(str(v.type) for v in func.results)
            raise self.error(
                f"@{func.name} declares ({', '.join(map(str, declared))}), returns ({found})", end
            )
        return func

    def ranges(self, func: Func) -> None:
        while True:
            token = self.peek
            name = self.next("word")
            self.next(text="in")
            low = self.integer()
            self.next("range")
            high, divisor = self.integer(), 1
            if self.accept("mult"):
                divisor = self.integer()
            try:
                func.symbols[name] = Symbol(name, low, high, divisor)
            except ValueError as error:
                raise self.error(str(error), token) from None
            if not self.accept(","):
                return

    def body(self, func: Func, names: dict[str, Value], end: str) -> None:
        while not self.accept(end):
            self.statement(func, names)
        if self.peek.kind == "value":
            func.results = self.operand_list(names)
        self.next(text="}")

    def operand(self, names: dict[str, Value]) -> Value:
        token = self.peek
        name = self.next("value")[1:]
        if name not in names:
            raise self.error(f"%{name} is not defined", token)
        return names[name]

    def operand_list(self, names: dict[str, Value]) -> list[Value]:
        out = [self.operand(names)]
        while self.accept(","):
            out.append(self.operand(names))
        return out

    def statement(self, func: Func, names: dict[str, Value]) -> None:
        hints = [self.next("value")[1:]]
        while self.accept(","):
            hints.append(self.next("value")[1:])
        self.next(text="=")
        token = self.peek
        name = self.next("word")
        if name == "param":
            attrs: dict[str, AttrValue] = {"name": self.next("param")[1:]}
            self.next(text=":")
            parts = _Statement(name, [], attrs, hints, [self.type()], None, token)
            self.finish(func, names, parts)
            return
        self.next(text="(")
        if name == "fuse.group":
            body = Func("body", dict(func.symbols))
            operands = self.group_operands(names, body)
        else:
            body, operands = None, [] if self.peek.text == ")" else self.operand_list(names)
        self.next(text=")")
        attrs = self.attrs() if self.accept("{") else {}
        self.next(text=":")
        types = self.types()
        if body is not None:
            self.next(text="{")
            self.body(body, {a.hint: a for a in body.args}, "yield")
        parts = _Statement(name, operands, attrs, hints, types, body, token)
        self.finish(func, names, parts)

    def group_operands(self, names: dict[str, Value], body: Func) -> list[Value]:
        operands: list[Value] = []
        while self.peek.text != ")":
            inner = self.next("value")[1:]
            self.next(text="=")
            operands.append(self.operand(names))
            body.add_arg(inner, operands[-1].type)
            if not self.accept(","):
                break
        return operands

    def finish(self, func: Func, names: dict[str, Value], parts: _Statement) -> None:
        name, body, types = parts.name, parts.body, parts.types
        fixed = types if name == "param" or body is not None else None
        try:
            op = Op(
                card(name), parts.operands, parts.attrs, loc=self.optional_loc(),
                hints=parts.hints, body=body, result_types=fixed,
            )  # fmt: skip
        except (TypeMismatch, KeyError) as error:
            raise self.error(str(error.args[0]), parts.token) from None
        declared = ", ".join(map(str, types))
        for found in [op.results] + ([body.results] if body is not None else []):
            if [r.type for r in found] != types:
                gives = ", ".join(str(r.type) for r in found)
                message = f"{name} gives {gives}, the text says {declared}"
                raise self.error(message, parts.token)
        if len(parts.hints) != len(op.results):
            message = f"{name} gives {len(op.results)} values, {len(parts.hints)} are named"
            raise self.error(message, parts.token)
        for hint, result in zip(parts.hints, op.results, strict=True):
            if hint in names:
                raise self.error(f"%{hint} is defined twice", parts.token)
            names[hint] = result
        func.ops.append(op)


def parse_module(source: str) -> Module:
    """Read a module. Raises ParseError with line and caret."""
    parser, module = _Parser(source), Module()
    while parser.peek.kind != "end":
        if parser.accept("eliminated"):
            path = parser.string()
            parser.next(text="by")
            name = parser.next("word")
            parser.next(text=":")
            module.eliminated.append(Eliminated(path, name, parser.string()))
            continue
        func = parser.func()
        if func.name in module.funcs:
            raise parser.error(f"@{func.name} is defined twice")
        module.add(func)
    return module


def parse_specs(source: str) -> list[tuple[str, dict[str, AttrValue]]]:
    """Read `name,name{key=value}`: names with attributes, as pipelines are written."""
    parser = _Parser(source)
    out: list[tuple[str, dict[str, AttrValue]]] = []
    if parser.peek.kind == "end":
        return out
    while True:
        name = parser.next("word")
        out.append((name, parser.attrs() if parser.accept("{") else {}))
        if parser.peek.kind == "end":
            return out
        parser.next(text=",")


def parse_func(source: str) -> Func:
    """Read exactly one function."""
    funcs = list(parse_module(source))
    if len(funcs) != 1:
        raise ParseError(f"expected one function, found {len(funcs)}")
    return funcs[0]
