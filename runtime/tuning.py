"""What `inferc tune` found best for an artifact on one machine, and whether it holds here.

None of the choices changes a result. They are read from `tuning.json`, a file of the artifact with
a digest in its manifest like any other; an artifact without it runs with the defaults.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferc.errors import ArtifactError
from inferc.runtime.artifact import Manifest, artifact_path
from inferc.runtime.fingerprint import host_fingerprint
from inferc.runtime.pool_choice import DEFAULT_POOL, PoolChoice
from inferc.runtime.schema import decode, encode

TUNING_FILE = "tuning.json"
SCHEMA_VERSION = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choices:
    """What may be chosen when an artifact is loaded; None: the default.

    Attributes:
        threads: workers of a step.
        pool: how they wait.
        chunk_tokens: most tokens of one prompt in one step.
    """

    threads: int | None = None
    pool: PoolChoice = DEFAULT_POOL
    chunk_tokens: int | None = None


@dataclass(frozen=True)
class Candidate:
    """One choice that was measured: its time, and the share of rounds in which it beat the default.

    `seconds` is the median over rounds.
    """

    choice: str
    value: str
    seconds: float
    wins: float
    taken: bool


@dataclass(frozen=True)
class Tuning:
    """The file. `host` is the machine it holds for."""

    host: Mapping[str, str]
    choices: Choices
    candidates: tuple[Candidate, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def holds_here(self) -> bool:
        """Whether this is the machine that was measured."""
        return dict(self.host) == host_fingerprint()

    def to_json(self) -> bytes:
        """The file's content."""
        return (json.dumps(encode(self), indent=1, sort_keys=True) + "\n").encode()


def read_tuning(folder: Path, manifest: Manifest) -> Tuning | None:
    """The tuning that an artifact lists, for whatever machine. Raises ArtifactError if damaged."""
    if TUNING_FILE not in manifest.files:
        return None
    path = artifact_path(folder, TUNING_FILE)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: damaged ({error}); run `inferc tune` again.") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: expected tuning schema {SCHEMA_VERSION}, found {version!r};"
            " run `inferc tune` again."
        )
    return decode(Tuning, data, str(path))


def choices_here(folder: Path, manifest: Manifest) -> Choices:
    """The choices that hold on this machine; the defaults where it is another one, with a note."""
    tuning = read_tuning(folder, manifest)
    if tuning is None:
        return Choices()
    if not tuning.holds_here:
        _log.warning(
            "%s was measured on another machine (%s) and is ignored; run `inferc tune` here.",
            folder / TUNING_FILE, tuning.host.get("cpu", "unknown"),
        )  # fmt: skip
        return Choices()
    return tuning.choices
