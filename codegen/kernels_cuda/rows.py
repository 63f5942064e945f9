"""Row kernels for CUDA: embedding, rotary table, gather, take; and the list of all over rows."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.kernels import rows, take
from inferc.codegen.kernels_cuda.row_block import ROW_BLOCK
from inferc.codegen.kernels_cuda.row_loops import ROW_LOOPS

EMBEDDING = replace(rows.EMBEDDING, template="embedding.cu.j2")
ROPE_TABLE = replace(rows.ROPE_TABLE, template="rope_table.cu.j2")
GATHER = replace(rows.GATHER, template="gather.cu.j2")
TAKE = replace(take.TAKE, template="take.cu.j2")

KERNELS = (EMBEDDING, ROPE_TABLE, GATHER, TAKE, ROW_BLOCK, ROW_LOOPS)
