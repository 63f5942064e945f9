"""Exports rewritten by ONNX Runtime: by the optimiser of its sessions, and by its fusion tool."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import onnx


def by_session(path: Path, output: Path) -> Path:
    """Every rewriting that does not depend on the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(output)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return output


def by_fusion(path: Path, output: Path) -> Path:
    """`onnxruntime.transformers.optimizer`: norms with their residual, activations."""
    with _quiet():
        from onnxruntime.transformers import optimizer

        made = optimizer.optimize_model(
            str(path), model_type="gpt2", num_heads=4, hidden_size=64, opt_level=0
        )
        made.save_model_to_file(str(output))
    return output


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the tool's remarks on what it does not fuse."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def foreign_operators(path: Path) -> set[str]:
    """Operators of com.microsoft in a file."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return {n.op_type for n in nodes if n.domain == "com.microsoft"}
