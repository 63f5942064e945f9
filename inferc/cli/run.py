"""`inferc run`: generate text with an artifact."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferc.cli.options import count
from inferc.errors import RequestError

if TYPE_CHECKING:
    from inferc.runtime.engine import Engine
    from inferc.runtime.events import Event

# option -> (type, help); the names are the fields of SamplingParams.
SAMPLING: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "most new tokens"),
    "temperature": (float, "0 is greedy"),
    "top_k": (int, "keep the k most likely tokens"),
    "top_p": (float, "keep the most likely tokens that make up this probability"),
    "min_p": (float, "keep tokens at least this likely, relative to the likeliest"),
    "repetition_penalty": (float, "above 1 discourages tokens of prompt and answer"),
    "presence_penalty": (float, "discourages tokens of the answer"),
    "frequency_penalty": (float, "discourages tokens of the answer, by count"),
    "seed": (int, "makes sampling repeatable"),
}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="generate text with an artifact",
        description="Continue a prompt, answer it as a chat message, or chat. Without a prompt the "
        "text is read from stdin. Sampling defaults are the model's own.",
    )
    p.add_argument("artifact", type=Path, help="folder made by `inferc compile`")
    p.add_argument("prompt", nargs="?", help="prompt; `-` or none reads stdin")
    p.add_argument(
        "--chat", action="store_true", help="talk to the model until an empty line or ^D"
    )
    p.add_argument(
        "--template",
        action="store_true",
        help="treat the prompt as a message, by the chat template",
    )
    p.add_argument("--system", metavar="TEXT", help="system message for --chat and --template")
    p.add_argument("--stats", action="store_true", help="print load time, tokens/s to stderr")
    p.add_argument("--device", help="cpu, cuda or cuda:N (default: what the artifact is for)")
    p.add_argument("--threads", type=count, help="worker threads (default: physical cores)")
    p.add_argument("--kv-mib", type=count, metavar="N", help="memory for the KV cache")
    p.add_argument(
        "--no-check", action="store_true", help="skip the digests of the artifact's files"
    )
    p.add_argument("--stop", action="append", metavar="TEXT", help="end at this text (repeatable)")
    p.add_argument("--ignore-eos", action="store_true", help="go on after the end-of-text token")
    for name, (kind, text) in SAMPLING.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=kind, default=None, help=text)
    return p


def run(args: argparse.Namespace) -> int:
    """Generate."""
    import inferc

    if args.system is not None and not (args.chat or args.template):
        raise RequestError("--system goes with --chat or --template; a plain prompt has no roles")
    start = time.perf_counter()
    engine: Engine = inferc.load(
        args.artifact,
        device=args.device,
        threads=args.threads,
        kv_budget_bytes=args.kv_mib << 20 if args.kv_mib else None,
        check=not args.no_check,
    )
    with engine:
        loaded = time.perf_counter() - start
        if args.chat:
            return _chat(engine, args)
        prompt = _prompt(args)
        if args.template:
            events = engine.chat_stream(_messages(args, prompt), **_sampling(args))
        else:
            events = engine.stream(prompt, **_sampling(args))
        speed = _print(events)
    if args.stats:
        print(f"load {loaded:.2f} s, {speed}", file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt not in (None, "-"):
        return str(args.prompt)
    if sys.stdin.isatty():
        print("reading the prompt from stdin; ^D ends it", file=sys.stderr)
    text = _read(sys.stdin.read)
    if not text:
        raise RequestError("the prompt from stdin is empty")
    return text


def _read(read: Callable[[], str]) -> str:
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"stdin: expected UTF-8 text, found the byte 0x{error.object[error.start]:02x}"
            f" at position {error.start}; convert it first, for example with iconv"
        ) from None


def _messages(args: argparse.Namespace, text: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": text}]


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    chosen = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    if args.stop:
        chosen["stop"] = tuple(args.stop)
    if args.ignore_eos:
        chosen["ignore_eos"] = True
    return chosen


@dataclass
class _Speed:
    """Times of one answer."""

    first_token_s: float = 0.0
    total_s: float = 0.0
    tokens: int = 0
    text: str = ""

    def __str__(self) -> str:
        rest = self.total_s - self.first_token_s
        rate = f", {(self.tokens - 1) / rest:.0f} tokens/s" if self.tokens > 1 and rest > 0 else ""
        return f"first token {self.first_token_s * 1e3:.0f} ms, {self.tokens} tokens{rate}"


def _print(events: Iterable[Event]) -> _Speed:
    """Write the text as it comes."""
    speed, start = _Speed(), time.perf_counter()
    for event in events:
        if event.token is not None:
            speed.tokens += 1
            if speed.tokens == 1:
                speed.first_token_s = time.perf_counter() - start
        sys.stdout.write(event.text)
        sys.stdout.flush()
        speed.text += event.text
    speed.total_s = time.perf_counter() - start
    print()
    return speed


def _chat(engine: Engine, args: argparse.Namespace) -> int:
    if args.prompt is not None:
        raise RequestError("--chat reads the messages as you type; leave the prompt out")
    messages = _messages(args, "")[:-1]
    while True:
        try:
            line = _read(lambda: input("> " if sys.stdin.isatty() else "")).strip()
        except EOFError:
            return 0
        if not line:
            return 0
        messages.append({"role": "user", "content": line})
        speed = _print(engine.chat_stream(messages, **_sampling(args)))
        if args.stats:
            print(speed, file=sys.stderr)
        messages.append({"role": "assistant", "content": speed.text})
