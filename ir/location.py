"""Where an op comes from. Every op has a location; there is no default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

Location = Union["ModuleLoc", "FusedLoc", "DerivedLoc"]


@dataclass(frozen=True)
class ModuleLoc:
    """A module of the source model: its path, class, and the `file:line` of the call if known."""

    path: str
    cls: str = ""
    source: str = ""

    def roots(self) -> tuple[ModuleLoc, ...]:
        """This location itself."""
        return (self,)

    def __str__(self) -> str:
        parts = [self.path, self.cls, self.source]
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        return ", ".join(f'"{p}"' for p in parts)


@dataclass(frozen=True)
class FusedLoc:
    """Several origins, flat, in order, without duplicates. Build with `fuse`."""

    parts: tuple[Location, ...]

    def roots(self) -> tuple[ModuleLoc, ...]:
        """All modules below, each once, in order."""
        return tuple(dict.fromkeys(root for part in self.parts for root in part.roots()))

    def __str__(self) -> str:
        return "[" + " | ".join(str(p) for p in self.parts) + "]"


@dataclass(frozen=True)
class DerivedLoc:
    """Made by a pass out of ops at `of`."""

    pass_name: str
    of: Location

    def roots(self) -> tuple[ModuleLoc, ...]:
        """The modules of what it was derived from."""
        return self.of.roots()

    def __str__(self) -> str:
        return f"{self.pass_name}({self.of})"


def fuse(locations: list[Location] | tuple[Location, ...]) -> Location:
    """One location out of several, flat and without duplicates; a single one stays as it is."""
    flat: dict[Location, None] = {}
    for location in locations:
        for part in location.parts if isinstance(location, FusedLoc) else (location,):
            flat[part] = None
    if not flat:
        raise ValueError("a location needs at least one origin")
    parts = tuple(flat)
    return parts[0] if len(parts) == 1 else FusedLoc(parts)


def derive(pass_name: str, locations: list[Location] | tuple[Location, ...]) -> Location:
    """Location of an op that a pass made out of ops at `locations`.

    Only the last pass is kept for each origin: chains of passes would grow without adding facts.
    """
    origins = [loc.of if isinstance(loc, DerivedLoc) else loc for loc in locations]
    return DerivedLoc(pass_name, fuse(origins))
