"""Which tokens may come out: the few that matter are found without sorting the others."""

import numpy as np
import numpy.typing as npt

from inferc.runtime.request import SamplingParams

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
_BLOCKS_PER_COUNT = 2
_BLOCK = 64
_FIRST_CANDIDATES = 64


def candidates(row: npt.NDArray[np.float32], count: int, temperature: float) -> Ids | None:
    """Ids, ascending, of the `count` largest logits and of all that may come out equal to these.

    Two logits come out equal if their difference, over the temperature, is lost in the rounding of
    float64. None where nearly all would have to be looked at.
    """
    bound = _bound(row, count)
    if bound is None:
        return None
    peak = float(row.max())
    if np.isfinite(bound) and np.isfinite(peak):
        bound -= 1e-12 * (peak - bound + temperature)
    return np.flatnonzero(row >= np.nextafter(np.float32(bound), np.float32(-np.inf)))


def kept_ids(weights: Floats, params: SamplingParams) -> Ids | None:
    """Ids (ascending) that top-k, top-p and min-p leave; None means all.

    `weights` are probabilities without their normaliser, the largest being 1.
    """
    if params.top_k is None and params.top_p == 1 and params.min_p == 0:
        return None
    ids: Ids | None = None
    if params.top_k is not None and params.top_k < len(weights):
        ids = np.sort(largest(weights, params.top_k))
    if params.top_p < 1:
        ids = _nucleus(weights, ids, params.top_p)
    if params.min_p > 0:
        ids = np.arange(len(weights)) if ids is None else ids
        ids = ids[weights[ids] >= params.min_p]
    return ids


def _nucleus(weights: Floats, ids: Ids | None, top_p: float) -> Ids:
    """The fewest most likely ids whose probabilities (among `ids`) reach `top_p`.

    Usually a few dozen ids hold that mass, so the most likely are sorted first, then ever more.
    """
    among = weights if ids is None else weights[ids]
    goal = top_p * among.sum()
    count = min(_FIRST_CANDIDATES, len(among))
    while True:
        order = largest(among, count)
        cumulative = np.cumsum(among[order])
        if cumulative[-1] >= goal or count == len(among):
            break
        count = min(8 * count, len(among))
    needed = min(int(np.searchsorted(cumulative, goal, side="left")) + 1, count)
    chosen = order[:needed]
    return np.sort(chosen if ids is None else ids[chosen])


def largest(values: Floats, count: int) -> Ids:
    """Indices of the `count` largest, descending; of equal values the lowest indices."""
    bound = _bound(values, count)
    found = np.arange(len(values)) if bound is None else np.flatnonzero(values >= bound)
    return found[np.argsort(-values[found], kind="stable")][:count]


def _bound(values: npt.NDArray[np.floating], count: int) -> float | None:
    """A value that at least `count` reach, so that the `count` largest do.

    Blocks of every n-th value have a largest one each, and as many values as blocks reach the
    smallest of the `count` largest of these. None if there are too few blocks for that.
    """
    blocks = len(values) // _BLOCK
    if count < 1 or count * _BLOCKS_PER_COUNT > blocks:
        return None
    peaks = values[: blocks * _BLOCK].reshape(_BLOCK, blocks).max(axis=0)
    return float(np.partition(peaks, blocks - count)[blocks - count])
