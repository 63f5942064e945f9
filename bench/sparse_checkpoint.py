"""Checkpoints of any size that take no room: configs of large models, weights that are holes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "configs"
SHARD_BYTES = 4 << 30
_BYTES = ("_blocks", "_scales")  # names of tensors of bytes; all others are bf16


def llama_tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as a llama checkpoint has them."""
    hidden, inner, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        yield from attention_tensors(config, f"model.layers.{i}")
        for name in ("gate_proj", "up_proj"):
            yield f"model.layers.{i}.mlp.{name}.weight", (inner, hidden)
        yield f"model.layers.{i}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def attention_tensors(config: dict[str, Any], layer: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, groups = (
        config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    size = config.get("head_dim") or hidden // heads
    yield f"{layer}.input_layernorm.weight", (hidden,)
    yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    for name, count in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
        yield f"{layer}.self_attn.{name}.weight", (count * size, hidden)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, heads * size)


def qwen3_moe_tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as a qwen3_moe checkpoint has them: every expert by itself."""
    hidden, inner, vocab = (
        config[k] for k in ("hidden_size", "moe_intermediate_size", "vocab_size")
    )
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield from attention_tensors(config, layer)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}.self_attn.{name}.weight", (config["head_dim"],)
        yield f"{layer}.mlp.gate.weight", (config["num_experts"], hidden)
        for e in range(config["num_experts"]):
            for name in ("gate_proj", "up_proj"):
                yield f"{layer}.mlp.experts.{e}.{name}.weight", (inner, hidden)
            yield f"{layer}.mlp.experts.{e}.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def gpt_oss_tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as an unquantised gpt_oss checkpoint has them: experts stacked."""
    hidden, inner, vocab, experts, heads, groups, size = (
        config[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_local_experts",
                            "num_attention_heads", "num_key_value_heads", "head_dim")
    )  # fmt: skip
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield from attention_tensors(config, layer)
        for name, count in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
            yield f"{layer}.self_attn.{name}.bias", (count * size,)
        yield f"{layer}.self_attn.o_proj.bias", (hidden,)
        yield f"{layer}.self_attn.sinks", (heads,)
        yield f"{layer}.mlp.router.weight", (experts, hidden)
        yield f"{layer}.mlp.router.bias", (experts,)
        yield f"{layer}.mlp.experts.gate_up_proj", (experts, hidden, 2 * inner)
        yield f"{layer}.mlp.experts.gate_up_proj_bias", (experts, 2 * inner)
        yield f"{layer}.mlp.experts.down_proj", (experts, inner, hidden)
        yield f"{layer}.mlp.experts.down_proj_bias", (experts, hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def mxfp4_tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same with the experts as they are published: blocks and scales in bytes."""
    hidden, inner, experts = (
        config[k] for k in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    shapes = {"gate_up_proj": (2 * inner, hidden // 32), "down_proj": (hidden, inner // 32)}
    for name, dims in gpt_oss_tensors(config):
        shape = shapes.get(name.rpartition(".")[2])
        if shape is None:
            yield name, dims
        else:
            yield f"{name}{_BYTES[0]}", (experts, *shape, 16)
            yield f"{name}{_BYTES[1]}", (experts, *shape)


SHAPES = {
    "mxfp4-experts": ("gpt-oss-120b", mxfp4_tensors),
    "llama": ("llama-3.1-70b", llama_tensors),
    "experts": ("qwen3-235b-a22b", qwen3_moe_tensors),
    "stacked-experts": ("gpt-oss-120b", gpt_oss_tensors),
}


def checkpoint(folder: Path, shape: str, layers: int) -> int:
    """Write a model directory whose bf16 weights are holes in files; returns their bytes."""
    name = SHAPES[shape][0]
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    if shape != "mxfp4-experts":
        config.pop("quantization_config", None)
    config |= {"num_hidden_layers": layers, "dtype": "bfloat16"}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    return write_checkpoint(folder, shape, config)


def write_checkpoint(folder: Path, shape: str, config: dict[str, Any]) -> int:
    """The same for a config of one's own; `dtype` should say bfloat16."""
    tensors = SHAPES[shape][1]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    _tokenizer(folder)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for tensor, dims in tensors(config):
        size = _nbytes(tensor, dims)
        if filled + size > SHARD_BYTES and shards[-1]:
            shards, filled = [*shards, {}], 0
        shards[-1][tensor] = dims
        filled += size
    return _write_shards(folder, shards)


def _write_shards(folder: Path, shards: list[dict[str, tuple[int, ...]]]) -> int:
    weight_map, total = {}, 0
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        header, at = {}, 0
        for name, dims in shard.items():
            end = at + _nbytes(name, dims)
            dtype = "U8" if name.endswith(_BYTES) else "BF16"
            header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, end]}
            weight_map[name], at = file, end
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + at)  # a hole: reads as zeros, takes no room
        total += at
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _nbytes(name: str, dims: tuple[int, ...]) -> int:
    return math.prod(dims) * (1 if name.endswith(_BYTES) else 2)


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokens = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.save(str(folder / "tokenizer.json"))


def layers_for(shape: str, gigabytes: float) -> int:
    """As many layers as make a checkpoint of about that size."""
    name, tensors = SHAPES[shape]
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    sizes = [
        sum(_nbytes(*tensor) for tensor in tensors(config | {"num_hidden_layers": n}))
        for n in (0, 1)
    ]
    return max(round((gigabytes * 1e9 - sizes[0]) / (sizes[1] - sizes[0])), 1)
