"""Where peers live: their sources, environments and models, by default under `.cache/peers`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class BuildFailed(Exception):
    """A step of a build went wrong; the text names it."""


@dataclass(frozen=True)
class Home:
    """The folders, made when asked for; `jobs` is how many processes a build may take."""

    folder: Path
    jobs: int = 2

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from building in it. Raises SystemExit if another process does."""
        with self.place("lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SystemExit(f"{self.folder}: another run works in this folder") from None
            yield

    def place(self, *names: str) -> Path:
        """A folder or file below, with its parent made."""
        path = self.folder.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def python(self, environment: str) -> Path:
        """The Python of an environment, which may not be there yet."""
        return self.place("envs", environment) / "bin" / "python"

    def make_environment(self, environment: str) -> Path:
        """A virtual environment with pip; kept if it is there."""
        python = self.python(environment)
        if not python.exists():
            self.run(f"{environment}-venv", [sys.executable, "-m", "venv", python.parents[1]])
        return python

    def pip(self, environment: str, *arguments: str) -> None:
        """Run pip of an environment, as `pip ARGUMENTS`."""
        pip = [self.python(environment), "-m", "pip", "--disable-pip-version-check"]
        self.run(f"{environment}-pip", [*pip, *arguments])

    def run(self, log: str, command: Sequence[Any], **options: Any) -> None:
        """Run a step with its output in a log. Raises BuildFailed with the end of it."""
        path = self.place("logs", f"{log}.log")
        words = [str(word) for word in command]
        print(f"  {' '.join(words)[:120]}", file=sys.stderr, flush=True)
        extra = {k: str(v) for k, v in options.pop("environment", {}).items()}
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | extra
        with path.open("ab") as file:
            done = subprocess.run(words, stdout=file, stderr=file, env=environment, **options)
        if done.returncode:
            said = path.read_text(errors="replace").strip().splitlines()[-1:]
            what = f"{Path(words[0]).name} {' '.join(words[1:4])}"
            raise BuildFailed(f"{what} ended with {done.returncode}: {''.join(said)[:200]}")


def tree_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a folder, without links and compiled Python."""
    if path.is_file():
        return path.stat().st_size
    files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files if "__pycache__" not in file.parts)
