"""What watches a pipeline: objects told before and after every pass, in one list."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from inferc.ir.core import Module
from inferc.ir.text import print_module
from inferc.ir.verify import provenance, verify
from inferc.passes.base import Pass
from inferc.passes.facts import check_facts
from inferc.passes.record import PassRecord

DIFF_LINES = 20_000  # beyond, a diff takes longer than the compilation it describes


class Instrument(Protocol):
    """Told before and after every pass."""

    def before(self, module: Module, pass_: Pass) -> None:
        """Called before a pass."""

    def after(self, module: Module, pass_: Pass, record: PassRecord) -> None:
        """Called after a pass, with what it did."""


class Verify:
    """Runs the verifier after every pass that changed the module.

    Also checks that no source module gets lost, from the first pass on.

    Args:
        dumps: folder of a Dump, for the message.
        stages: stage that has to be reached after the pass of an index.
    """

    def __init__(self, dumps: Path | None = None, stages: Mapping[int, str] | None = None) -> None:
        self.dumps, self.stages = dumps, stages or {}
        self.roots: dict[str, None] = {}

    def before(self, module: Module, pass_: Pass) -> None:
        """Remember the source modules."""
        if not self.roots:
            self.roots = provenance(module)

    def after(self, module: Module, pass_: Pass, record: PassRecord) -> None:
        """Verify; the message says how to run the pass again."""
        where = str(self.dumps / f"{record.index - 1:03d}-*.ir") if self.dumps else "FILE.ir"
        hint = f"To run the pass again: inferc opt {where} --pass '{record.name}' --verify"
        if not self.dumps:
            hint += " (--dump DIR writes the file)"
        verify(module, stage=self.stages.get(record.index), roots=self.roots, hint=hint)


class CheckFacts:
    """Checks every fact that a pass ensures, and those that still have to hold."""

    def __init__(self) -> None:
        self.facts: frozenset[str] = frozenset()

    def before(self, module: Module, pass_: Pass) -> None:
        """Nothing to do."""

    def after(self, module: Module, pass_: Pass, record: PassRecord) -> None:
        """Raise FactBroken if a fact does not hold."""
        self.facts = (self.facts - pass_.breaks) | pass_.ensures
        check_facts(module, self.facts, pass_.name)


class StageTexts:
    """Keeps the text of the module at the end of phases, for reports."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names  # name of the phase that ends with the pass of an index
        self.texts: dict[str, str] = {}

    def before(self, module: Module, pass_: Pass) -> None:
        """Nothing to do."""

    def after(self, module: Module, pass_: Pass, record: PassRecord) -> None:
        """Print the module if a phase ends here."""
        if record.index in self.names:
            self.texts[self.names[record.index]] = print_module(module)


class Dump:
    """Writes what every pass did into a folder.

    `000-input.ir` is what came in; a pass that changed something leaves `NNN-pass.ir` and
    `NNN-pass.diff`, every pass a line in `passes.jsonl`.
    """

    def __init__(self, folder: Path, *, locations: bool = True) -> None:
        self.folder, self.locations = folder, locations
        self.text: str | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "passes.jsonl").write_text("")

    def before(self, module: Module, pass_: Pass) -> None:
        """Write what came in."""
        if self.text is None:
            self.text = print_module(module, locations=self.locations)
            (self.folder / "000-input.ir").write_text(self.text)

    def after(self, module: Module, pass_: Pass, record: PassRecord) -> None:
        """Write what changed."""
        with (self.folder / "passes.jsonl").open("a") as file:
            file.write(json.dumps(record.to_json()) + "\n")
        text = print_module(module, locations=self.locations)
        if text == self.text:
            return
        stem = f"{record.index + 1:03d}-{pass_.name}"
        (self.folder / f"{stem}.ir").write_text(text)
        old, new = (self.text or "").splitlines(), text.splitlines()
        if len(old) + len(new) <= DIFF_LINES:
            diff = difflib.unified_diff(old, new, "before", pass_.name, n=2, lineterm="")
            (self.folder / f"{stem}.diff").write_text("\n".join(diff) + "\n")
        self.text = text
