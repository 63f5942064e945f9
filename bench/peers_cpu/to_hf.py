"""A GGUF file as a Hugging Face folder in bf16: `python to_hf.py FILE FOLDER`."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = Path(sys.argv[1]), sys.argv[2]
where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
tokenizer = AutoTokenizer.from_pretrained(**where)
model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
# Else it refuses to be saved: "quantized with gguf".
model.hf_quantizer, model.is_quantized = None, False
for name in ("quantization_config", "_pre_quantization_dtype"):
    if hasattr(model.config, name):
        delattr(model.config, name)
model.config.dtype = torch.bfloat16
model.to(torch.bfloat16).save_pretrained(target)
tokenizer.save_pretrained(target)
