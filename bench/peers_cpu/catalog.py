"""What is compared: figures, models with their weights, and engines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Figure:
    """One measured quantity.

    `batch` prompts of `prompt_tokens` random ids each; `new_tokens` follow the first new one, which
    belongs to the prefill. A figure of `kind` "start" comes from a fresh process, "size" from disk.
    """

    name: str
    kind: str
    unit: str = "tokens/s"
    batch: int = 1
    prompt_tokens: int = 128
    new_tokens: int = 128

    @property
    def less_is_better(self) -> bool:
        """Seconds and bytes, as against rates."""
        return self.unit != "tokens/s"


FIGURES = {
    figure.name: figure
    for figure in (
        Figure("decode", "decode"),
        Figure("decode x8", "decode", batch=8, new_tokens=64),
        Figure("decode x32", "decode", batch=32, prompt_tokens=64, new_tokens=32),
        Figure("prefill 512", "prefill", prompt_tokens=512, new_tokens=0),
        Figure("prefill 2048", "prefill", prompt_tokens=2048, new_tokens=0),
        Figure("load", "start", "s"),
        Figure("process", "start", "s"),
        Figure("peak memory", "start", "MB"),
        Figure("model size", "size", "MB"),
        Figure("runtime size", "size", "MB"),
    )
}
"""`load`: from the imports' end to the first token; `process`: from the process's start to it.

`peak memory`: resident, after 512 tokens of prefill and 32 of decode in that fresh process.
"""


@dataclass(frozen=True)
class Weights:
    """One model with its weights as stored in one GGUF file, which equal-weight peers run too.

    `prompt_tokens` and `new_tokens` are the most of a figure of decode: fewer where a step takes
    long anyway.
    """

    model: str
    weights: str
    file: str
    prompt_tokens: int = 128
    new_tokens: int = 128

    def shortened(self, figure: Figure) -> Figure:
        """The figure with no more tokens than that, if it is one of decode."""
        if figure.kind != "decode":
            return figure
        prompt = min(figure.prompt_tokens, self.prompt_tokens)
        return replace(
            figure, prompt_tokens=prompt, new_tokens=min(figure.new_tokens, self.new_tokens)
        )

    @property
    def key(self) -> str:
        """Name on the command line and of files: `smollm2-q4_1`."""
        return self.file.removesuffix(".gguf")

    @property
    def quantised(self) -> bool:
        """Whether int8 activations can be asked for."""
        return self.weights != "bf16"


SMOLLM2, GEMMA3, QWEN2 = "SmolLM2-135M", "Gemma 3 270M", "Qwen2-1.5B shape, random weights"
MODELS = {
    weights.key: weights
    for weights in (
        Weights(SMOLLM2, "Q4_1", "smollm2-q4_1.gguf"),
        Weights(SMOLLM2, "Q8_0", "smollm2-q8_0.gguf"),
        Weights(SMOLLM2, "bf16", "smollm2-bf16.gguf"),
        Weights(GEMMA3, "Q4_K_M", "gemma3-q4_k_m.gguf"),
        Weights(QWEN2, "Q4_K_M", "qwen2-q4_k_m.gguf", prompt_tokens=32, new_tokens=16),
        Weights(QWEN2, "bf16", "qwen2-bf16.gguf", prompt_tokens=32, new_tokens=16),
    )
}


@dataclass(frozen=True)
class Peer:
    """One engine in one configuration.

    `environment` is the name of what `environments` builds (None: this Python); `stored` says which
    weights it runs: None for the file's own, else what it makes of them, such as "int8".
    """

    name: str
    engine: str
    environment: str | None
    stored: str | None = None
    options: dict[str, str] = field(default_factory=dict)

    def fits(self, weights: Weights) -> bool:
        """Whether it makes sense here: a peer in bf16 runs bf16 weights, and those only."""
        if self.int8:
            return weights.quantised
        return self.stored is None or (self.stored == "bf16") == (weights.weights == "bf16")

    @property
    def int8(self) -> bool:
        """Whether it is inferc with int8 activations."""
        return self.name == INFERC_INT8

    def equal_weights(self, weights: Weights) -> bool:
        """Whether it computes with the very weights of the file."""
        return self.stored is None or self.stored == weights.weights


INFERC, INFERC_INT8 = "inferc", "inferc int8"
PEERS = {
    peer.name: peer
    for peer in (
        Peer(INFERC, "inferc", None),
        Peer(INFERC_INT8, "inferc", None, options={"compute": "int8"}),
        Peer("llama.cpp", "llama.cpp", "llama.cpp"),
        Peer("ik_llama.cpp", "ik_llama.cpp", "ik_llama.cpp"),
        Peer("ik_llama.cpp repacked", "ik_llama.cpp", "ik_llama.cpp", options={"repack": "1"}),
        Peer("OpenVINO int4", "openvino", "openvino", "int4"),
        Peer("OpenVINO int8", "openvino", "openvino", "int8"),
        Peer("OpenVINO bf16", "openvino", "openvino", "bf16"),
        Peer("ORT int4", "ort", "ort", "int4"),
        Peer("vLLM bf16", "vllm", "vllm", "bf16"),
    )
}
