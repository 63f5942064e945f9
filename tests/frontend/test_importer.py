"""From files on disk to a bound module: both formats, all ways of tying the head, the refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inferc.errors import CompileError
from inferc.frontend import capture_torch
from inferc.frontend.capture_request import CaptureRequest
from inferc.frontend.gguf import open_gguf
from inferc.frontend.importer import ImportedModel, ImportOptions, import_model
from inferc.frontend.param_binding import BoundModule, bind_weights
from inferc.frontend.weight_binding import bind
from inferc.frontend.weights import StoredTensor
from inferc.ir.interp import Params
from inferc.ir.parse import parse_module
from inferc.ir.types import TensorType
from tests import tiny
from tests.frontend import gguf_models
from tests.frontend.captured import captured, relative_error, run_forward, warm


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


@pytest.fixture
def imported(cache_folder: Path) -> Callable[[Path], ImportedModel]:
    def load(folder: Path) -> ImportedModel:
        warm(folder, None, cache_folder)
        return import_model(folder, ImportOptions(cache_folder=cache_folder))

    return load


def stored_values(tensors: dict[str, StoredTensor]) -> Params:
    """Parameters as they lie in the file."""
    return lambda name, _: np.asarray(tensors[name].read())


def edit(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, file)


# -- Hugging Face directories
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_directory(
    name: str, shards: int, tmp_path: Path, imported: Callable[[Path], ImportedModel]
) -> None:
    folder = tiny.save(name, tmp_path / "model", shards=shards)
    assert (folder / "model.safetensors").is_file() == (shards == 1)
    model = imported(folder)
    ids = tiny.ids(name, 2, 13)
    found = run_forward(model.module.funcs["forward"], stored_values(model.tensors), ids)
    assert relative_error(found, tiny.logits(name, ids)) < 1e-5
    assert model.facts.vocab_size == tiny.VOCAB
    assert model.facts.context_tokens == tiny.CONTEXT
    assert (model.facts.layers, model.facts.hidden_size) == (2, 64)
    assert model.facts.parameters == sum(p.numel() for p in tiny.model(name).parameters())
    assert model.facts.parameter_bytes == 4 * model.facts.parameters
    assert model.tokenizer.special.eos == (258,)


@pytest.mark.parametrize(("dtype", "short"), [("bfloat16", "bf16"), ("float16", "f16")])
def test_parameters_keep_their_stored_type(
    dtype: str, short: str, tmp_path: Path, imported: Callable[[Path], ImportedModel]
) -> None:
    model = imported(tiny.save("gemma3-scaled", tmp_path / "model", dtype=dtype))
    func = model.module.funcs["forward"]
    assert {str(p.result.type).partition("[")[0] for p in func.params().values()} == {short}
    for op in func.ops:  # big weights are read as stored, the norms' through a cast
        if op.name in ("core.linear", "core.embedding"):
            weight = op.operands[1 if op.name == "core.linear" else 0]
            assert weight.producer is not None and weight.producer.name == "param"
    assert [str(r.type) for r in func.results] == [f"f32[B, S, {tiny.VOCAB}]"]
    ids = tiny.ids("gemma3-scaled", 1, 13)
    found = run_forward(func, stored_values(model.tensors), ids)
    rounded = {  # the reference: float32 arithmetic on the rounded weights
        name: value.astype(ml_dtypes.bfloat16 if short == "bf16" else np.float16)
        for name, value in tiny.parameters("gemma3-scaled").items()
    }
    plain = captured("gemma3-scaled")[0].funcs["forward"]
    wanted = run_forward(plain, lambda name, _: rounded[name].astype(np.float32), ids)
    assert relative_error(found, wanted) < 1e-6


def test_tied_without_head(tmp_path: Path, imported: Callable[[Path], ImportedModel]) -> None:
    folder = tiny.save("llama-tied", tmp_path / "model")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in imported(folder).tensors


def test_tied_with_equal_head(tmp_path: Path, imported: Callable[[Path], ImportedModel]) -> None:
    folder = tiny.save("llama-tied", tmp_path / "model")
    edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    model = imported(folder)
    assert "lm_head.weight" not in model.tensors
    assert model.facts.parameters == sum(p.numel() for p in tiny.model("llama-tied").parameters())


def test_tied_with_another_head(tmp_path: Path, imported: Callable[[Path], ImportedModel]) -> None:
    folder = tiny.save("llama-tied", tmp_path / "model")
    edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    with pytest.raises(CompileError, match=r"one weight.*lm_head.weight.*tie_word_embeddings"):
        imported(folder)


def test_tied_with_only_the_head(tmp_path: Path, imported: Callable[[Path], ImportedModel]) -> None:
    folder = tiny.save("llama-tied", tmp_path / "model")
    edit(folder, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
    model = imported(folder)
    assert model.tensors["model.embed_tokens.weight"].name == "lm_head.weight"


def test_untied_without_head(tmp_path: Path, imported: Callable[[Path], ImportedModel]) -> None:
    folder = tiny.save("llama", tmp_path / "model")
    edit(folder, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(CompileError, match=r"no lm_head.weight.*tie_word_embeddings to true"):
        imported(folder)


def test_old_names_and_dead_buffers(
    tmp_path: Path, imported: Callable[[Path], ImportedModel]
) -> None:
    """Checkpoints of GPT-2 as first published: no prefix, attention masks stored beside weights."""
    folder = tiny.save("gpt2", tmp_path / "model")

    def publish(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)
        tensors["h.1.attn.masked_bias"] = np.array(-1e4, np.float32)

    edit(folder, publish)
    model = imported(folder)
    assert model.tensors["transformer.h.0.mlp.c_fc.weight"].name == "h.0.mlp.c_fc.weight"


def faults() -> dict[str, tuple[Callable[[dict[str, np.ndarray]], None], str]]:
    wide = np.zeros((4, 4), np.float32)
    return {
        "missing": (lambda t: t.pop("model.norm.weight"), r"without a stored tensor: model.norm"),
        "extra": (lambda t: t.update(extra=wide), r"no parameter uses: extra"),
        "shape": (lambda t: t.update({"model.norm.weight": wide}), r"norm.weight wants \[64\]"),
    }


@pytest.mark.parametrize("fault", faults())
def test_tensors_that_do_not_fit(
    fault: str, tmp_path: Path, imported: Callable[[Path], ImportedModel]
) -> None:
    change, message = faults()[fault]
    folder = tiny.save("llama", tmp_path / "model")
    edit(folder, change)
    with pytest.raises(CompileError, match=message):
        imported(folder)


def test_tokenizer_of_another_model(
    tmp_path: Path, imported: Callable[[Path], ImportedModel]
) -> None:
    folder = tiny.save("llama", tmp_path / "model")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"] |= {f"<{i}>": i for i in range(259, tiny.VOCAB + 1)}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CompileError, match="do not belong together"):
        imported(folder)


# -- what a path may be
def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="does not exist"):
        import_model(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CompileError, match="is not a GGUF file"):
        import_model(tmp_path / "notes.txt")
    with pytest.raises(CompileError, match=r"expected config.json or one GGUF file.*found neither"):
        import_model(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(CompileError, match="found 2 GGUF files"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CompileError, match="not valid JSON"):
        import_model(tmp_path)


# -- GGUF
GGUF_CASES = (
    "llama", "llama, q k v fused", "llama, llama3 rope", "qwen2", "gemma3", "gpt2", "phi3",
    "granite",
)  # fmt: skip


def bound_gguf(name: str, folder: Path) -> BoundModule:
    found = open_gguf(gguf_models.write(folder / "m.gguf", name))
    divisors = found.inv_freq_divisors
    request = CaptureRequest(
        found.config, frequency_divisors=() if divisors is None else tuple(map(float, divisors))
    )
    text, facts = capture_torch.capture(CaptureRequest.from_json(request.to_json()))
    bindings = bind(facts.parameters, found.bindings, found.store, known_unused=found.known_unused)
    return bind_weights(parse_module(text), bindings, found.store)


@pytest.mark.parametrize("name", GGUF_CASES)
def test_gguf_equals_the_original(name: str, tmp_path: Path) -> None:
    import torch

    bound = bound_gguf(name, tmp_path)
    ids = np.random.default_rng(0).integers(0, 96, (2, 40))
    found = run_forward(bound.module.funcs["forward"], stored_values(bound.tensors), ids)
    with torch.no_grad():
        wanted = gguf_models.model(name)(torch.from_numpy(ids)).logits.numpy()
    assert relative_error(found, wanted) < 1e-5


def test_gguf_changes_are_visible_ops(tmp_path: Path) -> None:
    llama = bound_gguf("llama", tmp_path).module.funcs["forward"]
    query = llama.params()["model.layers.0.self_attn.q_proj.weight"].result
    (split,) = query.users
    assert (split.name, split.attrs["shape"]) == ("core.reshape", (4, 8, 2, 64))
    (swapped,) = split.result.users
    assert (swapped.name, swapped.attrs["perm"]) == ("core.transpose", (0, 2, 1, 3))

    gemma = bound_gguf("gemma3", tmp_path).module.funcs["forward"]
    norm = gemma.params()["model.norm.weight"].result
    assert [user.name for user in norm.users] == ["core.sub"]

    gpt2 = bound_gguf("gpt2", tmp_path).module.funcs["forward"]
    linear = [op for op in gpt2.ops if op.name == "core.linear"]
    assert all(op.operands[1].producer.name == "param" for op in linear)  # transposes cancel


def test_fused_tensor_is_one_parameter(tmp_path: Path) -> None:
    bound = bound_gguf("llama, q k v fused", tmp_path)
    fused = bound.module.funcs["forward"].params()["blk.0.attn_qkv.weight"].result
    assert sorted((u.attrs["start"], u.attrs["stop"]) for u in fused.users) == [
        (0, 96), (96, 144), (144, 192),
    ]  # fmt: skip


def test_real_gguf_keeps_blocks_as_stored() -> None:
    """The weights of the real files go into the graph in their block formats."""
    from tests.models import gemma3_gguf

    model = import_model(gemma3_gguf())
    params = model.module.funcs["forward"].params()
    types = {p.result.type.dtype for p in params.values() if isinstance(p.result.type, TensorType)}
    assert types == {"f32", "q5_0", "q8_0", "q4_k", "q6_k"}
    assert model.facts.parameter_bytes == sum(t.nbytes for t in model.tensors.values())
    assert set(model.tensors) == set(params)
