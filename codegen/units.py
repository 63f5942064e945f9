"""Kernels as files: groups that need the same code share one.

A unit is found by what it renders to, so equal layers, and prefill and decode where they agree,
end up with one kernel; weights are pointers.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from inferc.codegen import row_program
from inferc.codegen.group import Group, canonical_body
from inferc.codegen.kernel import KernelDef, KernelOptions, Scratch
from inferc.codegen.registry import kernel_named
from inferc.codegen.render import comment, render
from inferc.ir.core import Op
from inferc.ir.text import print_func

_NAME_DIGITS = 10
_NUMBER = re.compile(r"\.\d+\b")


@dataclass
class Unit:
    """One kernel file: a function, the groups that it runs, and what TVM has to lower for it."""

    name: str
    definition: KernelDef
    code: str
    lowered_text: str | None
    lowered_name: str | None
    groups: list[Group] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        """Name of the source file."""
        return self.name + (".cu" if self.definition.template.endswith(".cu.j2") else ".cpp")

    def source(self) -> str:
        """The file: why it exists, then the code."""
        return comment(self._header()) + "\n" + self.code

    def _header(self) -> str:
        first = self.groups[0]
        cost = self.definition.cost(first)
        modules = _folded(m for g in self.groups for m in g.modules)
        lines = [
            f"{self.name}: {self.definition.summary}",
            f"kernel: {self.definition.name} (template {self.definition.template})",
            f"flops: {cost.flops}; bytes read: {cost.bytes_read}; written: {cost.bytes_written}",
            f"used by {len(self.groups)} groups of: {', '.join(modules) or 'no source module'}",
            "body:",
            *(f"  {line}" for line in print_func(canonical_body(first.body)).splitlines()),
        ]
        return "\n".join(lines)


def _folded(paths: Iterable[str]) -> list[str]:
    """Module paths with the number of a layer left out: `model.layers.*.mlp (30)`."""
    counts = Counter(_NUMBER.sub(".*", path) for path in dict.fromkeys(paths))
    return [f"{path} ({count})" if count > 1 else path for path, count in counts.items()]


@dataclass
class Units:
    """All kernels of a module, in order of first use."""

    options: KernelOptions
    by_name: dict[str, Unit] = field(default_factory=dict)
    of_group: dict[Group, Unit] = field(default_factory=dict)
    of_op: dict[Op, tuple[Group, Unit]] = field(default_factory=dict)

    def add(self, group: Group) -> Unit:
        """The unit that runs a group; its kernel must have been selected."""
        definition = kernel_named(str(group.op.attrs["kernel"]), self.options.target.kind)
        params = definition.params(group, self.options, "")
        text = row_program.row_text(group.body) if definition.lowered else None
        name = self._name(definition, params, text)
        unit = self.by_name.get(name)
        if unit is None:
            params = definition.params(group, self.options, name)
            unit = Unit(
                name, definition, render(definition.template, params), text,
                getattr(params, "function", None) if definition.lowered else None,
            )  # fmt: skip
            self.by_name[name] = unit
        unit.groups.append(group)
        self.of_group[group] = unit
        self.of_op[group.op] = group, unit
        return unit

    def unit_of(self, op: Op) -> Unit:
        """The unit that runs a group's op."""
        return self.of_op[op][1]

    def _name(self, definition: KernelDef, params: Any, text: str | None) -> str:
        nameless = render(definition.template, replace(params, name=""))
        content = f"{definition.name}\0{nameless}\0{text or ''}"
        return f"{definition.name}_{hashlib.sha256(content.encode()).hexdigest()[:_NAME_DIGITS]}"

    def scratches(self) -> Iterable[Scratch]:
        """Working memory wanted by each group's kernel."""
        for group, unit in self.of_group.items():
            yield unit.definition.scratch(group, self.options)
