"""A Qwen2-1.5B shape with random weights in bf16, as a Hugging Face folder and as a GGUF file.

Speed does not depend on what the weights say; normal ones of the usual scale keep activations in
range. Each tensor is drawn from a seed of its own name, so both forms hold the same numbers. The
vocabulary is bytes and filler: prompts are token ids.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCALE = 0.02


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; head and embedding are one matrix."""

    hidden: int = 1536
    layers: int = 28
    heads: int = 12
    kv_heads: int = 2
    inner: int = 8960
    vocab: int = 151936
    context: int = 32768

    @property
    def head_dim(self) -> int:
        """Components of one head."""
        return self.hidden // self.heads

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "dtype": "bfloat16",
            "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.inner, "vocab_size": self.vocab, "hidden_act": "silu",
            "max_position_embeddings": self.context, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "tie_word_embeddings": True, "use_sliding_window": False, "attention_dropout": 0.0,
            "bos_token_id": self.vocab - 1, "eos_token_id": self.vocab - 1,
        }  # fmt: skip


QWEN2 = Shape()
_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}  # fmt: skip


def tensors(shape: Shape) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Hugging Face name, GGUF name, shape."""
    q, kv = shape.hidden, shape.kv_heads * shape.head_dim
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": q, "gate_proj": shape.inner,
            "up_proj": shape.inner, "down_proj": shape.hidden}  # fmt: skip
    yield "model.embed_tokens.weight", "token_embd.weight", (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        for name, short in _NAMES.items():
            size: tuple[int, ...] = (shape.hidden,)
            if "proj" in name:
                part = name.split(".")[1]
                columns = shape.inner if part == "down_proj" else shape.hidden
                size = (rows[part], columns) if name.endswith("weight") else (rows[part],)
            yield f"model.layers.{layer}.{name}", f"blk.{layer}.{short}", size
    yield "model.norm.weight", "output_norm.weight", (shape.hidden,)


def values(name: str, shape: tuple[int, ...]) -> Any:
    """The tensor in bf16: normal for matrices, zero for biases, one for norms."""
    import ml_dtypes

    if len(shape) == 1:
        return np.full(shape, 0.0 if name.endswith("bias") else 1.0, ml_dtypes.bfloat16)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.standard_normal(shape, dtype=np.float32)
    drawn *= SCALE
    return drawn.astype(ml_dtypes.bfloat16)


def vocabulary(shape: Shape) -> tuple[list[str], list[str]]:
    """Tokens by id, and merges: the bytes in GPT-2's spelling, one pair of them, filler, an end."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in plain]
    spelt = [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(hidden))]
    filler = [f"<filler {i}>" for i in range(shape.vocab - len(spelt) - 2)]
    return [*spelt, "th", *filler, "<end>"], ["t h"]


def write_hf(folder: Path, shape: Shape = QWEN2) -> None:
    """config.json, tokenizer.json and one file of weights."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    tokens, merges = vocabulary(shape)
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(ids, [(a, b) for a, b in map(str.split, merges)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    weights = {hf: values(hf, size) for hf, _, size in tensors(shape)}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))


def write_gguf(path: Path, shape: Shape = QWEN2) -> None:
    """The same model as one file in bf16, with float32 where llama.cpp wants it."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen2", use_temp_file=True)
    writer.add_name("random Qwen2 shape")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    tokens, merges = vocabulary(shape)
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    for hf, name, size in tensors(shape):
        drawn = values(hf, size)
        if drawn.ndim == 1:
            writer.add_tensor(name, drawn.astype(np.float32))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, drawn.view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
