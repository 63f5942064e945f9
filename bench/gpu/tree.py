"""The import name without installing: a folder of links with the mapping of pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREE = ROOT / ".cache" / "links"
NEEDED = {
    "numpy": "numpy", "jinja2": "jinja2", "networkx": "networkx", "torch": "torch",
    "transformers": "transformers", "safetensors": "safetensors", "tokenizers": "tokenizers",
    "ml_dtypes": "ml_dtypes", "cuda.bindings": "cuda-python",
}  # fmt: skip
"""Modules that compiling and running need, and the packages they are in."""


def make_importable() -> None:
    """Let this process and its children import `inferc` from the working tree."""
    if importlib.util.find_spec("inferc.codegen") is None:
        link_tree()
        sys.path.insert(0, str(TREE))
    paths = [str(ROOT), str(TREE), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def link_tree() -> None:
    """Make TREE/inferc: links to the files of the face and to the mapped folders."""
    mapped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = TREE / "inferc"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {f.name: f for f in (ROOT / "inferc").glob("*.py")}
    for name, folder in mapped["package-dir"].items():
        if name.count(".") == 1:
            wanted[name.partition(".")[2]] = ROOT / folder
    for link in package.iterdir():
        if link.name not in wanted and link.is_symlink():
            link.unlink()
    for name, target in wanted.items():
        link = package / name
        if not link.is_symlink():
            link.symlink_to(target)


def missing() -> list[str]:
    """Packages that are not here."""
    return [package for module, package in NEEDED.items() if not _is_here(module)]


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
