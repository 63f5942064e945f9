"""How far logits are from reference logits: one definition for `verify` and the tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating]
_BLOCK_VALUES = 1 << 22  # rows are compared in blocks, so that float64 copies stay small


@dataclass(frozen=True)
class Distance:
    """Distances between the rows (positions) of two `[rows, vocab]` arrays.

    Attributes:
        rows: Number of rows.
        relative_error_max: Largest ‖ours - reference‖ / ‖reference‖ of a row.
        relative_error_mean: Mean of the same.
        kl_max: Largest KL(reference ‖ ours) of a row, in nats.
        kl_mean: Mean of the same.
        top1_agreement: Share of rows with the same most likely token.
        finite: Whether all of our logits are finite.
    """

    rows: int
    relative_error_max: float
    relative_error_mean: float
    kl_max: float
    kl_mean: float
    top1_agreement: float
    finite: bool


def distance(ours: Logits, reference: Logits) -> Distance:
    """Compare row by row, in float64."""
    if ours.shape != reference.shape or ours.ndim != 2:
        raise ValueError(f"logits of shape {ours.shape} against {reference.shape}")
    rows, vocab = ours.shape
    step = max(1, _BLOCK_VALUES // vocab)
    blocks = [
        _block(ours[i : i + step].astype(np.float64), reference[i : i + step].astype(np.float64))
        for i in range(0, rows, step)
    ]
    errors, divergences, agreements = (np.concatenate(part) for part in zip(*blocks, strict=True))
    return Distance(
        rows,
        float(errors.max()),
        float(errors.mean()),
        float(divergences.max()),
        float(divergences.mean()),
        float(agreements.mean()),
        bool(np.isfinite(errors).all()),
    )


def relative_error(ours: Logits, reference: Logits) -> float:
    """‖ours - reference‖ / ‖reference‖ of the worst row."""
    return distance(ours, reference).relative_error_max


def _block(ours: Logits, reference: Logits) -> tuple[Logits, Logits, npt.NDArray[np.bool_]]:
    errors = np.linalg.norm(ours - reference, axis=1) / np.linalg.norm(reference, axis=1)
    ours_log, reference_log = _log_softmax(ours), _log_softmax(reference)
    divergences = (np.exp(reference_log) * (reference_log - ours_log)).sum(axis=1)
    return errors, divergences, ours.argmax(axis=1) == reference.argmax(axis=1)


def _log_softmax(logits: Logits) -> Logits:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Logits = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
