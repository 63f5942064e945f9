"""llama.cpp by its C interface: one batch a step, as its own benchmark tools do."""

from __future__ import annotations

import time
from typing import Any

LONGEST_TOKENS, BATCH_TOKENS, MICRO_BATCH_TOKENS = 2304, 2048, 512
SEQUENCE_TOKENS = 320


class Engine:
    """Keeps one context for each number of sequences, made when it is first needed."""

    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        self.path, self.threads, self.options = model, threads, options
        self.contexts: dict[int, Any] = {}

    def prepare(self) -> None:
        import llama_cpp
        import numpy

        self.api, self.np = llama_cpp, numpy
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, None)

    def version(self) -> str:
        return f"llama-cpp-python {self.api.__version__}"

    def load(self) -> None:
        self.api.llama_backend_init()
        self.model = self.api.llama_model_load_from_file(self.path.encode(), self.model_params())
        if not self.model:
            raise RuntimeError(f"no model in {self.path}")
        self.vocab = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))
        self.batch = self.api.llama_batch_init(BATCH_TOKENS, 0, 1)

    def model_params(self) -> Any:
        return self.api.llama_model_default_params()

    def sizes(self, params: Any, sequences: int) -> None:
        """The context's sizes, alike for all that share llama.cpp's interface."""
        params.n_ctx = LONGEST_TOKENS if sequences == 1 else SEQUENCE_TOKENS * sequences
        params.n_batch, params.n_ubatch = BATCH_TOKENS, MICRO_BATCH_TOKENS
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self.threads

    def make_context(self, sequences: int) -> Any:
        params = self.api.llama_context_default_params()
        self.sizes(params, sequences)
        # A stream of its own for each sequence: attention then reads no other's tokens.
        params.kv_unified = False
        return self.api.llama_init_from_model(self.model, params)

    def clear(self, context: Any) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(context), True)

    def _context(self, sequences: int) -> Any:
        if sequences not in self.contexts:
            made = self.make_context(sequences)
            if not made:
                raise RuntimeError(f"no context for {sequences} sequences")
            self.contexts[sequences] = made
        self.clear(self.contexts[sequences])
        return self.contexts[sequences]

    def _decode(self, context: Any, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Run rows of (token, position, sequence, wanted); the next token of each wanted row."""
        batch = self.batch
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        batch.n_tokens = len(rows)
        if self.api.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        return [self._argmax(context, i) for i, row in enumerate(rows) if row[3]]

    def _argmax(self, context: Any, row: int) -> int:
        pointer = self.api.llama_get_logits_ith(context, row)
        return int(self.np.ctypeslib.as_array(pointer, (self.vocab,)).argmax())

    def run(self, prompts: list[list[int]], new: int) -> tuple[float, float, list[list[int]], int]:
        context = self._context(len(prompts))
        length = len(prompts[0])
        begin = time.perf_counter()
        rows = [
            (t, p, s, p == length - 1) for s, ids in enumerate(prompts) for p, t in enumerate(ids)
        ]
        last: list[int] = []
        for at in range(0, len(rows), BATCH_TOKENS):
            last += self._decode(context, rows[at : at + BATCH_TOKENS])
        middle = time.perf_counter()
        tokens = [[token] for token in last]
        for step in range(new):
            last = self._decode(context, [(t, length + step, s, True) for s, t in enumerate(last)])
            for of_sequence, token in zip(tokens, last, strict=True):
                of_sequence.append(token)
        return middle - begin, time.perf_counter() - middle, tokens, new * len(prompts)
