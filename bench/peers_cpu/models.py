"""Makes every form of every model, each once: GGUF files, folders for peers, artifacts of ours."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.peers_cpu import artifacts, gguf_tools, random_qwen2
from bench.peers_cpu.catalog import GEMMA3, QWEN2, SMOLLM2, Peer, Weights
from bench.peers_cpu.environments import start_variables, why_not
from bench.peers_cpu.home import ROOT, BuildFailed, Home

_SHORT = {SMOLLM2: "smollm2", GEMMA3: "gemma3", QWEN2: "qwen2"}


def model_path(home: Home, weights: Weights, peer: Peer) -> Path:
    """Where the form of a model is, or will be, that a peer loads."""
    short = _SHORT[weights.model]
    match peer.engine:
        case "inferc":
            kind = peer.name.removeprefix("inferc").replace(" ", "-")
            return home.place("models", f"{weights.key}{kind}.inferc")
        case "openvino" | "ort":
            return home.place("models", f"{short}-{peer.engine}-{peer.stored}")
        case "vllm":
            return home.place("models", f"{short}-hf")
        case _:
            return home.place("models", weights.file)


def make_model(home: Home, weights: Weights, peer: Peer) -> Path:
    """That form, made if it is not there. Raises BuildFailed."""
    path = model_path(home, weights, peer)
    stored = gguf_file(home, weights)
    match peer.engine:
        case "inferc":
            artifacts.up_to_date(home, stored, path, peer)
        case "openvino":
            _once(path, lambda part: _to_openvino(home, weights, peer, part))
        case "ort":
            _once(path, lambda part: _to_ort(home, weights, part))
        case "vllm":
            _hf_folder(home, weights)
    return path


def gguf_file(home: Home, weights: Weights) -> Path:
    """The file with the weights as stored, which inferc and equal-weight peers share."""
    path = home.place("models", weights.file)
    makers: dict[str, Callable[[Path], None]] = {
        "smollm2-q4_1": lambda part: _copy("smollm2", part),
        "gemma3-q4_k_m": lambda part: _copy("gemma3", part),
        "smollm2-bf16": lambda part: gguf_tools.convert(_of(home, "smollm2-q4_1"), part, "BF16"),
        "qwen2-bf16": random_qwen2.write_gguf,
        "smollm2-q8_0": lambda part: gguf_tools.convert(_of(home, "smollm2-q4_1"), part, "Q8_0"),
        "qwen2-q4_k_m": lambda part: _quantise(home, "qwen2-bf16", part, "Q4_K_M"),
    }
    return _once(path, makers[weights.key])


def _of(home: Home, key: str) -> Path:
    from bench.peers_cpu.catalog import MODELS

    return gguf_file(home, MODELS[key])


def _once(path: Path, make: Callable[[Path], None]) -> Path:
    """Make a file or folder under another name first, so that half of one is never taken for it."""
    if path.exists():
        return path
    part = path.with_name(f"part-{path.name}")
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True)
    print(f"making {path.name}", file=sys.stderr, flush=True)
    make(part)
    part.rename(path)
    return path


def _copy(name: str, part: Path) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import find_model

        shutil.copyfile(getattr(find_model, name)(), part)
    except SystemExit as missing:
        raise BuildFailed(str(missing)) from None
    finally:
        sys.path.pop(0)


def _quantise(home: Home, source: str, part: Path, kind: str) -> None:
    if reason := why_not(home, "llama.cpp"):
        raise BuildFailed(f"llama.cpp, which quantises, is {reason}")
    script = Path(__file__).with_name("to_quantised.py")
    command = [home.python("llama.cpp"), script, _of(home, source), part, kind, home.jobs]
    home.run("quantise", command, environment=start_variables(home, "llama.cpp"))


def _hf_folder(home: Home, weights: Weights) -> Path:
    path = home.place("models", f"{_SHORT[weights.model]}-hf")
    if weights.model == QWEN2:
        return _once(path, random_qwen2.write_hf)
    stored = {SMOLLM2: "smollm2-q4_1", GEMMA3: "gemma3-q4_k_m"}[weights.model]
    script = Path(__file__).with_name("to_hf.py")
    command = [sys.executable, script, _of(home, stored)]
    return _once(path, lambda part: home.run(f"{path.name}", [*command, part]))


def _to_openvino(home: Home, weights: Weights, peer: Peer, part: Path) -> None:
    kinds = {"int4": ["int4", "--group-size", "64", "--ratio", "1.0"], "int8": ["int8"],
             "bf16": ["fp16"]}  # fmt: skip
    assert peer.stored is not None
    tool = home.python("openvino-export").with_name("optimum-cli")
    what = ["--task", "text-generation-with-past", "--weight-format", *kinds[peer.stored]]
    command = [tool, "export", "openvino", "--model", _hf_folder(home, weights), *what, part]
    home.run(part.name, command, environment={"HF_HUB_OFFLINE": "1"})


def _to_ort(home: Home, weights: Weights, part: Path) -> None:
    script = Path(__file__).with_name("to_ort.py")
    folder, cache = _hf_folder(home, weights), home.place("models", "ort-cache")
    command = [home.python("ort-export"), script, folder, part, cache]
    home.run(part.name, command, environment={"HF_HUB_OFFLINE": "1"})
