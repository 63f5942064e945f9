"""Aligned memory: weights mapped from the file, and zeroed pages that become resident on use."""

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inferc.errors import ArtifactError, InfercError
from inferc.runtime.artifact import WEIGHT_ALIGNMENT_BYTES, PackedTensor

Bytes = npt.NDArray[np.uint8]


def allocate(nbytes: int, what: str) -> Bytes:
    """Zeroed memory at the start of a page; `what` is named when there is not enough."""
    try:
        return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)
    except (OSError, ValueError, OverflowError) as error:
        raise InfercError(f"{nbytes} bytes for {what} cannot be allocated ({error}).") from error


def map_weights(path: Path, tensors: tuple[PackedTensor, ...]) -> tuple[Bytes, ...]:
    """Each packed tensor as a view of the mapped file, checked for bounds and alignment."""
    if not tensors:
        return ()
    try:
        with path.open("rb") as stream:
            mapped = np.frombuffer(mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
    except FileNotFoundError:
        raise ArtifactError(f"{path}: the artifact lists this file, but it is missing.") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: the weights cannot be mapped ({error}).") from error
    return tuple(_view(mapped, tensor, path) for tensor in tensors)


def _view(mapped: Bytes, tensor: PackedTensor, path: Path) -> Bytes:
    end = tensor.offset_bytes + tensor.nbytes
    if not 0 <= tensor.offset_bytes <= end <= len(mapped):
        raise ArtifactError(
            f"{path}: '{tensor.name}' is expected at bytes {tensor.offset_bytes} to {end}, but the"
            f" file has {len(mapped)}; it is truncated. Copy the artifact anew."
        )
    view = mapped[tensor.offset_bytes : end]
    if view.ctypes.data % WEIGHT_ALIGNMENT_BYTES:
        raise ArtifactError(
            f"{path}: '{tensor.name}' begins at byte {tensor.offset_bytes}, which is not a multiple"
            f" of {WEIGHT_ALIGNMENT_BYTES}; compile the model again."
        )
    return view
