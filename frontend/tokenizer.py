"""The tokenizer side of a model, from either source."""

from inferc.frontend.tokenizer_gguf import from_gguf
from inferc.frontend.tokenizer_hf import from_directory
from inferc.frontend.tokens import GenerationDefaults, SpecialTokens, TokenizerFiles

__all__ = ["GenerationDefaults", "SpecialTokens", "TokenizerFiles", "from_directory", "from_gguf"]
