"""The runtime's packages are enough to run; what wants more says so."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from inferc.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def packages_of_extras() -> set[str]:
    """Import names of all that only an extra brings."""
    lines = [line for extra in project()["optional-dependencies"].values() for line in extra]
    names = {re.match(r"[A-Za-z0-9_-]+", line)[0] for line in lines} - {"inferc"}
    imported = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi", "cuda-python": "cuda"}
    return {imported.get(name, name.replace("-", "_")) for name in names}


def without(names: set[str], *argv: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, ",".join(sorted(names)), *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_runtime_has_few_packages() -> None:
    names = [re.match(r"[A-Za-z0-9_-]+", line)[0] for line in project()["dependencies"]]
    assert names == ["numpy", "tokenizers", "jinja2"]


@pytest.mark.parametrize("options", [("hi",), ("hi", "--template"), ("hi", "--temperature", "1")])
def test_they_run_an_artifact(toy_artifact: Path, options: tuple[str, ...]) -> None:
    names = packages_of_extras()
    assert {"torch", "transformers", "tvm", "rich", "ml_dtypes", "safetensors"} <= names
    found = without(names, "run", toy_artifact, *options, "--max-tokens", "3")
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["inspect", "A"], r"'inferc\[report\]'"),
        (["bench", "A"], r"'inferc\[report\]'"),
        (["compile", "A"], r"'inferc\[compile\]'"),
    ],
)
def test_what_wants_more_says_so(toy_artifact: Path, argv: list[str], wanted: str) -> None:
    argv = [str(toy_artifact) if word == "A" else word for word in argv]
    found = without(packages_of_extras(), *argv)
    assert found.returncode == 3 and "Traceback" not in found.stderr
    assert re.search(
        rf"needs the package \w+, which is not installed: pip install {wanted}", found.stderr
    )
