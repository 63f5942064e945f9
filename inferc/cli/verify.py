"""`inferc verify`: an artifact's logits against the source model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from inferc.cli.options import count

if TYPE_CHECKING:
    from inferc.verify import Verification


# who read the source -> words
_LOADERS = {
    "transformers": "transformers",
    "inferc": "transformers, weights by inferc",
    "onnxruntime": "ONNX Runtime",
}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="compare logits with the source model",
        description="Run the source model with transformers and compare the logits of every "
        "position: in one piece, in chunks, and token by token. The result is stored in the "
        "artifact as verification.json. Exit code 1 if the error is above the tolerance of the "
        "artifact's arithmetic. Needs the compiler's packages and room for the model in float32.",
    )
    p.add_argument("artifact", type=Path, help="folder made by `inferc compile`")
    p.add_argument("source", type=Path, help="what it was made from: directory, .gguf or .onnx")
    p.add_argument(
        "--tokens", type=count, metavar="N", help="prompt length (default: past the sliding window)"
    )
    p.add_argument("--prompt", metavar="TEXT", help="prompt, repeated to N tokens")
    p.add_argument("--float64", action="store_true", help="compute the reference in float64")
    p.add_argument("--device", help="cpu, cuda or cuda:N (default: what the artifact is for)")
    p.add_argument("--threads", type=count, help="worker threads (default: physical cores)")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.add_argument("--no-store", action="store_true", help="leave the artifact as it is")
    return p


def run(args: argparse.Namespace) -> int:
    """Compare and print; 0 if within the tolerance."""
    from inferc.verify import verify

    result = verify(
        args.artifact,
        args.source,
        tokens=args.tokens,
        prompt=args.prompt,
        precision="float64" if args.float64 else "float32",
        device=args.device,
        threads=args.threads,
        store=not args.no_store,
        progress=_progress,
    )
    if args.json:
        print(result.to_json(), end="")
    else:
        _print(result)
    return 0 if result.passed else 1


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="\r", file=sys.stderr, flush=True)


def _print(result: Verification) -> None:
    who = _LOADERS[result.loader]
    print(f"{result.source}: {len(result.token_ids)} tokens, reference {who} {result.precision}")
    print(
        f"{'':16}{'relative error':>24}{'KL divergence':>26}{'top-1':>10}\n"
        f"{'':16}{'max':>12}{'mean':>12}{'max':>14}{'mean':>12}{'agrees':>10}"
    )
    for way in result.ways:
        d = way.distance
        print(
            f"{way.name:16}{d.relative_error_max:>12.2e}{d.relative_error_mean:>12.2e}"
            f"{d.kl_max:>14.2e}{d.kl_mean:>12.2e}{d.top1_agreement:>10.1%}"
        )
    agree = "yes" if result.bit_equal else "no, prefill rounds otherwise" if result.passed else "NO"
    print(f"the three ways agree bit for bit: {agree}")
    print(f"greedy tokens: {_greedy(result)}")
    for note in result.notes:
        print(f"note: {note}")
    verdict = "passed" if result.passed else "FAILED"
    print(
        f"{verdict}: the tolerance of compute {result.compute} with KV {result.kv_dtype}"
        f" is {result.tolerance.max:g} in a row, {result.tolerance.mean:g} in the mean"
    )


def _greedy(result: Verification) -> str:
    g = result.greedy
    text = f"{g.equal_tokens} of {g.tokens} equal"
    if g.margin is None:
        return text
    return f"{text}; at the first difference the reference's token led by {g.margin:.2g} logits"
