"""What a reader has to know of a peer's arithmetic before comparing it with ours."""

from __future__ import annotations

from bench.peers_cpu.catalog import MODELS, PEERS

_INT8, _BF16, _ANEW, _VNNI = "¹", "²", "³", "⁴"
FOOTNOTES = (
    f"{_INT8} Rounds activations to int8, with a scale for each block: less exact than the 16",
    "bits of inferc's default. llama.cpp and ik_llama.cpp do so with all quantised weights (blocks",
    "of Q8_0, Q8_1 or Q8_K), ONNX Runtime's int4 by `int4_accuracy_level=4`, inferc only",
    "by `--compute int8`.  ",
    f"{_BF16} Rounds activations to bf16.  ",
    f"{_ANEW} Quantises the file's weights a second time, to a grid of its own: a less accurate",
    "model, whose text differs. Not on equal weights.  ",
    f"{_VNNI} Rounds activations to int8 as well where the processor has int8 dot products",
    "(VNNI).",
)


def marks(name: str, stored: str) -> str:
    """The footnotes of inferc or a peer by name, on weights `stored` so; empty if none."""
    peer = PEERS[name]
    quantised = any(w.weights == stored and w.quantised for w in MODELS.values())
    match peer.engine:
        case "inferc":
            return f" {_INT8}" if peer.int8 else ""
        case "llama.cpp" | "ik_llama.cpp":
            return f" {_INT8}" if quantised else f" {_BF16}"
        case "ort":
            return f" {_INT8} {_ANEW}"
        case "openvino":
            return f" {_ANEW} {_VNNI}" if quantised else ""
        case "vllm":
            return f" {_BF16}"
    return ""
