"""A quantised checkpoint as a store of weights: what belongs to one weight becomes one tensor.

The rest of the compiler sees the names, shapes and parameters of the unquantised model; tensors
that are not quantised stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.quantised_bnb import bitsandbytes
from inferc.frontend.quantised_compressed import compressed_tensors
from inferc.frontend.quantised_config import Method, Pieces, Settings
from inferc.frontend.quantised_fp8 import fp8, mxfp4
from inferc.frontend.quantised_gptq import awq, gptq
from inferc.frontend.weights import StoredTensor, WeightStore, listed

METHODS: dict[str, Callable[[Settings], Method]] = {
    "gptq": gptq,
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "bitsandbytes": bitsandbytes,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "mxfp4": mxfp4,
}


@dataclass(frozen=True)
class QuantisedWeights:
    """Stored weights after `gathered`.

    Attributes:
        store: One tensor a weight.
        ignored: Regular expressions of tensors that no parameter needs.
        notes: What the user should know.
    """

    store: WeightStore
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The config of the unquantised model, and what it said of quantisation."""
    names = ("quantization_config", "compression_config")
    found = [config[name] for name in names if config.get(name)]
    return {k: v for k, v in config.items() if k not in names}, found[0] if found else None


def gathered(store: WeightStore, fields: Mapping[str, Any] | None, where: str) -> QuantisedWeights:
    """The weights with quantised ones put together. Raises CompileError."""
    if fields is None:
        return QuantisedWeights(store)
    settings = Settings.of(fields, where)
    if settings.method not in METHODS:
        raise CompileError(
            f"{where} says that the weights are quantised by {settings.method or 'nothing known'}; "
            f"supported: {', '.join(METHODS)}. Compile another quantisation of the model, or a "
            "GGUF file."
        )
    return _Gathering(store, METHODS[settings.method](settings)).run()


@dataclass
class _Gathering:
    store: WeightStore
    method: Method
    orders: dict[bytes, ComputedTensor] = field(default_factory=dict)

    def run(self) -> QuantisedWeights:
        tensors: dict[str, StoredTensor] = dict(self.store.tensors)
        ignored = list(self.method.ignored)
        for pieces in self._modules():
            if not self.method.quantised(pieces):
                continue
            made = self.method.weight(pieces, self._order)
            for piece in pieces.tensors.values():
                del tensors[piece.name]
            if made.name in tensors:
                raise CompileError(
                    f"{made.name} is stored twice: as it is, and quantised in "
                    f"{listed(sorted(t.name for t in pieces.tensors.values()))}. Which of them "
                    "is meant cannot be told: remove one."
                )
            tensors[made.name] = made
            bias = tensors.get(f"{pieces.module}.bias")
            if self.method.zero_biases and bias is not None and not bias.read_float32().any():
                ignored.append(f"^{re.escape(bias.name)}$")
        store = WeightStore(self.store.path, tensors)
        return QuantisedWeights(store, tuple(ignored), self.method.notes)

    def _modules(self) -> list[Pieces]:
        """Pieces by module, in the order of the store."""
        separator, found = self.method.separator, dict[str, dict[str, StoredTensor]]()
        for name, tensor in self.store.tensors.items():
            for suffix in self.method.suffixes:
                if name.endswith(separator + suffix):
                    module = name.removesuffix(separator + suffix)
                    found.setdefault(module, {})[suffix] = tensor
        return [Pieces(module, tensors) for module, tensors in found.items()]

    def _order(self, name: str, order: NDArray[np.int32]) -> ComputedTensor:
        """One tensor for all equal orders, so that they are looked up once."""
        key = order.tobytes()
        if key not in self.orders:
            self.orders[key] = ComputedTensor.of(
                f"{name}.order", "i32", order.shape, Path(name), order.nbytes, lambda: order
            )
        return self.orders[key]
