"""Writes in place: made functional where nobody else can see the memory, left alone elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from inferc.frontend import capture_inplace
from inferc.frontend.capture_inplace import is_inplace, make_functional

Body = Callable[[Tensor], Tensor]


def of_a_result(x: Tensor) -> Tensor:
    weights, index = torch.topk(x, 3, dim=-1)
    weights /= weights.sum(-1, keepdim=True)
    return weights + index


def twice(x: Tensor) -> Tensor:
    y = x.exp()
    before = y.sigmoid()  # a copy: it does not see the writes
    y.mul_(2.0)
    between = y.sum(-1)
    y.add_(1.0)
    return before + y + between[..., None]


def parts(x: Tensor) -> Tensor:
    y = x.new_empty(x.shape)
    y[..., :2] = x[..., 2:4]
    y[..., 2:] = x[..., :-2] * 3
    return y


def rows_chosen(x: Tensor) -> Tensor:
    mask = torch.zeros_like(x)
    mask.scatter_(1, torch.topk(x, 2, dim=-1).indices, 1.0)
    return x.masked_fill(mask == 0, -1.0)


def broadcast_source(x: Tensor) -> Tensor:
    y = x.exp()
    y[..., :2] = x[..., :1]
    return y


def view_that_is_read_later(x: Tensor) -> Tensor:
    y = x.exp()
    turned = y.t()
    y.add_(1.0)
    return turned * 2


def view_written_to(x: Tensor) -> Tensor:
    y = x.exp()
    y.t().add_(1.0)
    return y


def slice_read_later(x: Tensor) -> Tensor:
    y = x.exp()
    part = y[..., :2]
    part.copy_(x[..., 2:4])
    return y.sum() + part


def other_slice_read_later(x: Tensor) -> Tensor:
    y = x.exp()
    other = y[..., :3]
    y[..., :2] = x[..., 2:4]
    return y.sum() + other


def argument(x: Tensor) -> Tensor:
    x.add_(1.0)
    return x * 2


def wider(x: Tensor) -> Tensor:
    y = x.exp()
    y.mul_(torch.ones(6, dtype=torch.float64) * 0.1)
    return y


class _Module(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def exported(body: Body) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=1, max=64)
    shapes = {"x": {0: rows}}
    return torch.export.export(_Module(body), (torch.rand(4, 6),), dynamic_shapes=shapes)


@pytest.mark.parametrize("body", [of_a_result, twice, parts, rows_chosen, broadcast_source])
def test_plain_writes_go_and_numbers_stay(body: Body) -> None:
    program = exported(body)
    assert any(is_inplace(node) for node in program.graph.nodes)
    assert make_functional(program)
    assert not any(is_inplace(node) for node in program.graph.nodes)
    for rows in (1, 4, 7):
        x = torch.rand(rows, 6)
        assert torch.equal(program.module()(x.clone()), body(x.clone()))


@pytest.mark.parametrize(
    "body",
    [
        view_that_is_read_later, view_written_to, slice_read_later, other_slice_read_later,
        argument, wider,
    ],
)  # fmt: skip
def test_what_others_may_see_is_left_alone(body: Body) -> None:
    program = exported(body)
    writes = [node.name for node in program.graph.nodes if is_inplace(node)]
    assert not make_functional(program)
    assert [node.name for node in program.graph.nodes if is_inplace(node)] == writes
    x = torch.rand(4, 6)
    assert torch.equal(program.run_decompositions({}).module()(x.clone()), body(x.clone()))


def test_the_view_check_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the result would be wrong: the check is not there for nothing."""
    monkeypatch.setattr(capture_inplace, "_unshared", lambda *_: True)
    program = exported(view_that_is_read_later)
    assert make_functional(program)
    x = torch.rand(4, 6)
    assert not torch.equal(program.module()(x), view_that_is_read_later(x))


# What each op of the list is called with, on `a` [4, 6] and indices `i` [4, 2].
CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, i: a.add(0), "sub": lambda a, i: a.sub(0), "mul": lambda a, i: a.mul(1),
    "div": lambda a, i: a.div(1), "neg": lambda a, i: a.neg(), "exp": lambda a, i: a.exp(),
    "rsqrt": lambda a, i: a.rsqrt(), "sigmoid": lambda a, i: a.sigmoid(),
    "softmax": lambda a, i: a[:, :1].softmax(-1), "relu": lambda a, i: a.relu(),
    "log_softmax": lambda a, i: a[:, :1].log_softmax(-1), "sum": lambda a, i: a[:, :1].sum(1),
    "mean": lambda a, i: a[:, :1].mean(1), "cumsum": lambda a, i: a[:, :1].cumsum(1),
    "topk": lambda a, i: a.topk(6)[0], "gather": lambda a, i: a.gather(1, i),
    "scatter": lambda a, i: a.scatter(1, i[:0], a[:0]),
    "scatter_add": lambda a, i: a.scatter_add(1, i[:0], a[:0]),
    "slice_scatter": lambda a, i: torch.slice_scatter(a, a[:0], 0, 0, 0),
    "masked_fill": lambda a, i: a.masked_fill(a != a, 0.0),
    "where": lambda a, i: torch.where(a == a, a, a), "clone": lambda a, i: a.clone(),
    "linear": lambda a, i: nn.functional.linear(a, torch.eye(6)),
    "matmul": lambda a, i: a @ torch.eye(6), "bmm": lambda a, i: torch.bmm(a[None], a.t()[None]),
    "embedding": lambda a, i: nn.functional.embedding(torch.arange(4), a),
    "new_empty": lambda a, i: a.new_empty(4), "new_zeros": lambda a, i: a.new_zeros(4),
    "new_full": lambda a, i: a.new_full((4,), 1.0), "empty": lambda a, i: torch.empty(4),
    "empty_like": lambda a, i: torch.empty_like(a), "zeros": lambda a, i: torch.zeros(4),
    "zeros_like": lambda a, i: torch.zeros_like(a), "ones": lambda a, i: torch.ones(4),
    "ones_like": lambda a, i: torch.ones_like(a), "full": lambda a, i: torch.full((4,), 1.0),
    "full_like": lambda a, i: torch.full_like(a, 1.0), "arange": lambda a, i: torch.arange(4),
    "eq": lambda a, i: a.eq(a), "ne": lambda a, i: a.ne(a), "lt": lambda a, i: a.lt(a),
    "le": lambda a, i: a.le(a), "gt": lambda a, i: a.gt(a), "ge": lambda a, i: a.ge(a),
    "logical_and": lambda a, i: (a == a).logical_and(a == a),
    "logical_not": lambda a, i: (a == a).logical_not(),
    "one_hot": lambda a, i: nn.functional.one_hot(i, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(capture_inplace._OWN_MEMORY))
def test_results_have_memory_of_their_own(name: str) -> None:
    """Called where they would have nothing to do, the ops of the list still make a new tensor."""
    a, i = torch.rand(4, 6), torch.zeros(4, 2, dtype=torch.long)
    result = CALLS[name](a, i)
    memories = {t.untyped_storage().data_ptr() for t in (a, i)}
    assert result.untyped_storage().data_ptr() not in memories
