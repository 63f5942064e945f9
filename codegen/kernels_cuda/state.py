"""Recurrent ops for CUDA: one kernel a core for both phases."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.kernels import state

STATE = replace(state.STATE, template="state.cu.j2")
