"""Reads the pieces of the text form: sizes, types, attribute values, locations."""

from __future__ import annotations

import re

from inferc.ir.card import AttrValue
from inferc.ir.dims import Size, parse_size
from inferc.ir.lexer import ParseError, Token, caret, tokens
from inferc.ir.location import DerivedLoc, FusedLoc, Location, ModuleLoc
from inferc.ir.types import CacheType, StateType, TensorType, Type


class Reader:
    """A position in the tokens of a text, and readers of the small pieces."""

    def __init__(self, source: str) -> None:
        self.source, self.tokens, self.i = source, tokens(source), 0

    # -- tokens
    @property
    def peek(self) -> Token:
        """The next token."""
        return self.tokens[self.i]

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """An error at a token, by default the next one."""
        return ParseError(caret(self.source, (token or self.peek).start, message))

    def next(self, kind: str | None = None, text: str | None = None) -> str:
        """Read a token of a kind, or a certain one."""
        token = self.peek
        if (kind and token.kind != kind) or (text and token.text != text):
            raise self.error(f"expected {text or kind}, found {token.text or 'end of text'!r}")
        self.i += 1
        return token.text

    def accept(self, text: str) -> bool:
        """Read a token if it is this one."""
        if self.peek.text == text and self.peek.kind != "string":
            self.i += 1
            return True
        return False

    # -- pieces
    def string(self) -> str:
        """Read a string, without quotes and escapes."""
        return re.sub(r"\\(.)", r"\1", self.next("string")[1:-1])

    def size(self, *ends: str) -> Size:
        """Read a size up to one of the tokens `ends`."""
        start = self.i
        while self.peek.text not in ends and self.peek.kind in ("word", "number", "sign"):
            self.i += 1
        text = " ".join(t.text for t in self.tokens[start : self.i])
        try:
            return parse_size(text.replace(" -", " - ").replace("- ", "-"))
        except ValueError as error:
            raise self.error(str(error), self.tokens[start]) from None

    def type(self) -> Type:
        """Read a type."""
        token = self.peek
        dtype = self.next("word")
        self.next(text="[")
        if dtype == "cache":
            return self.cache_type()
        if dtype == "state":
            return self.state_type()
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
        """Read what follows `cache[`."""
        token, sizes = self.peek, list[int]()
        for _ in range(3):
            sizes.append(self.integer())
            self.next(text=",")
        dtype, v_in_k = self.next("word"), False
        options: dict[str, int | None] = {"page": None, "window": None}
        while self.accept(","):
            if self.peek.text == "v_in_k":
                v_in_k = bool(self.next("word"))
                continue
            if self.peek.text not in options:
                expected = " or ".join([*options, "v_in_k"])
                raise self.error(f"expected {expected}, found {self.peek.text!r}")
            key = self.next("word")
            self.next(text="=")
            options[key] = self.integer()
        self.next(text="]")
        kv_heads, k_dim, v_dim = sizes
        try:
            return CacheType(
                kv_heads, k_dim, v_dim, dtype, options["page"], options["window"], v_in_k
            )
        except ValueError as error:
            raise self.error(str(error), token) from None

    def state_type(self) -> StateType:
        """Read what follows `state[`."""
        sizes: list[int] = []
        while self.peek.kind == "number":
            sizes.append(self.integer())
            self.next(text=",")
        dtype = self.next("word")
        self.next(text="]")
        return StateType(tuple(sizes), dtype)

    def integer(self) -> int:
        """Read a whole number."""
        if "." in self.peek.text:
            raise self.error(f"expected a whole number, found {self.peek.text!r}")
        return int(self.next("number"))

    def types(self) -> list[Type]:
        """Read types, separated by commas."""
        out = [self.type()]
        while self.accept(","):
            out.append(self.type())
        return out

    def attr(self) -> AttrValue:
        """Read a value of an attribute."""
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
        """Read a location."""
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
        """Read `loc(..)`; a location that says `<text>` if there is none."""
        if not self.accept("loc"):
            return ModuleLoc("<text>")
        self.next(text="(")
        loc = self.loc()
        self.next(text=")")
        return loc

    def attrs(self) -> dict[str, AttrValue]:
        """Read attributes up to the closing brace."""
        out: dict[str, AttrValue] = {}
        while not self.accept("}"):
            name = self.next("word")
            self.next(text="=")
            out[name] = self.attr()
            if not self.accept(",") and self.peek.text != "}":
                raise self.error("expected , or }")
        return out
