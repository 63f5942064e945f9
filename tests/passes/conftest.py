"""Passes of all packages are known here, whichever tests ran before."""

from __future__ import annotations

from inferc.codegen.select import SelectKernels
from inferc.passes.registry import register

register(SelectKernels)
