"""Artifacts of ours: compiled once for each state of the compiler, never measured when outdated."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from bench.peers_cpu.catalog import Peer
from bench.peers_cpu.home import ROOT, Home
from bench.peers_cpu.machine import describe
from inferc.codegen.row_objects import tvm_installed
from inferc.codegen.toolchain import find_compiler

COMPILER = ("inferc", "frontend", "ir", "passes", "codegen", "runtime", "report")
_COMPILE = (
    "import inferc, json, sys; source, target, options = sys.argv[1:];"
    "inferc.compile(source, target, overwrite=True, **json.loads(options))"
)


def up_to_date(home: Home, source: Path, target: Path, peer: Peer) -> Path:
    """The artifact of a model file, compiled unless this very compiler has made it from that file.

    Raises BuildFailed.
    """
    mark = target.with_name(f"{target.name}.made-by")
    ingredients = fingerprint(source, peer)
    if mark.exists() and mark.read_text() == f"{ingredients} {_content(target)}":
        return target
    mark.unlink(missing_ok=True)
    command = [sys.executable, "-c", _COMPILE, source, target, json.dumps(dict(peer.options))]
    home.run(f"compile-{target.stem}", command, cwd=ROOT)
    mark.write_text(f"{ingredients} {_content(target)}")
    return target


def fingerprint(source: Path, peer: Peer, root: Path = ROOT) -> str:
    """Digest of all that an artifact follows from: compilers, machine, options, model file."""
    file = source.stat()
    made_with = [str(find_compiler()), tvm_installed(), str(describe()), dict(peer.options)]
    facts = [*made_with, str(source), file.st_size, file.st_mtime_ns]
    total = hashlib.sha256(json.dumps(facts).encode())
    for path in sorted(file for folder in COMPILER for file in (root / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = path.read_bytes()
            total.update(f"{path.relative_to(root)}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def _content(artifact: Path) -> str:
    """Digest of the manifest, which holds those of all other files; empty without one."""
    manifest = artifact / "manifest.json"
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.exists() else ""
