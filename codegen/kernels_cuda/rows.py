"""Row kernels for CUDA: gather."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.kernels import rows

GATHER = replace(rows.GATHER, template="gather.cu.j2")
