"""Templates specialise and nothing more; their variables are exactly their dataclass's fields."""

from __future__ import annotations

import dataclasses

import pytest
from jinja2 import meta
from jinja2.exceptions import UndefinedError

from inferc.codegen.kernels.attention import AttentionParams
from inferc.codegen.kernels.experts import ExpertsParams
from inferc.codegen.kernels.head_linear import HeadLinearParams
from inferc.codegen.kernels.latent_append import LatentAppendParams
from inferc.codegen.kernels.linear import LinearParams
from inferc.codegen.kernels.plain_row import PlainRowParams
from inferc.codegen.kernels.rope_append import RopeAppendParams
from inferc.codegen.kernels.row_loops import RowLoopsParams
from inferc.codegen.kernels.rows import EmbeddingParams, GatherParams, RopeTableParams
from inferc.codegen.kernels.state import StateParams
from inferc.codegen.kernels.take import TakeParams
from inferc.codegen.kernels.tvm_row import TvmRowParams
from inferc.codegen.registry import CUDA_KERNELS, KERNELS
from inferc.codegen.render import CUDA_TEMPLATES, TEMPLATES, environment
from inferc.codegen.step import StepParams

PARAMS = {
    "attention.cpp.j2": AttentionParams,
    "embedding.cpp.j2": EmbeddingParams,
    "experts.cpp.j2": ExpertsParams,
    "gather.cpp.j2": GatherParams,
    "head_linear.cpp.j2": HeadLinearParams,
    "latent_append.cpp.j2": LatentAppendParams,
    "linear.cpp.j2": LinearParams,
    "plain_row.cpp.j2": PlainRowParams,
    "rope_append.cpp.j2": RopeAppendParams,
    "rope_table.cpp.j2": RopeTableParams,
    "state.cpp.j2": StateParams,
    "row_loops.cpp.j2": RowLoopsParams,
    "step.cpp.j2": StepParams,
    "take.cpp.j2": TakeParams,
    "tvm_row.cpp.j2": TvmRowParams,
}


@pytest.mark.parametrize("name", PARAMS)
def test_variables_are_the_fields(name: str) -> None:
    source = (TEMPLATES / name).read_text()
    used = meta.find_undeclared_variables(environment().parse(source))
    assert used == {f.name for f in dataclasses.fields(PARAMS[name])}


def test_every_template_is_used_and_short() -> None:
    files = {path.name for path in TEMPLATES.iterdir()}
    assert files == set(PARAMS)
    assert {k.template for k in KERNELS} == files - {"step.cpp.j2"}
    assert all(len(path.read_text().splitlines()) < 150 for path in TEMPLATES.iterdir())


def test_every_template_of_cuda_is_used_and_short() -> None:
    files = {path.name for path in CUDA_TEMPLATES.iterdir()}
    alone = {"cuda_step.cpp.j2", "sampling.cu.j2"}
    assert {k.template for k in CUDA_KERNELS} == files - alone
    assert all(len(path.read_text().splitlines()) < 150 for path in CUDA_TEMPLATES.iterdir())


def test_an_undefined_variable_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment().from_string("{{ missing }}").render()


def test_names_and_priorities_are_distinct() -> None:
    for kernels in (KERNELS, CUDA_KERNELS):
        assert len({k.name for k in kernels}) == len(kernels)
