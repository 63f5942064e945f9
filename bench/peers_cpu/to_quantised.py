"""A GGUF file quantised by llama.cpp: `PYTHON to_quantised.py FILE TARGET KIND THREADS`."""

import sys

import llama_cpp

source, target, kind, threads = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
params.nthread = int(threads)
llama_cpp.llama_backend_init()
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), params))
