"""Quantised checkpoints imported: the bound graph, interpreted, against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from inferc.frontend.importer import ImportOptions, import_model
from inferc.ir.core import Func
from inferc.ir.types import TensorType
from tests import quantised_models
from tests.frontend.captured import relative_error, run_forward, warm
from tests.quantised_models import METHODS

CASES = [
    *(("llama", method) for method in METHODS if method != "mxfp4"),
    ("qwen2", "gptq"),
    ("qwen2", "gptq-act-order"),
    ("qwen2", "int8"),
    ("phi3", "pack"),
    ("phi3", "f8-channel"),
    ("falcon", "gptq"),  # products with the transpose of a weight
    ("falcon", "gptq-orders"),
    ("falcon", "int8"),
    ("mixtral", "gptq"),
    ("mixtral", "pack-8"),
    ("mixtral", "int8"),
    ("mixtral", "f8-tensor"),
    ("gpt_oss", "mxfp4"),
    ("deepseek_v3", "fp8-block"),
    ("deepseek_v3", "awq"),
]
IDS = np.random.default_rng(0).integers(0, 256, (2, 13))


def transformers_logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(input_ids=torch.from_numpy(ids), use_cache=False).logits.numpy()


def dtypes(func: Func) -> set[str]:
    types = [op.result.type for op in func.params().values()]
    return {t.dtype for t in types if isinstance(t, TensorType)}


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


@pytest.mark.parametrize(("family", "method"), CASES)
def test_logits(family: str, method: str, tmp_path: Path, cache_folder: Path) -> None:
    stored, plain = quantised_models.save(family, method, tmp_path)
    warm(stored, None, cache_folder)
    model = import_model(stored, ImportOptions(cache_folder=cache_folder))
    func = model.module.funcs["forward"]
    found = run_forward(func, lambda name, _: np.asarray(model.tensors[name].read()), IDS)
    assert relative_error(found, transformers_logits(plain, IDS)) < 1e-5
    assert dtypes(func) - {"f32", "i32"}
    for op in func.ops:  # no quantised weight is read as floats
        assert op.name != "core.cast" or op.operands[0].producer is None or (
            op.operands[0].producer.name != "param"
        )  # fmt: skip
