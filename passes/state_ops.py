"""Let recurrent ops continue from the state that earlier tokens of their sequence left.

```
%y = nn.ssd_scan(%x, .., %a)   ->   %y, %state = serve.ssd_scan(%state_0, %x, .., %positions,
                                                 %sequence_starts, %state_slots, %a)
```

One state per op: it depends on the op's weights. States are arguments and results of the function.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Func, Module, Op
from inferc.ir.ops.recurrent import WHOLE, Recurrence
from inferc.ir.rewrite import Rewriter
from inferc.ir.types import StateType
from inferc.passes.base import Pass, PassContext
from inferc.passes.rebuild import step_funcs
from inferc.passes.step_arguments import step_argument
from inferc.passes.unbatch import replace_by_rows, unbatched

_STEP = ("positions", "sequence_starts", "state_slots")


@dataclass(frozen=True)
class StateOps(Pass):
    """nn recurrent ops become those of the serve stage; states become arguments."""

    name = "state-ops"
    requires = frozenset({"flat"})
    ensures = frozenset({"states"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite all recurrent ops of the step functions."""
        for func in step_funcs(module):
            ops = [op for op in func.ops if op.name in WHOLE]
            if not ops:
                continue
            rewriter = context.rewriter(func)
            rewriter.spend()  # all or nothing: the states become arguments and results
            states = []
            for number, op in enumerate(ops):
                states.append(_serve(func, rewriter, op, f"state_{number}"))
                context.hit("state-ops", func)
            rewriter.set_results(*func.results, *(op.results[1] for op in states))


def _serve(func: Func, rewriter: Rewriter, op: Op, name: str) -> Op:
    core = WHOLE[op.name]
    count = len(core.rows)
    rows = [unbatched(rewriter, op, v) for v in op.operands[:count]]
    step = [step_argument(func, argument) for argument in _STEP]
    state = func.add_arg(name, _state_type(core, op))
    made = rewriter.insert(
        f"serve.{core.name}", state, *rows, *step, *op.operands[count:], before=op, of=op.loc,
        hint=(op.result.hint, "state"), **op.attrs,
    )  # fmt: skip
    replace_by_rows(rewriter, op, made.results[0])
    return made


def _state_type(core: Recurrence, op: Op) -> StateType:
    return core.state_type(core.bind(op.name, [v.type for v in op.operands], ("B", "S")))
