"""Weights of a model that is only a config: names, shapes and types, without bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from inferc.errors import CompileError
from inferc.frontend.capture import Captured
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.declared_quantised import Declared, all_quantised, declared_types
from inferc.frontend.tokens import GenerationDefaults, SpecialTokens, TokenizerFiles
from inferc.frontend.weight_transforms import Binding, Shape, Transpose
from inferc.frontend.weights import DENSE_DTYPES, WeightStore
from inferc.ir.blocks import FORMATS, block_format

NO_TOKENIZER = TokenizerFiles(
    None, None, SpecialTokens((), None, None, False), GenerationDefaults(), 0
)
_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # torch's names
# Configs that do not say are of models published in bfloat16, as transformers itself assumes now.
_UNSAID = "bfloat16"


@dataclass(frozen=True)
class DeclaredWeights:
    """A tensor for each parameter, and the binding of each."""

    store: WeightStore
    bindings: tuple[Binding, ...]


def declared_weights(
    file: Path, captured: Captured, dtype: str, quantisation: Mapping[str, Any] | None
) -> DeclaredWeights:
    """Tensors of type `dtype`, but for those that the config says are quantised.

    A block format is the type of linear layers and experts; the other weights are then bf16.
    """
    forward = captured.module.funcs["forward"]
    quantised: dict[str, Declared] = {}
    if dtype in FORMATS:
        quantised, dtype = all_quantised(dtype, forward), "bf16"
    elif dtype not in DENSE_DTYPES:
        raise CompileError(
            f"Weights of type {dtype!r} cannot be planned; known: {', '.join(DENSE_DTYPES)}, and"
            f" for linear layers and experts {', '.join(FORMATS)}."
        )
    elif quantisation:
        quantised = declared_types(quantisation, str(file), forward)
    tensors, bindings = {}, []
    for name, shape in captured.facts.parameters.items():
        type_ = quantised.get(name, Declared(dtype))
        if type_.transposed:
            shape = Transpose().shape(shape)
        tensors[name] = _tensor(file, name, type_.dtype, shape)
        bindings.append(Binding(name, (name,), (Transpose(),) if type_.transposed else ()))
    return DeclaredWeights(WeightStore(file, tensors), tuple(bindings))


def declared_dtype(file: Path, config: Mapping[str, Any]) -> str:
    """The type that a config gives its weights. Raises CompileError."""
    named = str(config.get("dtype") or config.get("torch_dtype") or _UNSAID).removeprefix("torch.")
    if named not in _DTYPES:
        raise CompileError(
            f"{file} says that weights are {named}; known: {', '.join(_DTYPES)}. Give their type "
            "as an option instead."
        )
    return _DTYPES[named]


def _tensor(file: Path, name: str, dtype: str, shape: Shape) -> ComputedTensor:
    def no_bytes() -> NoReturn:
        raise CompileError(
            f"{file} declares the weight {name}, but there are no bytes of it: a model without "
            "weights can be planned, not compiled."
        )

    return ComputedTensor.of(name, dtype, shape, file, _nbytes(file, name, dtype, shape), no_bytes)


def _nbytes(file: Path, name: str, dtype: str, shape: Shape) -> int:
    if dtype in DENSE_DTYPES:
        return prod(shape) * DENSE_DTYPES[dtype].itemsize
    try:
        return prod(shape[:-1]) * block_format(dtype).row_bytes(shape[-1])
    except ValueError as error:
        raise CompileError(f"{file}: {name} {list(shape)} cannot be {dtype}: {error}.") from error
