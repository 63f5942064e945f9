"""The captured graph computes what transformers computes, for every architecture and option."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from inferc.errors import CompileError, ToolchainError
from inferc.frontend import (
    aten_table,
    capture_child,
    capture_layers,
    capture_model,
    capture_torch,
)
from inferc.frontend.capture import capture
from inferc.frontend.capture_guards import always_true, excludes_longest, guards_of
from inferc.frontend.capture_request import CaptureFacts, CaptureRequest, Made
from inferc.ir.location import ModuleLoc
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module
from tests import tiny
from tests.frontend.captured import captured, relative_error, run_forward

# Not among the twelve, and named nowhere in the compiler.
OTHERS = {
    "starcoder2": {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48},
    "stablelm": {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48},
    "gpt_neox": {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48},
    "glm4": {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", tiny.CASES)
def test_equals_transformers(name: str) -> None:
    module, _ = captured(name)
    values = tiny.parameters(name)
    for batch, length in enumerate(tiny.CASES[name].lengths, start=1):
        ids = tiny.ids(name, batch, length)
        found = run_forward(module.funcs["forward"], lambda n, _: values[n], ids)
        assert relative_error(found, tiny.logits(name, ids)) < 1e-5


@pytest.mark.parametrize("model_type", OTHERS)
def test_other_architectures_need_nothing_of_their_own(model_type: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = OTHERS[model_type] | {"num_hidden_layers": 2, "num_attention_heads": 4,
                                   "num_key_value_heads": 2, "max_position_embeddings": 64,
                                   "pad_token_id": 0}  # fmt: skip
    if model_type == "gpt_neox":
        del fields["num_key_value_heads"]
    text, _ = capture_torch.capture(CaptureRequest({"model_type": model_type, **fields}))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **fields), attn_implementation="eager"
    ).eval()
    values = {n: p.detach().numpy() for n, p in model.named_parameters()}
    ids = np.arange(22).reshape(2, 11)
    found = run_forward(parse_module(text).funcs["forward"], lambda n, _: values[n], ids)
    with torch.no_grad():
        wanted = model(input_ids=torch.from_numpy(ids), use_cache=False).logits.numpy()
    assert relative_error(found, wanted) < 1e-5


def test_graph_shape_and_ranges() -> None:
    func = captured("llama")[0].funcs["forward"]
    assert [f"{a.hint}: {a.type}" for a in func.args] == ["ids: i64[B, S]", "positions: i64[B, S]"]
    assert [str(r.type) for r in func.results] == [f"f32[B, S, {tiny.VOCAB}]"]
    assert {n: (s.low, s.high) for n, s in func.symbols.items()} == {
        "B": (1, 1024),
        "S": (1, tiny.CONTEXT),
    }


def test_text_round_trip_with_locations() -> None:
    text = print_module(captured("cohere2")[0], locations=True)
    assert print_module(parse_module(text), locations=True) == text


def test_attention_and_mask_are_one_op_each() -> None:
    ops = captured("gemma3")[0].funcs["forward"].ops
    masks = [op for op in ops if op.name == "nn.mask"]
    assert sorted(op.attrs["window"] or 0 for op in masks) == [0, 8]
    attention = [op for op in ops if op.name == "nn.attention"]
    assert len(attention) == 6
    assert {op.attrs["scale"] for op in attention} == {24**-0.5}
    windows = [op.operands[3].producer.attrs["window"] for op in attention]
    assert windows == [8, 8, 8, 8, 8, None]


def test_soft_caps_are_attributes_of_attention() -> None:
    ops = captured("gemma2")[0].funcs["forward"].ops
    assert {op.attrs["softcap"] for op in ops if op.name == "nn.attention"} == {5.0}


def test_every_op_names_its_module_and_no_machine_path() -> None:
    func = captured("llama")[0].funcs["forward"]
    paths = set()
    for op in func.ops:
        assert isinstance(op.loc, ModuleLoc)
        assert not op.loc.source.startswith("/")
        if op.name not in ("param", "core.constant"):
            assert op.loc.source.startswith("transformers/")
        paths.add((op.loc.path, op.loc.cls))
    assert ("model.layers.1.mlp.gate_proj", "Linear") in paths
    assert ("model.layers.0.self_attn", "LlamaAttention") in paths
    assert ("model.norm", "LlamaRMSNorm") in paths
    linear = next(op for op in func.ops if op.name == "core.linear")
    assert linear.loc.source.startswith("transformers/models/llama/modeling_llama.py:")


def test_tied_weights_are_one_parameter() -> None:
    module, facts = captured("llama-tied")
    assert facts.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" not in module.funcs["forward"].params()
    assert "lm_head.weight" not in facts.parameters
    untied = captured("llama")[1]
    assert untied.aliases == {} and "lm_head.weight" in untied.parameters


def test_packed_sequence_detection_is_gone() -> None:
    names = {op.name for op in captured("llama")[0].funcs["forward"].ops}
    assert not {"core.iota", "core.eq", "core.ne", "core.logical_and"} & names


def test_longrope_is_chosen_by_the_context_limit() -> None:
    def frequencies(name: str) -> tuple[object, ...]:
        ops = captured(name)[0].funcs["forward"].ops
        return next(op.attrs["values"] for op in ops if op.results[0].hint == "inv_freq")

    short, long = frequencies("phi3-longrope-short"), frequencies("phi3-longrope-long")
    ratio = [a / b for a, b in zip(short, long, strict=True)]
    wanted = [(1.5 + 0.5 * i) / (1 + 0.05 * i) for i in range(8)]
    assert ratio == pytest.approx(wanted, rel=1e-6)
    # Constants of the graph: no op looks at the positions of the batch.
    assert "core.where" not in {
        o.name for o in captured("phi3-longrope-long")[0].funcs["forward"].ops
    }


def test_frequency_divisors_divide_the_frequencies() -> None:
    config = tiny.config("llama")
    plain = captured("llama")[0].funcs["forward"]
    divisors = tuple(1.0 + i for i in range(8))
    text, _ = capture_torch.capture(CaptureRequest(config, frequency_divisors=divisors))
    scaled = parse_module(text).funcs["forward"]

    def values(func: object) -> np.ndarray:
        op = next(op for op in func.ops if op.results[0].hint == "inv_freq")
        return np.array(op.attrs["values"], np.float32)

    assert np.array_equal(values(scaled), values(plain) / np.array(divisors, np.float32))
    with pytest.raises(CompileError, match=r"scales 3 rotary frequencies.*has \(8,\)"):
        capture_torch.capture(CaptureRequest(config, frequency_divisors=(1.0, 2.0, 3.0)))


def test_unknown_operation_names_op_module_and_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(aten_table.ATEN, "aten.silu.default")
    with pytest.raises(CompileError) as error:
        capture_torch.capture(CaptureRequest(tiny.config("llama")))
    message = str(error.value)
    assert "aten.silu.default" in message
    assert "model.layers.0.mlp.act_fn" in message and "SiLUActivation" in message


def test_checkpoint_names_are_mapped_as_transformers_does() -> None:
    keys = ("wte.weight", "h.0.attn.c_attn.weight", "transformer.ln_f.bias")
    _, facts = capture_torch.capture(CaptureRequest(tiny.config("gpt2"), checkpoint_keys=keys))
    assert facts.names == {
        "wte.weight": "transformer.wte.weight",
        "h.0.attn.c_attn.weight": "transformer.h.0.attn.c_attn.weight",
        "transformer.ln_f.bias": "transformer.ln_f.bias",
    }


def test_context_limit() -> None:
    with pytest.raises(CompileError, match=r"513 tokens was asked for.*at most 512"):
        capture_torch.capture(CaptureRequest(tiny.config("llama"), 513))


def test_facts_and_request_round_trip() -> None:
    request = CaptureRequest({"model_type": "x"}, 7, ("a", "b"), (1.5,))
    assert CaptureRequest.from_json(request.to_json()) == request
    made = Made(("s", "t"), 1, 4, (0, 2))
    facts = CaptureFacts("X", 7, 64, 2, {"a": (1, 2)}, {"b": "a"}, {"k": "a"}, {"m": made}, ("r",))
    assert CaptureFacts.from_json(facts.to_json()) == facts


def test_python_loops_over_the_sequence_are_refused_by_name() -> None:
    config = {"model_type": "rwkv", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 64}
    with pytest.raises(CompileError, match="not one graph for all") as refusal:
        capture_torch.capture(CaptureRequest(config | {"context_length": 64}, context_tokens=64))
    assert "rwkv.blocks.0.attention (RwkvSelfAttention)" in str(refusal.value)


def test_an_index_of_keys_is_refused_where_it_matters() -> None:
    config = tiny.config("deepseek_v32") | {"index_topk": 64}
    with pytest.raises(CompileError, match="a context length of at most 64 tokens"):
        capture_torch.capture(CaptureRequest(config, context_tokens=65))
    text, facts = capture_torch.capture(CaptureRequest(config, context_tokens=64))
    assert facts.context_tokens == 64 and "wq_b" not in text


def test_guards_that_hold_for_all_lengths() -> None:
    length = "L['ids'].size()[1]"
    message = f"generated guard ({length}*min(64, 64*{length})) == 64*{length}.\n"
    assert guards_of(message) == ["(S*min(64, 64*S)) == 64*S"]
    assert always_true(guards_of(message), 100)
    assert not always_true(["S != 7"], 7) and always_true(["S != 7"], 6)
    assert not always_true(["S % 16 == 0"], 32) and not always_true(["B*S >= B + 1"], 8)
    assert not always_true([], 8) and not always_true(["open('x')"], 8)
    assert not always_true(["S >"], 8)
    assert excludes_longest(["S != 7"], 7) and not excludes_longest(["S != 6"], 7)


def test_a_layer_that_has_changed_is_refused() -> None:
    class DbrxExperts(torch.nn.Module):
        mlp = torch.nn.Module()
        num_experts = ffn_hidden_size = hidden_size = 2

        def forward(self, hidden_states: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return hidden_states

    DbrxExperts.mlp.activation_fn = torch.nn.SiLU()
    changed = torch.nn.ModuleDict({"experts": DbrxExperts()})
    with pytest.raises(CompileError, match=r"experts .DbrxExperts. takes hidden_states, scores"):
        with capture_layers.exchanged(changed):
            pass
    assert "forward" not in vars(changed["experts"])


def test_messages_of_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_model.ACTIVE, "stack", [])
    assert capture_child.describe(CompileError("no.")) == "The model cannot be captured: no."
    wrapped = RuntimeError("torch says more")
    wrapped.__cause__ = CompileError("the reason.")
    assert capture_child.describe(wrapped).endswith(": the reason.")
    plain = capture_child.describe(ValueError("first\n  second"))
    assert plain == (
        "transformers cannot build a model from this config.json. ValueError: first second"
    )
    capture_model.ACTIVE.stack.append(("model.layers.3.mlp", "LlamaMLP"))
    inside = capture_child.describe(ValueError("x"))
    assert inside == (
        "torch.export cannot capture this model (in model.layers.3.mlp, LlamaMLP). ValueError: x"
    )


def test_child_process_cache_and_refusal(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real child: capture once, read the cache the second time, and report a refusal."""
    monkeypatch.setenv("INFERC_CACHE", str(tmp_path))
    request = CaptureRequest(tiny.config("gpt2"))
    first = capture(request)
    entries = os.listdir(tmp_path / "captures")
    assert len(entries) == 1
    monkeypatch.setattr("subprocess.run", lambda *a, **k: pytest.fail("the cache was not used"))
    second = capture(request)
    monkeypatch.undo()
    assert print_module(first.module, locations=True) == print_module(second.module, locations=True)
    assert first.facts == second.facts == captured("gpt2")[1]

    monkeypatch.setenv("INFERC_CACHE", str(tmp_path))
    bad = tiny.config("gpt2") | {"n_head": 5}
    with pytest.raises(
        CompileError, match=r"transformers cannot build a model.*ValueError.*divisible"
    ):
        capture(CaptureRequest(bad))
    assert os.listdir(tmp_path / "captures") == entries  # nothing half-written


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ToolchainError, match="Set INFERC_CACHE"):
        capture(CaptureRequest(tiny.config("gpt2")), tmp_path / "file")


def test_parent_imports_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, inferc.frontend.importer; "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == []
