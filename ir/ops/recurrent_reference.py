"""Recurrent cores in numpy, for one sequence: token after token, from a state to the next."""

from __future__ import annotations

import numpy as np

from inferc.ir.ops.elementwise import silu

State = np.ndarray | None  # None: zeros
CONV_ACTIVATIONS = {"none": lambda x: x, "silu": silu}


def causal_conv1d(
    state: State, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, activation: str
) -> tuple[np.ndarray, np.ndarray]:
    """Of x [S, C], w [K, C]; the state holds the last K - 1 inputs."""
    taps, length = w.shape[0], x.shape[0]
    before = np.zeros((taps - 1, x.shape[1]), x.dtype) if state is None else state
    inputs = np.concatenate([before, x])
    y = np.zeros_like(x)
    for k in range(taps):
        y += inputs[k : k + length] * w[k].astype(x.dtype)
    if b is not None:
        y += b.astype(x.dtype)
    return CONV_ACTIVATIONS[activation](y), inputs[length:]


def selective_scan(
    state: State, x: np.ndarray, dt: np.ndarray, b: np.ndarray, c: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of x and dt [S, C], b and c [S, N], a [N, C]; state [N, C]."""
    h, y = np.zeros(a.shape, x.dtype) if state is None else state, np.zeros_like(x)
    for t in range(x.shape[0]):
        h = np.exp(dt[t] * a) * h + (dt[t] * x[t]) * b[t][:, None]
        y[t] = (h * c[t][:, None]).sum(0)
    return y, h


def ssd_scan(
    state: State, x: np.ndarray, dt: np.ndarray, b: np.ndarray, c: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of x [S, H, P], dt [S, H], b and c [S, G, N], a [H]; state [H, N, P]."""
    (_, heads, width), (_, groups, n) = x.shape, b.shape
    b, c = (np.repeat(each, heads // groups, axis=1) for each in (b, c))
    h = np.zeros((heads, n, width), x.dtype) if state is None else state
    y = np.zeros_like(x)
    for t in range(x.shape[0]):
        kept = np.exp(dt[t] * a)[:, None, None] * h
        h = kept + (dt[t][:, None] * x[t])[:, None, :] * b[t][:, :, None]
        y[t] = (h * c[t][:, :, None]).sum(1)
    return y, h


def gated_delta_rule(
    state: State, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of q and k [S, G, K], v [S, H, V], g [S, H, 1 or K], beta [S, H]; state [H, K, V]."""
    (_, heads, width), (_, groups, n) = v.shape, k.shape
    q, k = (np.repeat(each, heads // groups, axis=1) for each in (q, k))
    h = np.zeros((heads, n, width), v.dtype) if state is None else state
    y = np.zeros_like(v)
    for t in range(v.shape[0]):
        h = np.exp(g[t])[:, :, None] * h
        known = (h * k[t][:, :, None]).sum(1)
        h = h + k[t][:, :, None] * (beta[t][:, None] * (v[t] - known))[:, None, :]
        y[t] = (h * q[t][:, :, None]).sum(1)
    return y, h


def linear_scan(state: State, x: np.ndarray, gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of x and gate [S, C]; state [C]."""
    h, y = np.zeros(x.shape[1], x.dtype) if state is None else state, np.zeros_like(x)
    for t in range(x.shape[0]):
        h = gate[t] * h + x[t]
        y[t] = h
    return y, h
