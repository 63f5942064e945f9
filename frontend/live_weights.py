"""Parameters and buffers of a module as stored tensors: read when they are packed, never before."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def live_tensors(module: nn.Module, name: str) -> dict[str, ComputedTensor]:
    """Every parameter and float buffer under its names. Raises CompileError."""
    found = {}
    for path, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        if tensor.is_meta:
            raise CompileError(f"{path} of {name} is on the meta device: it has no values.")
        if tensor.dtype.is_floating_point:
            found[path] = _stored(path, tensor, name)
    return found


def _stored(path: str, tensor: torch.Tensor, name: str) -> ComputedTensor:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None and tensor.dtype != torch.float64:
        raise CompileError(
            f"{path} of {name} is {tensor.dtype}, which cannot be read as a weight; expected "
            "float32, bfloat16 or float16."
        )
    shape = tuple(tensor.shape)
    nbytes = tensor.numel() * (4 if dtype is None else tensor.element_size())
    return ComputedTensor.of(
        path, dtype or "f32", shape, Path(name), nbytes, lambda: _array(tensor)
    )


def _array(tensor: torch.Tensor) -> NDArray[np.generic]:
    tensor = tensor.detach().cpu().contiguous()
    is_bfloat16 = tensor.dtype == torch.bfloat16
    plain = tensor.view(torch.int16) if is_bfloat16 else tensor
    array: NDArray[np.generic] = (plain.float() if plain.dtype == torch.float64 else plain).numpy()
    return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array
