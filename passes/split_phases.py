"""Split the step into @prefill and @decode.

```
func @forward(%ids: i32[T], ..)   ->   func @prefill(%ids: i32[T], ..)   any ragged batch
                                       func @decode(%ids: i32[R], ..)    one token a sequence
```

The same graph twice: in @decode the number of rows IS the number of sequences, so that later passes
choose other kernels for it. The ranges of the symbols become the limits of the artifact, which are
the options of this pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module
from inferc.ir.dims import Symbol, sym
from inferc.passes.base import Pass, PassContext
from inferc.passes.rebuild import rebuild


@dataclass(frozen=True)
class SplitPhases(Pass):
    """@forward becomes @prefill and @decode.

    Attributes:
        step_tokens: most rows of one step.
        sequences: most sequences of one step.
        context_tokens: longest sequence; None is the most that the model was captured for.
    """

    name = "split-phases"
    requires = frozenset({"paged"})
    ensures = frozenset({"phases"})

    step_tokens: int = 512
    sequences: int = 64
    context_tokens: int | None = None

    def run(self, module: Module, context: PassContext) -> None:
        """Replace @forward by the two functions."""
        forward = module.funcs.get("forward")
        if forward is None:
            return
        context.rewriter(forward).spend()
        longest = self.context_tokens or forward.symbols["T"].high
        rows = Symbol("T", 1, self.step_tokens)
        sequences = Symbol("R", 1, min(self.sequences, self.step_tokens))
        pages = Symbol("P", 1, longest)  # plan-kv knows the page size and divides by it
        shared = {"R": sequences, "P": pages}
        prefill = {"T": rows, **shared}
        decode = dict(shared)
        if "L" in forward.symbols:
            prefill["L"] = Symbol("L", 1, rows.high)
            decode["L"] = Symbol("L", 1, sequences.high)
        del module.funcs["forward"]
        module.add(rebuild(forward, "prefill", prefill))
        module.add(rebuild(forward, "decode", decode, sizes={"T": sym("R")}))
        context.hit("split-phases")
