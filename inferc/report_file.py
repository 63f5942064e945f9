"""The report of an artifact as a file: JSON in gzip.

Here, and not in `report`, because the runtime reads it for the names of modules.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferc.errors import ArtifactError

REPORT_FILE = "report.json.gz"
_PLAIN_FILE = "report.json"


def encode(report: Mapping[str, Any]) -> bytes:
    """The file's content: equal bytes for equal reports, so without a name and a time."""
    text = json.dumps(report, indent=1, sort_keys=True) + "\n"
    return gzip.compress(text.encode(), mtime=0)


def path_in(artifact: Path) -> Path:
    """Where the report is; artifacts of earlier versions hold it as plain text."""
    path, plain = artifact / REPORT_FILE, artifact / _PLAIN_FILE
    return plain if plain.exists() and not path.exists() else path


def read(artifact: Path) -> Any:
    """Whatever JSON the file holds. Raises ArtifactError where it is missing or damaged."""
    path = path_in(artifact)
    try:
        content = path.read_bytes()
        return json.loads(gzip.decompress(content) if path.name == REPORT_FILE else content)
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(
            f"{path}: not found; {artifact} is not an inferc artifact, or its report was removed"
        ) from None
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArtifactError(f"{path}: damaged ({error}); compile the model again") from None
