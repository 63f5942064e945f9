"""The artifact's schema, and reading it: the one contract between the compiler and the runtime.

The compiler fills a `Manifest` and writes it with `artifact_writer.write_artifact`; the runtime
reads it with `read_manifest`, checks digests, and picks a target (`target_choice`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferc.errors import ArtifactError
from inferc.runtime.schema import decode, encode, key_names

SCHEMA_VERSION = 1
ABI_VERSION = 5
READABLE_ABI_VERSIONS = (1, 2, 3, 4, 5)
"""Versions of the CPU step library that run: each only added to the one before (step_abi.h)."""
CUDA_ABI_VERSION = 1
WEIGHT_ALIGNMENT_BYTES = 64
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the source model."""

    name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    context_tokens: int
    parameters: int
    parameter_bytes: int


@dataclass(frozen=True)
class TokenFacts:
    """Special tokens. `eos` is the union of all sources; `add_bos`: prompts begin with `bos`."""

    eos: tuple[int, ...]
    bos: int | None
    pad: int | None
    add_bos: bool


@dataclass(frozen=True)
class TargetEntry:
    """One compiled step library and the machine it needs. `sha256` is filled in on writing.

    Attributes:
        name: as `inferc targets` lists it.
        kind: `cpu` or `cuda`.
        machine: machine of the library, such as `x86_64`; for cuda that of the host.
        isa: instruction sets of that machine that must be present.
        library: path of the step library; targets of several architectures may share one.
        abi_version: version of the library's interface, counted for each kind by itself.
        arch: cuda: what the kernels were compiled for, such as `sm_90a`.
        kernels: cuda: folder of the cubins, `<unit>.cubin`.
        toolkit: cuda: version of the compiler, such as `13.0`; the driver must know its major.
    """

    name: str
    kind: str
    machine: str
    isa: tuple[str, ...]
    library: str
    sha256: str = ""
    abi_version: int = ABI_VERSION
    arch: str | None = None
    kernels: str | None = None
    toolkit: str | None = None


@dataclass(frozen=True)
class Limits:
    """Shapes the step was planned for: most rows and sequences of one step, longest sequence."""

    step_tokens: int
    sequences: int
    context_tokens: int


@dataclass(frozen=True)
class CacheEntry:
    """One paged cache (usually a layer's). `window_tokens` is None for full attention.

    With `v_in_k` the values are the first `v_dim` components of the keys, and not stored.
    """

    name: str
    kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int | None
    v_in_k: bool = False


@dataclass(frozen=True)
class KvPlan:
    """Paging of all caches; one page id addresses the same page of every cache."""

    page_tokens: int
    dtype: str
    bytes_per_token: int
    page_bytes: int
    caches: tuple[CacheEntry, ...]


@dataclass(frozen=True)
class StateEntry:
    """One recurrent state; `nbytes` and `shape` are those of a sequence."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes the executor provides besides KV pages."""

    arena_bytes: int
    weights_bytes: int


@dataclass(frozen=True)
class PackedTensor:
    """One packed weight. `offset_bytes` is absolute in the file, a multiple of 64."""

    name: str
    layout: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    nbytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class PackedWeights:
    """The weights file; tensors stand in the order of the step's `weights` argument."""

    file: str
    tensors: tuple[PackedTensor, ...]


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`. Keys named in `required` must be known to the reader; others may be new.

    `targets` of the kind `cpu` stand from the most to the least capable; all share weights, KV
    layout and memory plan.
    """

    tool_version: str
    model: ModelFacts
    tokens: TokenFacts
    targets: tuple[TargetEntry, ...]
    limits: Limits
    kv: KvPlan
    memory: MemoryPlan
    weights: PackedWeights
    states: tuple[StateEntry, ...] = ()
    schema_version: int = SCHEMA_VERSION
    required: tuple[str, ...] = ()
    kernels: Any = None
    files: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""
    """Of everything else in here (`manifest_digest`); filled in on writing."""

    def to_json(self) -> str:
        """Canonical text: sorted keys, so that equal manifests are equal bytes."""
        return json.dumps(encode(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_manifest(folder: Path | str) -> Manifest:
    """Read and validate `manifest.json`; refuses newer schemas and unknown required keys."""
    path = Path(folder) / MANIFEST_NAME
    data = _read_json_object(path)
    _check_version(data, path)
    manifest = decode(Manifest, data, MANIFEST_NAME)
    _check_sizes(manifest, path)
    unknown = sorted(set(manifest.required) - key_names(Manifest))
    if unknown:
        raise ArtifactError(
            f"{path}: the artifact requires {', '.join(unknown)}, which this version of inferc does"
            f" not know (it was written by {manifest.tool_version}). Upgrade inferc."
        )
    return manifest


def check_digests(folder: Path | str, manifest: Manifest) -> None:
    """Compare every file, the manifest first, with the digest recorded for it."""
    check_manifest(folder, manifest)
    for relative, expected in sorted(manifest.files.items()):
        path = artifact_path(folder, relative)
        try:
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            raise ArtifactError(
                f"{path}: the artifact lists this file, but it is missing."
            ) from None
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read ({error.strerror}).") from error
        _compare(path, expected, found)


def check_manifest(folder: Path | str, manifest: Manifest) -> None:
    """Compare the manifest with its own digest."""
    path = Path(folder) / MANIFEST_NAME
    if manifest.sha256:
        _compare(path, manifest.sha256, manifest_digest(_read_json_object(path)))


def manifest_digest(data: Mapping[str, Any]) -> str:
    """Digest of the manifest's JSON object without its own digest, keys unknown here included."""
    rest = {key: value for key, value in data.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _compare(path: Path, expected: str, found: str) -> None:
    if found != expected:
        raise ArtifactError(
            f"{path}: the file is damaged: expected SHA-256 {expected[:12]}…, found"
            f" {found[:12]}…. Compile the model again or copy the artifact anew."
        )


def artifact_path(folder: Path | str, relative: str) -> Path:
    """Path of a file in the artifact; refuses names that lead out of it."""
    parts = Path(relative)
    if parts.is_absolute() or ".." in parts.parts:
        raise ArtifactError(f"{MANIFEST_NAME}: '{relative}' leads out of the artifact's folder.")
    return Path(folder) / parts


def _read_json_object(path: Path) -> dict[str, Any]:
    folder = path.parent
    if folder.is_file():
        raise ArtifactError(f"{folder}: expected an artifact's folder, found a file.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = "has no manifest.json" if folder.is_dir() else "does not exist"
        raise ArtifactError(
            f"{folder}: expected an artifact made by `inferc compile`, but the folder {what}."
        ) from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise ArtifactError(f"{path}: the file is damaged, it is not JSON ({error}).") from error
    if not isinstance(data, dict):
        raise ArtifactError(f"{path}: expected a JSON object, found {type(data).__name__}.")
    return data


def _check_version(data: dict[str, Any], path: Path) -> None:
    """Before anything else is decoded: a newer schema may have changed everything else."""
    version = data.get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise ArtifactError(f"{path}: expected schema_version 1 or above, found {version!r}.")
    if version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: the artifact has schema version {version}, written by inferc"
            f" {data.get('tool_version', '(unknown)')}; this version reads up to {SCHEMA_VERSION}."
            " Upgrade inferc, or compile the model again with this version."
        )


def _check_sizes(manifest: Manifest, path: Path) -> None:
    """Buffers and loops are sized by these."""
    limits = manifest.limits
    least = {
        "model.vocab_size": (manifest.model.vocab_size, 1),
        "limits.step_tokens": (limits.step_tokens, 1),
        "limits.sequences": (limits.sequences, 1),
        "limits.context_tokens": (limits.context_tokens, 1),
        "kv.page_tokens": (manifest.kv.page_tokens, 1),
        "memory.arena_bytes": (manifest.memory.arena_bytes, 0),
    }
    for name, (value, low) in least.items():
        if value < low:
            raise ArtifactError(f"{path}: {name}: expected at least {low}, found {value}.")
