"""New keys to the pages of a cache that has its values in its keys, for CUDA."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.kernels import latent_append

LATENT_APPEND = replace(latent_append.LATENT_APPEND, template="latent_append.cu.j2")
