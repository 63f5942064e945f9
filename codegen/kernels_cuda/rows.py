"""Row kernels for CUDA: gather, and the list of all kernels over rows."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.kernels import rows
from inferc.codegen.kernels_cuda.row_block import ROW_BLOCK
from inferc.codegen.kernels_cuda.row_loops import ROW_LOOPS

GATHER = replace(rows.GATHER, template="gather.cu.j2")

KERNELS = (GATHER, ROW_BLOCK, ROW_LOOPS)
