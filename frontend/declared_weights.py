"""Weights of a model that is only a config: names, shapes and types, without bytes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.tokens import GenerationDefaults, SpecialTokens, TokenizerFiles
from inferc.frontend.weight_transforms import Binding, Shape, identity_bindings
from inferc.frontend.weights import DENSE_DTYPES, WeightStore

QUANTIZATION = "quantization_config"
NO_TOKENIZER = TokenizerFiles(
    None, None, SpecialTokens((), None, None, False), GenerationDefaults(), 0
)
_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # torch's names
# Configs that do not say are of models published in bfloat16, as transformers itself assumes now.
_UNSAID = "bfloat16"


def declared_weights(
    file: Path, config: Mapping[str, Any], parameters: Mapping[str, Shape], dtype: str | None
) -> WeightStore:
    """A tensor for each parameter, of the type that the config declares, or of `dtype`."""
    chosen = dtype or _declared_dtype(file, config)
    if chosen not in DENSE_DTYPES:
        raise CompileError(
            f"Weights of type {chosen!r} cannot be planned; known: {', '.join(DENSE_DTYPES)}."
        )
    return WeightStore(file, {n: _tensor(file, n, chosen, s) for n, s in parameters.items()})


def declared_bindings(store: WeightStore) -> tuple[Binding, ...]:
    """Every parameter is its own tensor."""
    return identity_bindings({name: name for name in store.tensors})


def _declared_dtype(file: Path, config: Mapping[str, Any]) -> str:
    named = str(config.get("dtype") or config.get("torch_dtype") or _UNSAID).removeprefix("torch.")
    if named not in _DTYPES:
        raise CompileError(
            f"{file} says that weights are {named}; known: {', '.join(_DTYPES)}. Give their type "
            "as an option instead."
        )
    return _DTYPES[named]


def _tensor(file: Path, name: str, dtype: str, shape: Shape) -> ComputedTensor:
    nbytes = prod(shape) * DENSE_DTYPES[dtype].itemsize

    def no_bytes() -> NoReturn:
        raise CompileError(
            f"{file} declares the weight {name}, but there are no bytes of it: a model without "
            "weights can be planned, not compiled."
        )

    return ComputedTensor.of(name, dtype, shape, file, nbytes, no_bytes)
