"""Reads the text form written by `inferc.ir.text`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferc.ir.card import AttrValue, TypeMismatch, card
from inferc.ir.core import Eliminated, Func, Module, Op, Value
from inferc.ir.dims import Size, Symbol, parse_size
from inferc.ir.lexer import ParseError, Token, caret, tokens
from inferc.ir.location import DerivedLoc, FusedLoc, Location, ModuleLoc
from inferc.ir.types import CacheType, TensorType, Type

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


class _Parser:
    def __init__(self, source: str) -> None:
        self.source, self.tokens, self.i = source, tokens(source), 0

    # -- tokens
    @property
    def peek(self) -> Token:
        return self.tokens[self.i]

    def error(self, message: str, token: Token | None = None) -> ParseError:
        return ParseError(caret(self.source, (token or self.peek).start, message))

    def next(self, kind: str | None = None, text: str | None = None) -> str:
        token = self.peek
        if (kind and token.kind != kind) or (text and token.text != text):
            raise self.error(f"expected {text or kind}, found {token.text or 'end of text'!r}")
        self.i += 1
        return token.text

    def accept(self, text: str) -> bool:
        if self.peek.text == text and self.peek.kind != "string":
            self.i += 1
            return True
        return False

    # -- pieces
    def string(self) -> str:
        return re.sub(r"\\(.)", r"\1", self.next("string")[1:-1])

    def size(self, *ends: str) -> Size:
        start = self.i
        while self.peek.text not in ends and self.peek.kind in ("word", "number", "sign"):
            self.i += 1
        text = " ".join(t.text for t in self.tokens[start : self.i])
        try:
            return parse_size(text.replace(" -", " - ").replace("- ", "-"))
        except ValueError as error:
            raise self.error(str(error), self.tokens[start]) from None

    def type(self) -> Type:
        token = self.peek
        dtype = self.next("word")
        self.next(text="[")
        if dtype == "cache":
            return self.cache_type()
        shape: list[Size] = []
        while not self.accept("]"):
            shape.append(self.size(",", "]"))
            if not self.accept(",") and self.peek.text != "]":
                raise self.error("expected , or ]")
        try:
            return TensorType(tuple(shape), dtype)
        except ValueError as error:
            raise self.error(str(error), token) from None

    def cache_type(self) -> CacheType:
        sizes: list[int] = []
        for _ in range(3):
            sizes.append(self.integer())
            self.next(text=",")
        dtype = self.next("word")
        options: dict[str, int | None] = {"page": None, "window": None}
        while self.accept(","):
            if self.peek.text not in options:
                raise self.error(f"expected {' or '.join(options)}, found {self.peek.text!r}")
            key = self.next("word")
            self.next(text="=")
            options[key] = self.integer()
        self.next(text="]")
        kv_heads, k_dim, v_dim = sizes
        return CacheType(kv_heads, k_dim, v_dim, dtype, options["page"], options["window"])

    def integer(self) -> int:
        if "." in self.peek.text:
            raise self.error(f"expected a whole number, found {self.peek.text!r}")
        return int(self.next("number"))

    def types(self) -> list[Type]:
        out = [self.type()]
        while self.accept(","):
            out.append(self.type())
        return out

    def attr(self) -> AttrValue:
        if self.peek.kind == "string":
            return self.string()
        if self.accept("("):
            items: list[AttrValue] = []
            while not self.accept(")"):
                items.append(self.attr())
                if not self.accept(",") and self.peek.text != ")":
                    raise self.error("expected , or )")
            return tuple(items)
        words: dict[str, AttrValue] = {"true": True, "false": False, "none": None}
        words |= {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
        if self.peek.text in words:
            return words[self.next()]
        after = self.tokens[self.i + 1].text
        if self.peek.kind == "number" and after not in ("*", "+", "-"):
            text = self.next()
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        return self.size(",", ")", "}")

    def loc(self) -> Location:
        if self.peek.kind == "string":
            parts = [self.string()]
            while self.peek.text == "," and self.tokens[self.i + 1].kind == "string":
                self.next()
                parts.append(self.string())
            return ModuleLoc(*parts)
        if self.accept("["):
            locs = [self.loc()]
            while self.accept("|"):
                locs.append(self.loc())
            self.next(text="]")
            return FusedLoc(tuple(locs))
        name = self.next("word")
        self.next(text="(")
        inner = self.loc()
        self.next(text=")")
        return DerivedLoc(name, inner)

    def optional_loc(self) -> Location:
        if not self.accept("loc"):
            return ModuleLoc("<text>")
        self.next(text="(")
        loc = self.loc()
        self.next(text=")")
        return loc

    # -- functions
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

    def attrs(self) -> dict[str, AttrValue]:
        out: dict[str, AttrValue] = {}
        while not self.accept("}"):
            name = self.next("word")
            self.next(text="=")
            out[name] = self.attr()
            if not self.accept(",") and self.peek.text != "}":
                raise self.error("expected , or }")
        return out

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
