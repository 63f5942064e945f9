"""The other ways an architecture comes in, for `tools.survey`: GGUF, ONNX, quantised checkpoints.

All are measured on the imported graph, interpreted in float32: what comes after is the same for
every source.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from inferc.errors import InfercError
from inferc.frontend.gguf import open_gguf
from inferc.frontend.importer import ImportOptions, import_model
from inferc.frontend.onnx_model import decoder
from inferc.frontend.onnx_proto import open_onnx
from inferc.ir.interp import run
from tests import quantised_models, tiny
from tests.frontend import gguf_cases, gguf_models
from tests.frontend.captured import relative_error, run_forward, warm
from tests.frontend.onnx_models import exported, reference
from tests.frontend.test_quantised_import import CASES, IDS, transformers_logits

OPSET = 18
TOLERANCE = 1e-4


def gguf_error(model_type: str, folder: Path) -> float | None:
    """Largest relative error over the GGUF cases of a type; None if there is none."""
    errors = []
    for name, case in gguf_cases.CASES.items():
        if case.model_type == model_type:
            path = gguf_models.write(folder / f"{name}.gguf", name)
            errors.append(_reread_error(name, path))
    return max(errors, default=None)


def _reread_error(name: str, path: Path) -> float:
    model = gguf_models.rebuilt(open_gguf(path))
    ids = torch.randint(0, 96, (1, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, wanted = (m(ids).logits.numpy() for m in (model, gguf_models.model(name)))
    return relative_error(found, wanted)


def onnx_error(name: str) -> tuple[float | None, str]:
    """Relative error of torch.onnx's export against ONNX Runtime, and why there is none."""
    try:
        path = exported(name, "eager", OPSET)
    except Exception as error:  # whatever torch's exporter raises; it is not ours to sort
        return None, f"torch.onnx does not export it: {type(error).__name__}"
    ids = tiny.ids(name, 2, 21)
    try:
        made = decoder(open_onnx(path)).translated
    except InfercError as error:
        return None, " ".join(str(error).replace(f"{path}: ", "").replace(str(path), "it").split())
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    found = run(made.func, [ids, positions], lambda n, _: made.tensors[n].read_float32())[0]
    return relative_error(found, reference(path, ids)), ""


def quantised_methods(model_type: str, folder: Path) -> tuple[str, ...]:
    """Methods whose tiny checkpoints give the logits of the weights that they mean."""
    agreed = []
    for family, method in CASES:
        if family == model_type:
            stored, plain = quantised_models.save(family, method, folder / method)
            warm(stored, None, folder)
            model = import_model(stored, ImportOptions(cache_folder=folder))
            func, tensors = model.module.funcs["forward"], model.tensors
            found = run_forward(func, lambda n, _, t=tensors: np.asarray(t[n].read()), IDS)
            if relative_error(found, transformers_logits(plain, IDS)) < TOLERANCE:
                agreed.append(method)
    return tuple(agreed)
