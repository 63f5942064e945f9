"""Which of our headers a source reaches: an object depends on no others."""

from __future__ import annotations

import re
from pathlib import Path

from inferc.codegen.render import INCLUDE

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def reached_headers(code: str, include: Path = INCLUDE) -> list[Path]:
    """Every header of ours that code reaches, whatever the preprocessor's conditions say.

    As a compiler does, a name is looked for beside the file that includes it, then in `include`.
    """
    found: dict[Path, None] = {}
    waiting = [(code, include)]
    while waiting:
        text, folder = waiting.pop()
        for name in _INCLUDE.findall(text):
            path = next((p for p in (folder / name, include / name) if p.is_file()), None)
            if path is not None and path not in found:
                found[path] = None
                waiting.append((path.read_text(encoding="utf-8"), path.parent))
    return sorted(found)
