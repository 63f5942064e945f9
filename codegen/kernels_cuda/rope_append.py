"""Rotary embedding, head norms and the write of K and V to their pages, for CUDA."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.kernels import rope_append

ROPE_APPEND = replace(rope_append.ROPE_APPEND, template="rope_append.cu.j2")
