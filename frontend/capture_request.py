"""What goes into a capture and what comes out of it beside the IR: plain data, written as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CaptureRequest:
    """Everything a captured graph depends on.

    Attributes:
        config: The model's config.json, as a dict.
        context_tokens: Longest sequence to serve; None for the model's own limit.
        checkpoint_keys: Names of the stored tensors, to be mapped to parameter names.
        frequency_divisors: Factors that divide the rotary frequencies; empty for none.
    """

    config: Mapping[str, Any]
    context_tokens: int | None = None
    checkpoint_keys: tuple[str, ...] = ()
    frequency_divisors: tuple[float, ...] = ()

    def to_json(self) -> str:
        """Canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> CaptureRequest:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        return cls(
            data["config"],
            data["context_tokens"],
            tuple(data["checkpoint_keys"]),
            tuple(data["frequency_divisors"]),
        )


@dataclass(frozen=True)
class Made:
    """A parameter that is no stored tensor but made of some.

    Attributes:
        sources: Stored tensors, joined in this order.
        axis: Axis along which they are joined.
        stack: If not 0, the joined rows are cut into so many equal parts, a new first axis.
        rows: If given, the rows of the joined tensor that the parameter is.
    """

    sources: tuple[str, ...]
    axis: int = 0
    stack: int = 0
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class CaptureFacts:
    """What the binding of weights has to know.

    Attributes:
        architecture: Class name of the model, e.g. `LlamaForCausalLM`.
        context_tokens: Longest sequence, as asked for or as the model's own limit.
        hidden_size: Width of the residual stream.
        layers: Number of decoder layers.
        parameters: Shape of each parameter under its canonical name, used by the graph or not.
        aliases: Tied parameters: name to the canonical name that the graph uses.
        names: Checkpoint key to parameter name.
        made: Parameters that are made of several checkpoint tensors, or of part of one.
        ignored: Regular expressions of checkpoint keys that the model does not need.
    """

    architecture: str
    context_tokens: int
    hidden_size: int
    layers: int
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CaptureFacts:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        shapes = {name: tuple(shape) for name, shape in data["parameters"].items()}
        made = {name: _made(fields) for name, fields in data["made"].items()}
        ignored = tuple(data["ignored"])
        return cls(**data | {"parameters": shapes, "made": made, "ignored": ignored})


def _made(fields: dict[str, Any]) -> Made:
    rows = fields["rows"]
    return Made(
        tuple(fields["sources"]), fields["axis"], fields["stack"], tuple(rows) if rows else None
    )
