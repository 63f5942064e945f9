"""Checks that need the import name: `python -m tools.check types|layers [options of the checker]`.

The folders at the root are mapped to `inferc.*` by setuptools, which mypy and import-linter do not
know. This gives them a copy with the same mapping, read from pyproject.toml so that it cannot
go stale.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / ".cache" / "tree"
TYPED = ("ir", "passes", "codegen", "runtime")


def make_tree() -> None:
    """Make TREE/inferc afresh: the face with each mapped folder inside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    mapped = project["tool"]["setuptools"]["package-dir"]
    shutil.rmtree(TREE, ignore_errors=True)
    for name, folder in sorted(mapped.items()):
        if name.count(".") <= 1:  # folders below come along
            target = TREE / name.replace(".", "/")
            shutil.copytree(ROOT / folder, target, ignore=_no_python, dirs_exist_ok=True)


def _no_python(folder: str, names: list[str]) -> set[str]:
    kept = {n for n in names if n.endswith(".py") or (Path(folder) / n).is_dir()}
    return set(names) - kept | {"__pycache__"}


def types(options: list[str]) -> int:
    """Mypy --strict on the typed packages."""
    targets = [arg for package in TYPED for arg in ("-p", f"inferc.{package}")]
    # numpy's own stubs return Any from most functions.
    strict = ["--strict", "--no-warn-return-any"]
    command = [sys.executable, "-m", "mypy", *strict, *options, *targets]
    environment = {**os.environ, "MYPYPATH": str(TREE)}
    return subprocess.run(command, env=environment, cwd=ROOT).returncode


def layers(options: list[str]) -> int:
    """import-linter with the contracts of pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", *options]
    command.append(str(ROOT / "pyproject.toml"))
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    return subprocess.run(command, env=environment, cwd=TREE).returncode  # the folder comes first


if __name__ == "__main__":
    make_tree()
    sys.exit({"types": types, "layers": layers}[sys.argv[1]](sys.argv[2:]))
