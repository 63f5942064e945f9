"""One architecture taken as far as it goes: what `tools.survey` records of it.

Each stage either adds to the record or stops it with the reason. Nothing here knows any
architecture; the configurations are declared in `tests.architectures`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import inferc
from inferc.errors import CompileError
from inferc.frontend.capture_child import describe
from inferc.ir.core import Module
from inferc.ir.types import CacheType, Memory, StateType
from inferc.metrics import relative_error as row_error
from inferc.passes.check import Checker
from inferc.passes.instruments import CheckFacts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import pipeline
from tests import tiny
from tests.e2e.workshop import LENGTH, THREADS, Workshop
from tests.frontend.captured import captured, relative_error, run_forward
from tools.survey_formats import gguf_error, onnx_error, quantised_methods

FLOAT32_TOLERANCE = 1e-4
PASSES_TOLERANCE = 3e-7  # of all passes together, in float64
CHUNKS = (None, 7, 1)


class Refused(Exception):
    """The architecture stops here; the text is the reason."""


@dataclass(frozen=True)
class Record:
    """What is known of one architecture; a stage that was not reached is None.

    Attributes:
        model_type: name in transformers.
        architecture: class name.
        captures: whether a plain graph was captured.
        interpreted: relative error of the captured graph, interpreted in float32.
        raises: whether all passes run and change nothing.
        passes: largest relative error of the planned step functions, in float64.
        float32: relative error of the artifact of a float32 checkpoint.
        bfloat16: error of the artifact of a bfloat16 checkpoint over that of transformers.
        prefix_cache: whether a prompt seen before took its pages (and gave the same tokens).
        gguf: largest relative error of GGUF files of it, on the imported graph; None if none was
            made.
        onnx: relative error of torch.onnx's export against ONNX Runtime, on the imported graph.
        onnx_refusal: why there is no such figure.
        quantised: methods of quantised checkpoints at parity with their dequantised weights.
        windows: sliding windows and chunks that were run past, in tokens.
        states: kinds of state: `kv` heads x dims, `state` of recurrent ops.
        refusal: why it stopped; empty if it did not.
    """

    model_type: str
    architecture: str = ""
    captures: bool | None = None
    interpreted: float | None = None
    raises: bool | None = None
    passes: float | None = None
    float32: float | None = None
    bfloat16: float | None = None
    prefix_cache: bool | None = None
    gguf: float | None = None
    onnx: float | None = None
    onnx_refusal: str = ""
    quantised: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    refusal: str = ""


@dataclass
class Examination:
    """The stages, each on what the one before left."""

    name: str
    record: Record = field(init=False)
    module: Module | None = None

    def __post_init__(self) -> None:
        self.record = Record(tiny.case_of(self.name).model_type)

    def run(self, workshop: Workshop | None = None, dtypes: tuple[str, ...] = ()) -> Record:
        """Capture, interpret, run the passes; compile checkpoints of these types and run them."""
        try:
            self._capture()
            self._interpret()
            self._passes()
            if workshop is not None:
                self._formats(workshop.folder)
            if workshop is not None and "float32" in dtypes:
                self._float32(workshop)
            if workshop is not None and "bfloat16" in dtypes:
                self._bfloat16(workshop)
        except Refused as reason:
            self._note(refusal=str(reason))
        return self.record

    def _note(self, **facts: object) -> None:
        self.record = replace(self.record, **facts)  # type: ignore[arg-type]

    def _capture(self) -> None:
        architecture = type(tiny.model(self.name)).__name__
        self._note(architecture=architecture, captures=False)
        self.module, _ = _attempt(_captured, self.name)
        self._note(captures=True)

    def _interpret(self) -> None:
        assert self.module is not None
        parameters = {k: v.numpy() for k, v in tiny.model(self.name).state_dict().items()}
        errors = []
        for batch, length in ((1, 1), (2, 21)):
            ids = tiny.ids(self.name, batch, length)
            found = run_forward(self.module.funcs["forward"], lambda n, _: parameters[n], ids)
            errors.append(relative_error(found, tiny.logits(self.name, ids)))
        self._note(interpreted=max(errors))
        _within(max(errors), FLOAT32_TOLERANCE, "the captured graph")

    def _passes(self) -> None:
        assert self.module is not None
        self._note(raises=False)
        source = captured(self.name)[0]
        _attempt(run_passes, self.module, pipeline(), instruments=[Verify(), CheckFacts()])
        compared = Checker(source, precision="f64").compare(self.module)
        error = max(c.relative_error for c in compared)
        types = [a.type for a in self.module.funcs["decode"].args]
        kinds = dict.fromkeys(_kind(t) for t in types if isinstance(t, Memory))
        windows = dict.fromkeys(
            str(t.window) for t in types if isinstance(t, CacheType) and t.window
        )
        self._note(passes=error, states=tuple(kinds), windows=tuple(windows))
        _within(error, PASSES_TOLERANCE, "the planned step")
        self._note(raises=True)

    def _formats(self, folder: Path) -> None:
        self._note(gguf=gguf_error(self.record.model_type, folder))
        error, refusal = onnx_error(self.name)
        self._note(onnx=error, onnx_refusal=refusal)
        self._note(quantised=quantised_methods(self.record.model_type, folder / "quantised"))

    def _float32(self, workshop: Workshop) -> None:
        ids = self._prompt()
        artifact = _attempt(workshop.artifact, self.name)
        found, theirs = artifact_logits(artifact, ids), tiny.logits(self.name, np.array([ids]))[0]
        error = row_error(found, theirs)
        if error >= FLOAT32_TOLERANCE:
            exact = exact_logits(workshop.source(self.name), ids)
            if row_error(theirs, exact) > FLOAT32_TOLERANCE / 2:  # the reference itself is noisy
                error = row_error(found, exact)
        self._note(float32=error)
        _within(error, FLOAT32_TOLERANCE, "the artifact")
        self._note(prefix_cache=prefix_is_reused(artifact, ids[:-8]))

    def _bfloat16(self, workshop: Workshop) -> None:
        ids, source = self._prompt(), workshop.source(self.name, "bfloat16")
        exact = exact_logits(source, ids)
        theirs = transformers_logits(source, ids, torch.bfloat16)
        ours = artifact_logits(_attempt(workshop.artifact, self.name, "bfloat16"), ids)
        ratio = row_error(ours, exact) / row_error(theirs, exact)
        self._note(bfloat16=ratio)

    def _prompt(self) -> list[int]:
        length = min(LENGTH, tiny.case_of(self.name).context_tokens or LENGTH)
        return [int(t) for t in tiny.ids(self.name, 1, length)[0]]


def artifact_logits(artifact: Path, ids: list[int]) -> np.ndarray:
    """Logits of an artifact; however the prompt is cut, every bit must be the same."""
    with inferc.load(artifact, threads=THREADS) as engine:
        ways = [engine.logits(ids, chunk) for chunk in CHUNKS]
    for chunk, way in zip(CHUNKS, ways, strict=True):
        if not np.array_equal(way.view(np.int32), ways[0].view(np.int32)):
            raise Refused(f"logits of the artifact differ between one piece and chunks of {chunk}")
    return ways[0]


def prefix_is_reused(artifact: Path, ids: list[int]) -> bool:
    """Whether the second of two equal prompts takes pages of the first; its tokens must equal."""
    with inferc.load(artifact, threads=THREADS) as engine:
        first, second = (
            engine.generate([ids], max_tokens=8, temperature=0.0, ignore_eos=True)[0] for _ in "ab"
        )
    if first.token_ids != second.token_ids:
        raise Refused("a prompt gives other tokens when its pages are taken from the prefix cache")
    return second.usage.cached_tokens > 0


def exact_logits(source: Path, ids: list[int]) -> np.ndarray:
    """Logits by transformers in float64; in float32 of classes that cannot (XGLM)."""
    try:
        return transformers_logits(source, ids, torch.float64)
    except RuntimeError as error:
        if "without overflow" not in str(error):  # finfo(float64).min made a float32 tensor
            raise
        return transformers_logits(source, ids, torch.float32)


def transformers_logits(source: Path, ids: list[int], dtype: torch.dtype) -> np.ndarray:
    """Logits of a saved model by transformers, computed in `dtype`."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager")
    # Some classes (Youtu) zero the row of the padding token after loading; the file is what counts.
    model.load_state_dict(load_file(source / "model.safetensors"), strict=False)
    if model._can_set_experts_implementation():  # the default has no float64
        model.set_experts_implementation("eager")
    with torch.no_grad():
        out = model.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return out.to(torch.float64).numpy()


def _captured(name: str) -> tuple[Module, object]:
    """As the capture process: whatever stops transformers or torch is told as it would tell it."""
    try:
        return captured(name)
    except Exception as error:
        raise CompileError(describe(error)) from error


def _attempt(function, *args, **options):  # type: ignore[no-untyped-def]
    """The result, or Refused with the compiler's own words."""
    try:
        return function(*args, **options)
    except CompileError as error:
        raise Refused(" ".join(str(error).split())) from error


def _within(error: float, tolerance: float, what: str) -> None:
    if not error < tolerance:
        raise Refused(f"{what} is off by {error:.1e} (allowed {tolerance:.0e})")


def _kind(type_: CacheType | StateType) -> str:
    if isinstance(type_, StateType):
        return "state " + "x".join(map(str, type_.shape))
    dims = type_.k_dim if type_.k_dim == type_.v_dim else f"({type_.k_dim}, {type_.v_dim})"
    return f"kv {type_.kv_heads}x{dims}"
