"""Right on this GPU: tiny models beside their source model, and under compute-sanitizer.

Run as a process of its own: `python -m bench.gpu.correctness ARTIFACT DEVICE NAME`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.gpu.results import Check

CASES = ("llama", "qwen3", "gemma2", "gpt_oss", "qwen3_moe", "deepseek_v3", "mamba2", "qwen3_next")
"""Of tests.tiny and tests.architectures: windows, soft-caps, sinks, experts, latent, recurrent."""
F32_TOLERANCE = {"qwen3_next": 1e-3}
"""A delta rule over keys of length one: on the CPU float32 is off by 1e-4 already."""
TOOLS = ("memcheck", "racecheck", "synccheck")
LENGTH = 75
FAULT = 99


@dataclass(frozen=True)
class Case:
    """A tiny model compiled; `tolerance` is of the logits, relative to the largest."""

    name: str
    compute: str
    tolerance: float


def cases(names: Sequence[str]) -> list[Case]:
    """Products in float32 to rounding errors, and as served: x in bf16."""
    return [
        Case(name, compute, tolerance)
        for name in names
        for compute, tolerance in (("f32", F32_TOLERANCE.get(name, 1e-4)), ("auto", 3e-2))
    ]


def check_all(names: Sequence[str], scratch: Path, target: str, device: str) -> list[Check]:
    """Compile, compare and sanitize every case."""
    checks = []
    for case in cases(names):
        label = f"{case.name}, compute {case.compute}"
        try:
            artifact = compile_case(case, scratch, target)
        except Exception as error:  # a refusal is a finding, not the end of the run
            checks.append(Check(label, None, f"does not compile: {error}"[:300]))
            continue
        command = [sys.executable, "-m", "bench.gpu.correctness", str(artifact), device, case.name]
        command.append(str(case.tolerance))
        checks.append(_run(f"{label}: parity", command))
        checks += [sanitize(f"{label}: {tool}", tool, command) for tool in TOOLS]
    return checks


def compile_case(case: Case, scratch: Path, target: str) -> Path:
    """An artifact of a tiny model."""
    import inferc
    from tests import tiny

    source = tiny.save(case.name, scratch / "tiny" / case.name)
    output = scratch / "tiny" / f"{case.name}-{case.compute}.inferc"
    context = tiny.case_of(case.name).context_tokens
    inferc.compile(
        source, output, target=target, compute=case.compute, context_tokens=context, tvm=False,
        step_tokens=64, sequences=8, overwrite=True,
    )  # fmt: skip
    return output


def sanitize(name: str, tool: str, command: Sequence[str]) -> Check:
    """The same command under a tool of compute-sanitizer."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"
    )
    if sanitizer is None:
        return Check(name, None, "compute-sanitizer is not installed")
    # Graphs would hide which kernel it was.
    environment = {**os.environ, "INFERC_CUDA": "no-graphs"}
    tools = [sanitizer, "--tool", tool, "--error-exitcode", str(FAULT), "--launch-timeout", "120"]
    return _run(name, [*tools, *command], environment)


def _run(name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> Check:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(name, False, "took more than 30 minutes")
    lines = (done.stdout + done.stderr).strip().splitlines() or [""]
    shown = lines[-1] if done.returncode == 0 else " / ".join(lines[-3:])
    return Check(name, done.returncode == 0, shown.replace("|", "/")[:300])


def compare(artifact: Path, device: str, name: str, tolerance: float) -> str:
    """Logits of whole, chunks, token by token; a batch beside alone. Raises AssertionError."""
    import inferc
    from tests import tiny

    longest = tiny.case_of(name).context_tokens or LENGTH
    ids = [int(t) for t in tiny.ids(name, 1, min(LENGTH, longest))[0]]
    wanted = tiny.logits(name, np.array([ids]))[0]
    with inferc.load(artifact, device=device, prefix_cache=False) as engine:
        whole = engine.logits(ids).copy()
        error = float(np.abs(whole - wanted).max() / np.abs(wanted).max())
        assert error < tolerance, f"logits are off by {error:.1e} of the largest"
        for chunk in (1, 16):
            assert np.array_equal(engine.logits(ids, chunk), whole), f"chunks of {chunk} differ"
        prompts = [ids[:length] for length in (3, 20, 41, 64)]
        options = {"max_tokens": 8, "ignore_eos": True, "temperature": 0.0}
        alone = [engine.generate(prompt, **options)[0].token_ids for prompt in prompts]
        together = [c.token_ids for c in engine.generate(prompts, **options)]
        assert alone == together, "a batch gives other tokens than its sequences alone"
    return f"largest error {error:.1e}"


if __name__ == "__main__":
    path, where, case_name, allowed = sys.argv[1:]
    print(compare(Path(path), where, case_name, float(allowed)))
