"""`quantization_config` of config.json: read strictly, refused by name where it is not known.

A field that nobody looks at may change what the stored numbers mean. So each method lists the
fields that it knows, those without influence included, and every other one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.quantised_tensor import QuantisedTensor
from inferc.frontend.weights import StoredTensor, listed


def an_object(value: object, where: str, name: str) -> Mapping[str, Any]:
    """A field of config.json that must be an object. Raises CompileError."""
    if not isinstance(value, Mapping):
        raise CompileError(
            f"{where}: {name} should be a JSON object, found {value!r}. Get the file again."
        )
    return value


@dataclass(frozen=True)
class Settings:
    """The fields of `quantization_config`, and the file that they are in."""

    fields: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, fields: object, where: str) -> Settings:
        """Settings out of what config.json has there. Raises CompileError."""
        return cls(an_object(fields, where, "quantization_config"), where)

    @property
    def method(self) -> str:
        """`quant_method`; empty if there is none."""
        return str(self.fields.get("quant_method") or "")

    def refused(self, name: str, expected: str, advice: str) -> CompileError:
        """The error for a field with a value that is not supported."""
        return CompileError(
            f"{self.where}: quantization_config.{name} is {self.fields.get(name)!r}; expected "
            f"{expected}. {advice}"
        )

    def only(self, known: Iterable[str]) -> None:
        """Refuse fields of other names that are set."""
        names = {"quant_method", *known}
        unknown = [f"{k} = {v!r}" for k, v in self.fields.items() if k not in names and v]
        if unknown:
            raise CompileError(
                f"{self.where}: quantization_config has fields that are not known for "
                f"{self.method}: {', '.join(unknown)}. If they do not change what the stored "
                "numbers mean, remove them; otherwise compile another quantisation of the model."
            )

    def choice(self, name: str, allowed: tuple[Any, ...], advice: str, default: Any = None) -> Any:
        """A field that must have one of some values; absent or null is the default."""
        value = self.fields.get(name)
        value = default if value is None else value
        if value not in allowed:
            raise self.refused(name, " or ".join(map(repr, allowed)), advice)
        return value

    def absent(self, names: Iterable[str], advice: str) -> None:
        """Refuse fields that must not be set."""
        for name in names:
            if self.fields.get(name):
                raise self.refused(name, "nothing", advice)

    def object(self, name: str) -> Mapping[str, Any]:
        """A field that is an object, or nothing. Raises CompileError."""
        return an_object(self.fields.get(name) or {}, self.where, f"quantization_config.{name}")

    def names(self, name: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Module names and `re:` patterns of a field. Raises CompileError for what is neither."""
        given = fields.get(name) or []
        try:
            if not isinstance(given, list):
                raise TypeError("no list")
            for pattern in given:
                re.compile(pattern[3:] if pattern.startswith("re:") else "")
        except (AttributeError, TypeError, re.error) as error:
            raise CompileError(
                f"{self.where}: quantization_config: {name} is {given!r}; expected a list of "
                f"module names and patterns after re: ({error}). Correct it."
            ) from error
        return tuple(given)


@dataclass(frozen=True)
class Pieces:
    """The stored tensors of one module, by what follows its name."""

    module: str
    tensors: Mapping[str, StoredTensor]

    def __contains__(self, suffix: object) -> bool:
        return suffix in self.tensors

    def get(self, suffix: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> StoredTensor:
        """A piece of an expected type and shape. Raises CompileError."""
        tensor = self.tensor(suffix, dtypes)
        if tensor.shape != shape:
            raise CompileError(
                f"{tensor.name}: expected shape {list(shape)} by quantization_config and the other "
                f"tensors of {self.module}, found {list(tensor.shape)}."
            )
        return tensor

    def tensor(self, suffix: str, dtypes: tuple[str, ...]) -> StoredTensor:
        """A piece of an expected type. Raises CompileError."""
        tensor = self.tensors.get(suffix)
        if tensor is None:
            raise CompileError(
                f"{self.module} is quantised, but {self.module}.{suffix} is not in the weights; "
                f"found {listed(sorted(t.name for t in self.tensors.values()))}. The checkpoint "
                "is incomplete: get it again."
            )
        if tensor.dtype not in dtypes:
            raise CompileError(
                f"{tensor.name}: expected type {' or '.join(dtypes)}, found {tensor.dtype}."
            )
        return tensor

    def matrix(self, suffix: str, dtypes: tuple[str, ...]) -> StoredTensor:
        """A piece with two axes. Raises CompileError."""
        tensor = self.tensor(suffix, dtypes)
        if len(tensor.shape) != 2:
            raise CompileError(f"{tensor.name}: expected two axes, found {list(tensor.shape)}.")
        return tensor

    def some(self, *suffixes: str) -> list[StoredTensor]:
        """Those of the pieces that are there."""
        return [self.tensors[s] for s in suffixes if s in self.tensors]


Orders = Callable[[str, Any], ComputedTensor]
"""Gives the tensor of an order of columns; equal orders are one tensor."""


@dataclass(frozen=True)
class Method:
    """How one quantisation method stores weights.

    Attributes:
        suffixes: What follows a module's name in the names of its pieces.
        quantised: Whether pieces are those of a quantised module.
        weight: The weight that the pieces make, under the name it has unquantised.
        ignored: Regular expressions of stored tensors that do not matter for weights.
        separator: What stands between a module's name and a suffix.
        zero_biases: Whether modules without a bias are stored with one of zeros.
        notes: What the user should know.
    """

    suffixes: tuple[str, ...]
    quantised: Callable[[Pieces], bool]
    weight: Callable[[Pieces, Orders], QuantisedTensor]
    ignored: tuple[str, ...] = ()
    separator: str = "."
    zero_biases: bool = False
    notes: tuple[str, ...] = ()
