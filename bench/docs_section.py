"""Put a generated section between its marks in a document; what stands around it stays."""

from __future__ import annotations

from pathlib import Path

PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"


def put_into_docs(path: Path, name: str, made_by: str, section: str) -> None:
    """Replace the section `name`; a document without it gets it before the part on GPUs.

    Marks: `<!-- name: made by `made_by` -->` and `<!-- /name -->`.
    """
    begin, end = f"<!-- {name}: made by `{made_by}` -->", f"<!-- /{name} -->"
    text = path.read_text(encoding="utf-8")
    body = f"{begin}\n{section.strip()}\n{end}"
    before, found, rest = text.partition(begin)
    if not found:
        before, heading, rest = text.partition("\n## GPUs\n")
        path.write_text(f"{before.rstrip()}\n\n{body}\n{heading}{rest}", encoding="utf-8")
        return
    _, ended, after = rest.partition(end)
    if not ended:
        raise SystemExit(f"{path}: expected the mark {end} after {begin}")
    path.write_text(before + body + after, encoding="utf-8")
