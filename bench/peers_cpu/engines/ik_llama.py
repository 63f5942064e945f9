"""ik_llama.cpp by its C interface, which is llama.cpp's of an earlier time."""

from __future__ import annotations

from typing import Any

from bench.peers_cpu.engines import llama


class Engine(llama.Engine):
    """Options: `repack`: "1" interleaves the weights at load.

    Flash attention is its default, but aborts in many steps of several sequences
    (`GGML_ASSERT(S > 0)`), so those run without.
    """

    def prepare(self) -> None:
        import ik_llama_cpp
        import numpy
        from ik_llama_cpp import _ctypes_api

        self.package, self.api, self.np = ik_llama_cpp, _ctypes_api, numpy

    def version(self) -> str:
        return f"ik-llama-cpp-python {self.package.__version__}"

    def model_params(self) -> Any:
        params = super().model_params()
        if self.options.get("repack") == "1":
            params.repack_tensors, params.use_mmap = True, False
        return params

    def make_context(self, sequences: int) -> Any:
        params = self.api.llama_context_default_params()
        self.sizes(params, sequences)
        params.flash_attn = sequences == 1
        return self.api.llama_init_from_model(self.model, params)

    def clear(self, context: Any) -> None:
        self.api.llama_kv_cache_clear(context)
