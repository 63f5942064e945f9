"""`inferc compile`: model to artifact."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferc.cli.options import count

if TYPE_CHECKING:
    from inferc.options import Event

# option -> keyword arguments of add_argument; the names are the fields of CompileOptions.
OPTIONS: dict[str, dict[str, Any]] = {
    "target": {
        "help": "see `inferc targets` (default cpu:native); several CPUs joined by commas go "
        "into one artifact, and the best is chosen at load"
    },
    "compute": {
        "choices": ("auto", "f32", "bf16", "int16", "int8"),
        "help": "arithmetic of matrix products; auto: bf16 dot products for bf16 weights where the "
        "target has them, int16 for quantised weights on x86, else f32; int16 and int8 round "
        "activations, 16 bits by about as much as sums of float32 round anyway",
    },
    "prefill_precision": {
        "choices": ("auto", "f32", "int16", "int8"),
        "help": "CPU: arithmetic of the products of prompts; int8 rounds activations, is faster, "
        "and has other bits than decode (default auto: as --compute)",
    },
    "kv_dtype": {
        "choices": ("auto", "f32", "bf16", "f16", "f8e4m3", "i8"),
        "help": "type of stored keys and values (auto: bf16, or f32 on a CPU where the "
        "model's matrices are f32); i8 has a scale for each token and KV head; f8e4m3 (without "
        "scales) is for GPUs",
    },
    "page_tokens": {"type": count, "metavar": "N", "help": "tokens of a KV page"},
    "step_tokens": {"type": count, "metavar": "N", "help": "most rows of one step"},
    "sequences": {"type": count, "metavar": "N", "help": "most sequences of one step"},
    "context_tokens": {
        "type": count,
        "metavar": "N",
        "help": "longest sequence (default: the model's)",
    },
    "dump": {"type": Path, "metavar": "DIR", "help": "write the module after every pass to DIR"},
}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "compile",
        help="model to artifact",
        description="Compile a Hugging Face directory (config.json, *.safetensors, tokenizer.json),"
        " a GGUF file or an ONNX model to an artifact: one folder that `inferc run` needs nothing"
        " else for.",
    )
    p.add_argument("source", type=Path, help="model directory, .gguf or .onnx file")
    p.add_argument("-o", "--output", type=Path, help="artifact folder (default NAME.inferc)")
    add_options(p)
    p.add_argument(
        "--check-passes",
        action="store_true",
        help="interpret the module before and after every pass and report the largest error",
    )
    p.add_argument("--overwrite", action="store_true", help="replace an artifact that is there")
    p.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    return p


def add_options(p: argparse.ArgumentParser) -> None:
    """Declare the options of a compilation that change what is computed."""
    for name, keywords in OPTIONS.items():
        p.add_argument(f"--{name.replace('_', '-')}", default=None, **keywords)
    p.add_argument(
        "--fast-prefill",
        action="store_true",
        help="CUDA: prefill by the fastest instructions (wgmma on sm_90a); the last bits of a "
        "token then depend on how many rows its step has",
    )
    p.add_argument(
        "--no-tvm", action="store_true", help="do without TVM where a header kernel exists"
    )


def chosen_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, by the names of `CompileOptions`."""
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    if args.fast_prefill:
        options["fast_prefill"] = True
    if args.no_tvm:
        options["tvm"] = False
    return options


def run(args: argparse.Namespace) -> int:
    """Compile."""
    import inferc

    output = args.output or Path(args.source.resolve().stem + ".inferc")
    start = time.perf_counter()
    with ShownProgress(quiet=args.quiet) as progress:
        manifest = inferc.compile(
            args.source,
            output,
            progress=progress.show,
            check_passes=args.check_passes,
            overwrite=args.overwrite,
            **chosen_options(args),
        )
    if progress.check:
        print(f"passes checked: {progress.check}")
    if not args.quiet:
        for note in progress.notes:
            print(f"note: {note}")
        size = sum(f.stat().st_size for f in output.rglob("*") if f.is_file())
        print(
            f"{output}: {manifest.model.architecture}, {manifest.model.parameters / 1e6:.0f} M "
            f"parameters, {size / 1e6:.0f} MB, in {time.perf_counter() - start:.1f} s"
        )
        print(f"next: inferc run {output} --chat   or   inferc inspect {output}")
    return 0


class ShownProgress:
    """A bar a stage on a terminal, a line a stage elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.bars, self.stage = quiet, None, ""
        self.check = ""  # what --check-passes found
        self.notes: list[str] = []

    def __enter__(self) -> ShownProgress:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            percent = TextColumn("{task.percentage:>3.0f}%")
            detail = TextColumn("{task.fields[detail]}")
            stage = TextColumn("{task.description:8}")
            columns = (stage, BarColumn(24), percent, TimeElapsedColumn(), detail)
            self.bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bars.start()
            self.tasks: dict[str, Any] = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def show(self, event: Event) -> None:
        """Take one progress event."""
        if event.stage == "check":
            self.check = event.detail
            return
        if event.stage == "note":
            self.notes.append(event.detail)
            return
        if self.bars is not None:
            if event.stage not in self.tasks:
                self.tasks[event.stage] = self.bars.add_task(event.stage, total=None, detail="")
            self.bars.update(
                self.tasks[event.stage], completed=event.done, total=event.total or None,
                detail=event.detail[-48:],
            )  # fmt: skip
        elif not self.quiet and event.stage != self.stage:
            print(f"{event.stage} …", file=sys.stderr, flush=True)
        self.stage = event.stage
