"""What both file formats give the importer, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inferc.frontend.capture_request import CaptureFacts
from inferc.frontend.weight_transforms import Binding
from inferc.frontend.weights import WeightStore


@dataclass(frozen=True)
class ModelSource:
    """A model on disk.

    Attributes:
        name: Short name for reports.
        config: As transformers spells it.
        store: The stored tensors.
        checkpoint_keys: Stored names that transformers has to map to parameters; empty where the
            format does that itself.
        frequency_divisors: Factors that divide the rotary frequencies; empty for none.
        bind: The binding of each parameter, strictly checked, given the facts of the capture.
        notes: What the user should know.
    """

    name: str
    config: Mapping[str, Any]
    store: WeightStore
    checkpoint_keys: tuple[str, ...]
    frequency_divisors: tuple[float, ...]
    bind: Callable[[CaptureFacts], dict[str, Binding]]
    notes: tuple[str, ...] = ()
