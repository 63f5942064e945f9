"""Writes `docs/ops.md` from the cards: `python -m inferc.ir.reference_page`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from inferc.ir.card import CARDS, Attr, Card
from inferc.ir.stages import STAGES
from inferc.ir.text import format_attr

PAGE = Path("docs") / "ops.md"
_FAMILIES = {
    "": "Parameters",
    "core": "Core tensor ops",
    "nn": "Model ops",
    "serve": "State and attention over it",
    "fuse": "Groups",
}


def reference_page() -> str:
    """The page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Ops"
    yield ""
    yield "Written from the op cards in `ir/ops/` by `python -m inferc.ir.reference_page`."
    yield ""
    yield "Operands show their axes; `..` is any number of leading axes, `?` marks an operand that"
    yield "may be left out, `*` any number of them. Sizes with one name are equal."
    yield ""
    yield from _stages()
    for family, title in _FAMILIES.items():
        yield ""
        yield f"## {title}"
        for spec in CARDS.values():
            if spec.name.rpartition(".")[0] == family:
                yield ""
                yield from _card(spec)


def _stages() -> Iterator[str]:
    yield "## Stages"
    yield ""
    yield "| stage | what holds | ops |"
    yield "|---|---|---|"
    for stage in STAGES.values():
        yield f"| {stage.name} | {stage.summary} | {_allowed(stage.ops)} |"


def _allowed(ops: frozenset[str]) -> str:
    """Families as a whole with `.*`, less what is missing, or names."""
    parts: list[str] = []
    for family in ("core", "nn", "serve"):
        whole = {name for name in CARDS if name.startswith(f"{family}.")}
        missing = whole - ops
        if len(missing) * 2 < len(whole):
            but = ", ".join(f"`{n}`" for n in sorted(missing))
            parts.append(f"`{family}.*`" + (f" (not {but})" if but else ""))
        else:
            parts += [f"`{name}`" for name in sorted(whole & ops)]
    parts += [f"`{name}`" for name in ("param", "fuse.group") if name in ops]
    return ", ".join(parts)


def _card(spec: Card) -> Iterator[str]:
    yield f"### `{spec.name}({', '.join(spec.operands)})`"
    yield ""
    yield spec.summary
    if spec.attrs or spec.stateful or spec.reads is not None:
        yield ""
    for attr in spec.attrs:
        yield f"- {_attr(attr)}"
    notes: list[str] = []
    if spec.stateful:
        notes.append("makes a new version of its state")
    if spec.reads is not None:
        notes.append("reads a part of some operand only")
    if notes:
        yield f"- It {' and '.join(notes)}."


def _attr(attr: Attr) -> str:
    kinds = " or ".join("size" if k.__name__ == "Dim" else k.__name__ for k in attr.kinds)
    text = f"`{attr.name}`: {kinds}"
    if attr.choices and len(attr.choices) <= 6:
        text = f"`{attr.name}`: " + ", ".join(f"`{format_attr(c)}`" for c in attr.choices)
    return text if attr.required else f"{text}; `{format_attr(attr.default)}` if left out"


if __name__ == "__main__":
    PAGE.write_text(reference_page())
    sys.stdout.write(f"wrote {PAGE}\n")
