"""Compile a model of your own: any torch module that turns token ids into logits.

    python examples/custom_module.py

`Quill` is in no library. Its blocks run the MLP before attention and add both to a gated residual,
its norm multiplies by the exponential of its weight, and its rotary embedding turns neighbouring
pairs in half of each head. inferc knows none of these classes: it
exports the module, recognises what the operations mean, and serves it with a paged KV cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import inferc

VOCABULARY, WIDTH, HEADS, GROUPS, SIZE, LAYERS, CONTEXT = 512, 96, 6, 2, 16, 3, 256
WINDOW = 24  # every second layer sees this many tokens


class PenNorm(nn.Module):
    """x over its root mean square, times exp(weight)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        size = (x * x).mean(-1, keepdim=True).add(1e-5).sqrt()
        return x / size * self.log_weight.exp()


def turn(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate pairs (2i, 2i + 1) of the first half of each head of `[B, H, S, D]`."""
    moving, still = x.chunk(2, dim=-1)
    even, odd = moving[..., 0::2], moving[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return torch.cat((pairs.flatten(-2), still), dim=-1)


class Attention(nn.Module):
    """Grouped attention, spelled out, with a window on some layers."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.queries = nn.Linear(WIDTH, HEADS * SIZE)
        self.keys_values = nn.Linear(WIDTH, 2 * GROUPS * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.register_buffer("speeds", 1.0 / 5000 ** (torch.arange(SIZE // 4) / (SIZE // 4)))

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens."""
        batch, length, _ = x.shape
        place = torch.arange(length)
        angle = place[:, None].float() * self.speeds
        q = self.queries(x).view(batch, length, HEADS, SIZE).transpose(1, 2)
        k, v = self.keys_values(x).view(batch, length, 2, GROUPS, SIZE).unbind(2)
        q, k, v = turn(q, angle), turn(k.transpose(1, 2), angle), v.transpose(1, 2)
        k, v = (t.repeat_interleave(HEADS // GROUPS, dim=1) for t in (k, v))
        scores = q @ k.mT * SIZE**-0.5
        distance = place[:, None] - place[None, :]
        hidden = distance < 0
        if self.window is not None:
            hidden = hidden | (distance >= self.window)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """MLP first, then attention; both are added to a scaled residual."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.norm_mlp, self.norm_attention = PenNorm(WIDTH), PenNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.attention = Attention(window)
        self.keep = nn.Parameter(0.9 + 0.1 * torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        x = self.keep * x + self.narrow(F.relu(self.wide(self.norm_mlp(x))).square())
        return x + self.attention(self.norm_attention(x))


class Quill(nn.Module):
    """Token ids `[B, S]` to logits `[B, S, VOCABULARY]`; counts positions itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WINDOW if i % 2 else None) for i in range(LAYERS))
        self.norm = PenNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits by the transposed embedding, soft-capped."""
        x = self.tokens(ids) * WIDTH**0.5
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return 20 * torch.tanh(logits / 20)


def build() -> Quill:
    """A model with random weights, always the same."""
    torch.manual_seed(0)
    return Quill().eval().requires_grad_(False)


def main() -> None:
    """Compile, run, and compare with the module itself."""
    module = build()
    ids = torch.randint(0, VOCABULARY, (1, 100), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "quill.inferc"
        inferc.compile(module, artifact, example_ids=ids, context_tokens=CONTEXT)
        with inferc.load(artifact) as engine:
            ours = torch.from_numpy(engine.logits(ids[0].tolist()))
            answer = engine.generate(ids[0, :8].tolist(), inferc.SamplingParams(max_tokens=8))
    theirs = module(ids)[0]
    error = (ours - theirs).abs().max() / theirs.abs().max()
    print(f"largest error relative to the module: {error:.1e}")
    print(f"8 tokens continued by {list(answer[0].token_ids)}")


if __name__ == "__main__":
    main()
