"""Reference functions of cards against torch, which we did not write."""

from __future__ import annotations

import numpy as np
import pytest

from inferc.ir.card import card
from inferc.ir.ops.attention import causal_mask

torch = pytest.importorskip("torch")
F = torch.nn.functional
RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 7, 8))


def close(found: np.ndarray, expected: object) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "attrs", "function"),
    [
        ("core.silu", {}, F.silu),
        ("core.gelu", {}, F.gelu),
        ("core.gelu", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
        ("core.sigmoid", {}, torch.sigmoid),
        ("core.erf", {}, torch.erf),
        ("core.relu", {}, torch.relu),
        ("core.softmax", {"axis": -1}, lambda x: torch.softmax(x, -1)),
        ("core.mean", {"axes": (1,), "keepdim": False}, lambda x: x.mean(1)),
        ("nn.rms_norm", {"eps": 1e-3}, lambda x: F.rms_norm(x, (8,), eps=1e-3)),
        ("nn.layer_norm", {"eps": 1e-3}, lambda x: F.layer_norm(x, (8,), eps=1e-3)),
    ],
)
def test_one_operand(name: str, attrs: dict[str, object], function: object) -> None:
    for x in (X, X * 30):  # far out, where a naive sigmoid overflows
        close(card(name).reference(x, **attrs), function(torch.from_numpy(x)))  # type: ignore[operator]


def test_linear() -> None:
    w, b = RNG.standard_normal((5, 8)), RNG.standard_normal(5)
    expected = F.linear(*(torch.from_numpy(a) for a in (X, w, b)))
    close(card("core.linear").reference(X, w, b), expected)


@pytest.mark.parametrize("window", [None, 3])
def test_attention(window: int | None) -> None:
    q, k, v = (RNG.standard_normal((2, 7, h, d)) for h, d in ((6, 8), (2, 8), (2, 4)))
    found = card("nn.attention").reference(
        q, k, v, scale=0.3, causal=True, window=window, softcap=None
    )
    mask = torch.from_numpy(causal_mask(np.arange(7), np.arange(7), window, None))
    sides = (torch.from_numpy(a).transpose(1, 2) for a in (q, k, v))
    expected = F.scaled_dot_product_attention(*sides, attn_mask=mask, scale=0.3, enable_gqa=True)
    close(found, expected.transpose(1, 2))


def test_softcap_is_applied_before_the_mask() -> None:
    q, k, v = (RNG.standard_normal((1, 5, 1, 4)) * 4 for _ in range(3))
    found = card("nn.attention").reference(
        q, k, v, scale=1.0, causal=True, window=None, softcap=2.0
    )
    scores = torch.from_numpy(np.einsum("bqhd,bkhd->bhqk", q, k))
    scores = torch.tanh(scores / 2.0) * 2.0
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), torch.from_numpy(v))
    close(found, expected)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_rotates_pairs_as_complex_numbers(pairing: str) -> None:
    x, angle = RNG.standard_normal((7, 3, 8)), RNG.standard_normal((7, 2))
    found = card("nn.rope").reference(x, np.cos(angle), np.sin(angle), pairing=pairing)
    first, second = (
        (slice(0, 2), slice(2, 4)) if pairing == "half" else (slice(0, 4, 2), slice(1, 4, 2))
    )
    turned = torch.complex(*(torch.from_numpy(x[..., s].copy()) for s in (first, second)))
    turned = turned * torch.polar(
        torch.ones(7, 1, 2, dtype=torch.float64), torch.from_numpy(angle)[:, None]
    )
    close(found[..., first], turned.real)
    close(found[..., second], turned.imag)
    close(found[..., 4:], x[..., 4:])


def test_paged_attention_is_attention_of_whole_sequences() -> None:
    """Two sequences of 6 and 3 tokens over scattered pages, the last 2 and 3 tokens new."""
    q, k, v = (RNG.standard_normal((2, 6, h, 4)) for h in (4, 2, 2))
    whole = card("nn.attention").reference(q, k, v, scale=0.5, causal=True, window=4, softcap=None)
    tables = np.array([[3, 0, 2], [4, 1, 1]])
    pools = np.full((5, 2, 4, 2), np.nan), np.full((5, 2, 2, 4), np.nan)
    for row, length in ((0, 6), (1, 3)):
        slots = tables[row][np.arange(length) // 2] * 2 + np.arange(length) % 2
        pools = card("serve.kv_append").reference(pools, k[row, :length], v[row, :length], slots)
    found = card("serve.paged_attention").reference(
        np.concatenate([q[0, 4:6], q[1, :3]]), pools, np.array([4, 5, 0, 1, 2]),
        np.array([0, 2, 5]), np.array([6, 3]), tables, scale=0.5, window=4, softcap=None,
    )  # fmt: skip
    close(found, np.concatenate([whole[0, 4:6], whole[1, :3]]))
