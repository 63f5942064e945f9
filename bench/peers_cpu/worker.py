"""One engine in a process of its own: `ENGINE_PYTHON worker.py ENGINE MODEL THREADS OPTIONS_JSON`.

Speaks JSON, a line a message, over stdin and stdout (what libraries print goes to stderr):

    first        -> {"version", "vocab", "load_s"}   load_s: from the imports' end to a first token
    {"prompts": [[id, ...], ...], "new": n}
                 -> {"first_s", "rest_s", "rest_tokens", "tokens"}

`first_s` runs until the first new token of every prompt is known; `rest_tokens` are all those that
came later, in `rest_s`. Ends with its stdin. Needs the standard library and the engine, not inferc.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

WARM_UP = [300, 301, 302, 303]


def serve(engine: Any, jobs: TextIO, answers: TextIO) -> None:
    """Load, then answer until the jobs end."""
    engine.prepare()
    begin = time.perf_counter()
    engine.load()
    engine.run([WARM_UP], 0)
    load_s = time.perf_counter() - begin
    _say(answers, {"version": engine.version(), "vocab": engine.vocab, "load_s": load_s})
    for line in jobs:
        job = json.loads(line)
        first_s, rest_s, tokens, late = engine.run(job["prompts"], job["new"])
        answer = {"first_s": first_s, "rest_s": rest_s, "rest_tokens": late, "tokens": tokens}
        _say(answers, answer)


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _end_with_parent() -> None:
    """Even if it stands still: a parent that is killed cannot end it (Linux)."""
    parent_died = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_died, signal.SIGKILL)


def main() -> None:
    """As told by the command line."""
    _end_with_parent()
    name, model, threads, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # After the environment's packages, so that no folder here hides one of theirs.
    sys.path[:1] = []
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from bench.peers_cpu.engines import make

    serve(make(name, model, int(threads), json.loads(options)), sys.stdin, answers)


if __name__ == "__main__":
    main()
