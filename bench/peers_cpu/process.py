"""The parent's end of a worker: starting, asking, stopping, and saying why it died."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers_cpu.machine import Watch, peak_memory_bytes

WORKER = Path(__file__).with_name("worker.py")


class WorkerFailed(Exception):
    """The engine gave no answer; the text says why, in a line."""


@dataclass(frozen=True)
class Launch:
    """How to start an engine: with which Python, on which model."""

    python: Path
    engine: str
    model: Path
    threads: int
    options: Mapping[str, str]
    environment: Mapping[str, str]
    log: Path


@dataclass(frozen=True)
class Answer:
    """What `worker` says of a job, and the share of the machine that others had meanwhile."""

    first_s: float
    rest_s: float
    rest_tokens: int
    tokens: list[list[int]]
    foreign: float


class Worker:
    """One engine at work in its own process, which stands still between jobs.

    Raises WorkerFailed from every method if the process ends or takes more than `limit_s`.
    """

    def __init__(self, launch: Launch, limit_s: float) -> None:
        self.launch, self.limit_s = launch, limit_s
        begin = time.perf_counter()
        with launch.log.open("wb") as log:
            self.process = subprocess.Popen(
                _command(launch), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=_environment(launch),
            )  # fmt: skip
        self.pid = self.process.pid
        watch = Watch(self.pid)
        self._rest = b""
        self.hello = self._answer()
        self.process_s = time.perf_counter() - begin
        self.start_foreign = watch.foreign()
        self._hold()

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> Answer:
        """One job, with nobody else's worker awake."""
        assert self.process.stdin is not None
        os.kill(self.pid, signal.SIGCONT)
        watch = Watch(self.pid)
        try:
            self.process.stdin.write(json.dumps({"prompts": prompts, "new": new}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._reason()) from None
        answer = self._answer()
        foreign = watch.foreign()
        self._hold()
        return Answer(**answer, foreign=foreign)

    def peak_memory_bytes(self) -> int:
        """The most that was resident so far."""
        return peak_memory_bytes(self.pid)

    def close(self) -> None:
        """End the process; it has nothing to save."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def _hold(self) -> None:
        """Engines spin between jobs, and that would be taken from the others."""
        os.kill(self.pid, signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        pipe, end = self.process.stdout.fileno(), time.monotonic() + self.limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.close()
                raise WorkerFailed(f"no answer within {self.limit_s:.0f} s")
            part = os.read(pipe, 1 << 20)
            if not part:
                raise WorkerFailed(self._reason())
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _reason(self) -> str:
        """How the process ended, and the last that it said."""
        code = self.process.wait()
        self.close()
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        said = self.launch.log.read_text(errors="replace").strip().splitlines()
        telling = [line for line in said if "assert" in line.lower()] or said
        return f"{how}: {telling[-1].strip()[:160]}" if telling else how


def _command(launch: Launch) -> list[str]:
    options = json.dumps(dict(launch.options))
    model = str(launch.model)
    return [str(launch.python), str(WORKER), launch.engine, model, str(launch.threads), options]


def _environment(launch: Launch) -> dict[str, str]:
    """This one's, with the engine's own; nothing is to be fetched while it runs."""
    threads = {"OMP_NUM_THREADS": str(launch.threads)}
    quiet = {"HF_HUB_OFFLINE": "1", "GGML_NO_BACKTRACE": "1"}
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, **threads, **quiet, **launch.environment}
