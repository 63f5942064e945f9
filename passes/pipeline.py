"""The pipeline, as a list to be read from top to bottom.

A phase ends at a stage: only its ops are left then (`inferc.ir.stages`). After the last phase here,
codegen chooses kernels (`select-kernels`), and `plan-memory` gives results their places.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.card import AttrValue
from inferc.passes.base import Pass
from inferc.passes.registry import make_pass


@dataclass(frozen=True)
class Phase:
    """Passes that lead to a stage."""

    name: str
    stage: str
    passes: tuple[str, ...]


PHASES = (
    Phase(
        "normalize",
        "tensor",
        (
            "raise-rows",
            "fold-constants",
            "cse",
            "raise-positions",
            "canonicalize",
            "cse",
            "dce",
        ),
    ),
    Phase(
        "raise",
        "nn",
        (
            "raise-norm",
            "raise-rope",
            "raise-sdpa",
            "raise-attention",
            "split-projections",
            "raise-gated-mlp",
            "fold-constants",  # frequencies that are turned the other way
            "canonicalize",  # a raised op leaves views that now meet
            "cse",  # one rope table for all layers
            "dce",
        ),
    ),
    Phase(
        "serve",
        "serve",
        (
            "flatten-tokens",
            "latent-attention",
            "page-attention",
            "state-ops",
            "last-token-logits",
            "split-phases",
        ),
    ),
    Phase(
        "fuse",
        "fused",
        (
            "merge-projections",
            "hoist-weights",
            "fuse-rope-kv-append",
            "fuse-latent",
            "fuse-routing",
            "fuse-activation",
            "fuse-epilogue",
            "fuse-norm-residual",
            "fuse-elementwise",
        ),
    ),
    Phase("plan", "fused", ("plan-kv",)),
)


@dataclass(frozen=True)
class PipelineOptions:
    """Limits of the artifact; the passes named in the comments get them.

    Attributes:
        step_tokens: most rows of one step (split-phases).
        sequences: most sequences of one step (split-phases).
        context_tokens: longest sequence; None is the model's own limit (split-phases).
        page_tokens: tokens of a KV page (plan-kv).
        kv_dtype: type of stored keys and values (plan-kv).
    """

    step_tokens: int = 512
    sequences: int = 64
    context_tokens: int | None = None
    page_tokens: int = 32
    kv_dtype: str = "f32"

    def of_pass(self, name: str) -> dict[str, AttrValue]:
        """Options of one pass."""
        options: dict[str, dict[str, AttrValue]] = {
            "split-phases": {
                "step_tokens": self.step_tokens,
                "sequences": self.sequences,
                "context_tokens": self.context_tokens,
            },
            "plan-kv": {"page_tokens": self.page_tokens, "dtype": self.kv_dtype},
        }
        return options.get(name, {})


def pipeline(options: PipelineOptions | None = None) -> tuple[Pass, ...]:
    """All passes up to the choice of kernels."""
    chosen = options or PipelineOptions()
    return tuple(make_pass(name, chosen.of_pass(name)) for phase in PHASES for name in phase.passes)


def phase_ends() -> dict[int, Phase]:
    """The phase that ends with the pass of an index."""
    ends: dict[int, Phase] = {}
    count = 0
    for phase in PHASES:
        count += len(phase.passes)
        ends[count - 1] = phase
    return ends
