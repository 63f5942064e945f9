"""inferc beside llama.cpp (through llama-cpp-python) on the same weights, interleaved in one run.

    python bench/beside_llama_cpp.py [--rounds 5] [--threads 2] [--out FILE.json]

Each engine lives in its own process and is timed in turn, round after round, so that drift of the
machine hits all alike; the read bandwidth is measured between the rounds. Greedy, end-of-sequence
ignored, prompts of random token ids, new ones each round (so no prefix cache helps). Figures are
medians over the rounds:

    prefill   tokens/s: 512 prompt tokens / time until the first new token is known
    decode    tokens/s: 128 tokens after the first that follows a 128-token prompt, one sequence
    decode x8 tokens/s: the same for 8 sequences at once, added up
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import random
import statistics
import sys
import time
from pathlib import Path

from inferc.runtime.host import default_threads

PROMPT, NEW, LONG, SEQUENCES = 128, 128, 512, 8
HERE = Path(__file__).parent


def prompts(count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(100, vocab - 100) for _ in range(length)] for _ in range(count)]


class LlamaCpp:
    """llama.cpp by its C interface: one batch a step, as its own benchmark tools do."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp as api
        import numpy as np

        self.api, self.np = api, np
        self.silent = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.silent, None)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 4096, 2048, 512, SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self.context = api.llama_init_from_model(self.model, params)
        self.batch = api.llama_batch_init(2048, 0, SEQUENCES)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        batch.n_tokens = len(rows)
        if self.api.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")

    def _argmax(self, row: int) -> int:
        pointer = self.api.llama_get_logits_ith(self.context, row)
        return int(self.np.ctypeslib.as_array(pointer, (self.vocab,)).argmax())

    def run(self, inputs: list[list[int]], new: int) -> tuple[float, float, int]:
        """Seconds to the first token of every prompt, seconds and tokens after that."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        start = time.perf_counter()
        tokens = []
        for s, ids in enumerate(inputs):
            last = len(ids) - 1
            self._decode([(t, p, s, p == last) for p, t in enumerate(ids)])
            tokens.append(self._argmax(last))
        middle = time.perf_counter()
        for step in range(new):
            position = len(inputs[0]) + step
            self._decode([(t, position, s, True) for s, t in enumerate(tokens)])
            tokens = [self._argmax(s) for s in range(len(tokens))]
        return middle - start, time.perf_counter() - middle, new * len(inputs)


class Inferc:
    """Our engine, through the same calls a server makes."""

    def __init__(self, path: str, threads: int) -> None:
        import inferc

        self.engine = inferc.load(path, threads=threads)
        self.vocab = self.engine.manifest.model.vocab_size

    def run(self, inputs: list[list[int]], new: int) -> tuple[float, float, int]:
        from inferc import SamplingParams

        params = SamplingParams(max_tokens=new + 1, ignore_eos=True)
        start = time.perf_counter()
        for ids in inputs:
            self.engine.add_request(ids, params)
        started: set[int] = set()
        middle, tokens = start, 0
        while self.engine.has_work:
            all_started = len(started) == len(inputs)
            events = [event for event in self.engine.step() if event.token is not None]
            if all_started:
                tokens += len(events)
                continue
            started |= {event.request for event in events}
            middle = time.perf_counter()
        return middle - start, time.perf_counter() - middle, tokens


ENGINES = {"llama.cpp": LlamaCpp, "inferc": Inferc}


def serve(engine: str, path: str, threads: int, pipe) -> None:
    runner = ENGINES[engine](path, threads)
    pipe.send(runner.vocab)
    while (job := pipe.recv()) is not None:
        count, length, new, seed = job
        pipe.send(runner.run(prompts(count, length, runner.vocab, seed), new))


def bandwidth(threads: int) -> float:
    """Bytes a second of reading memory, through the probe that `inferc bench` uses."""
    from inferc.runtime.bandwidth import read_bandwidth

    return read_bandwidth(threads)


def measure(pairs: dict[str, dict[str, str]], rounds: int, threads: int) -> list[dict]:
    jobs = {
        "prefill": (1, LONG, 0),
        "decode": (1, PROMPT, NEW),
        "decode x8": (SEQUENCES, PROMPT, NEW),
    }
    context = mp.get_context("spawn")
    rows = []
    for weights, paths in pairs.items():
        workers = {}
        for engine, path in paths.items():
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(engine, path, threads, theirs), daemon=True
            )
            process.start()
            theirs.close()  # so that the death of the process ends `recv`
            ours.recv()
            workers[engine] = (process, ours)
        figures: dict[tuple[str, str], list[float]] = {}
        limits: list[float] = []
        for round_ in range(rounds + 1):
            limits.append(bandwidth(threads))
            for figure, job in jobs.items():
                for engine, (_, pipe) in workers.items():
                    pipe.send((*job, round_))
                    first, rest, tokens = pipe.recv()
                    rate = job[1] / first if figure == "prefill" else tokens / rest
                    if round_:  # the first round warms up
                        figures.setdefault((figure, engine), []).append(rate)
        for process, pipe in workers.values():
            pipe.send(None)
            process.join()
        rows += table(weights, jobs, figures, limits)
    return rows


def table(weights: str, jobs, figures, limits: list[float]) -> list[dict]:
    rows = []
    for figure in jobs:
        ours, theirs = figures[figure, "inferc"], figures[figure, "llama.cpp"]
        rows.append(
            {
                "figure": figure,
                "weights": weights,
                "inferc": round(statistics.median(ours), 1),
                "llama.cpp": round(statistics.median(theirs), 1),
                "ratio": round(statistics.median(ours) / statistics.median(theirs), 2),
                "spread": [[round(min(r), 1), round(max(r), 1)] for r in (ours, theirs)],
                "read_gb_per_s": round(statistics.median(limits) / 1e9, 1),
            }
        )
        shown = "  ".join(f"{name} {rows[-1][name]:8.1f}" for name in ENGINES)
        print(f"{weights:6} {figure:10} {shown}  ratio {rows[-1]['ratio']:.2f}", flush=True)
    return rows


def bf16_gguf(source: Path, target: Path) -> None:
    """The same model with every matrix in bf16: dequantised, rounded to nearest even."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            values = gguf.quantize(values, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, values, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def prepare(cache: Path) -> dict[str, dict[str, str]]:
    """Model files and artifacts of both weights, made once."""
    import inferc

    sys.path.insert(0, str(HERE.parent / "examples"))
    from find_model import smollm2

    cache.mkdir(parents=True, exist_ok=True)
    files = {"q4_1": smollm2(), "bf16": cache / "smollm2-bf16.gguf"}
    if not files["bf16"].exists():
        bf16_gguf(files["q4_1"], files["bf16"])
    pairs = {}
    for weights, path in files.items():
        artifact = cache / f"smollm2-{weights}.inferc"
        inferc.compile(str(path), str(artifact), overwrite=True)
        pairs[weights] = {"llama.cpp": str(path), "inferc": str(artifact)}
    return pairs


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=default_threads())
    p.add_argument("--cache", type=Path, default=HERE.parent / ".cache" / "bench")
    p.add_argument("--out", type=Path, default=HERE / "results" / "cpu-llama-cpp.json")
    args = p.parse_args()
    rows = measure(prepare(args.cache), args.rounds, args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
