"""Check an artifact against its source: logits by our step and by transformers, token by token.

The result is stored in the artifact as `verification.json`, and anybody can repeat it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inferc import report_file
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.kernels.linear import math_type
from inferc.codegen.targets import parse_target
from inferc.errors import InfercError, RequestError
from inferc.metrics import Distance, distance
from inferc.reference import Precision, Reference, ReferenceRequest, reference
from inferc.runtime.artifact import Manifest
from inferc.runtime.artifact_writer import add_file
from inferc.runtime.engine import Engine, load
from inferc.runtime.request import SamplingParams
from inferc.runtime.target_choice import select_target
from inferc.runtime.tokenizer import IdsOnly
from inferc.tolerance import COMPUTE_TOLERANCE, Tolerance, tolerance

VERIFICATION_FILE = "verification.json"
GREEDY_TOKENS = 64
CHUNK_TOKENS = 23  # divides no page, so that chunks begin and end inside pages


_DEFAULT_TOKENS = 160
_MOST_DEFAULT_TOKENS = 1024  # a reference in float32 takes seconds up to here
_MOST_DEFAULT_LOGITS = 1 << 28
_TEXT = (
    "The lighthouse keeper wrote down the weather every evening: wind from the north-west, 7 knots,"
    " visibility 12 km. “Nobody reads this,” she said — and yet, on 3 May 1911, somebody did."
    " Über den Wolken muss die Freiheit wohl grenzenlos sein. 春は曙。 Быть или не быть?\n"
    "def mean(values: list[float]) -> float:\n    return sum(values) / max(1, len(values))\n"
)


@dataclass(frozen=True)
class Way:
    """One way to compute the same logits, and how far they are from the reference.

    Attributes:
        name: For people.
        chunk_tokens: Tokens of a step; None for as many as a step takes.
        bit_equal: Whether every bit is that of the first way.
        distance: From the reference.
    """

    name: str
    chunk_tokens: int | None
    bit_equal: bool
    distance: Distance

    def has_decode(self, tokens: int) -> bool:
        """Whether one of its steps has a single token: it is one of decode, not of prefill."""
        return self.chunk_tokens is not None and 1 in (
            self.chunk_tokens,
            tokens % self.chunk_tokens,
        )


@dataclass(frozen=True)
class Greedy:
    """The most likely continuation: ours against the reference.

    Attributes:
        tokens: Tokens compared.
        equal_tokens: Tokens before the first difference.
        margin: At the first difference, the reference's lead of its token, in logits.
    """

    tokens: int
    equal_tokens: int
    margin: float | None


@dataclass(frozen=True)
class Verification:
    """Everything `verify` found. Passed: within the tolerance, and the ways agree bit for bit."""

    source: str
    loader: str
    notes: tuple[str, ...]
    precision: str
    versions: dict[str, str]
    token_ids: tuple[int, ...]
    compute: str
    kv_dtype: str
    tolerance: Tolerance
    ways: tuple[Way, ...]
    greedy: Greedy
    passed: bool

    @property
    def bit_equal(self) -> bool:
        """Whether all ways agree bit for bit."""
        return all(way.bit_equal for way in self.ways)

    def to_json(self) -> str:
        """Canonical text."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def verify(
    artifact: Path | str,
    source: Path | str,
    *,
    tokens: int | None = None,
    prompt: str | None = None,
    precision: Precision = "float32",
    device: str | None = None,
    threads: int | None = None,
    store: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Compare an artifact with its source model.

    Args:
        artifact: Folder made by `inferc compile`.
        source: The Hugging Face directory, GGUF or ONNX file that it was made from.
        tokens: Length of the prompt; by default past the sliding window, if there is one.
        prompt: Text, repeated to that length; a mixed text by default.
        precision: Of the reference.
        device: Of our step: `cpu`, `cuda` or `cuda:N`; None for what the artifact is for.
        threads: Of our step on the CPU.
        store: Write `verification.json` into the artifact.
        progress: Told what happens next.

    Raises:
        ToolchainError: transformers is missing.
    """
    folder = Path(artifact)
    with load(folder, device=device, threads=threads) as engine:
        assert engine.manifest is not None
        ids, notes = _prompt(engine, engine.manifest, tokens, prompt)
        request = ReferenceRequest(
            str(source),
            (ids,),
            precision,
            min(GREEDY_TOKENS, engine.manifest.limits.context_tokens - len(ids)),
            _forbidden(engine),
            engine.manifest.limits.context_tokens,
        )
        progress(f"reference: {precision}, {len(ids)} tokens")
        with reference(request) as wanted:
            result = _compare(folder, engine, request, wanted, notes, progress)
    if store:
        add_file(folder, VERIFICATION_FILE, result.to_json().encode())
    return result


def _prompt(
    engine: Engine, manifest: Manifest, tokens: int | None, prompt: str | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ids of the wanted length, and a remark if they do not leave the window."""
    limit = manifest.limits.context_tokens
    if tokens is not None and not 1 <= tokens <= limit:
        raise RequestError(f"--tokens: expected 1 to {limit}, the artifact's context; got {tokens}")
    if isinstance(engine.tokenizer, IdsOnly):
        count = tokens or min(_DEFAULT_TOKENS, max(limit // 2, 1))
        ids = np.random.default_rng(0).integers(0, manifest.model.vocab_size, count).tolist()
        return tuple(ids), ("The model has no tokenizer: the prompt is random.",)
    text = _TEXT if prompt is None else prompt
    ids = engine.tokenizer.encode(text)
    if not ids:
        raise RequestError("--prompt: the text holds no token.")
    if prompt is not None and tokens is None:
        tokens = min(len(ids), limit)
    window = max((c.window_tokens or 0 for c in manifest.kv.caches), default=0)
    if tokens is None:
        most = min(_MOST_DEFAULT_TOKENS, _MOST_DEFAULT_LOGITS // manifest.model.vocab_size)
        wanted = max(_DEFAULT_TOKENS, window + 2 * manifest.kv.page_tokens)
        tokens = min(wanted, most, limit - min(GREEDY_TOKENS, limit // 2))
    while len(ids) < tokens:
        ids += engine.tokenizer.encode(text)
    reached = () if tokens > window else (f"{tokens} tokens do not leave the window of {window}.",)
    return tuple(ids[:tokens]), reached


def _forbidden(engine: Engine) -> tuple[int, ...]:
    known = engine.tokenizer.known_ids(engine.executor.vocab_size)
    return tuple(np.flatnonzero(~np.asarray(known)).tolist())


def _compare(
    folder: Path,
    engine: Engine,
    request: ReferenceRequest,
    wanted: Reference,
    notes: Sequence[str],
    progress: Callable[[str], None],
) -> Verification:
    assert engine.manifest is not None
    ids, kv_dtype = request.prompts[0], engine.manifest.kv.dtype
    options = _options(folder)
    compute = _compute(options, engine.manifest)
    own_prefill = options.get("prefill_precision", "auto") != "auto"
    ways = _ways(engine, ids, wanted.logits[0], progress)
    progress(f"{request.greedy_tokens} greedy tokens")
    greedy = _greedy(engine, ids, wanted)
    allowed = tolerance(compute, kv_dtype)
    return Verification(
        Path(request.source).name,
        wanted.loader,
        (*wanted.notes, *notes),
        request.precision,
        dict(wanted.versions),
        ids,
        compute,
        kv_dtype,
        allowed,
        ways,
        greedy,
        all(
            allowed.admits(way.distance)
            and (way.bit_equal or (own_prefill and way.has_decode(len(ids))))
            for way in ways
        ),
    )


def _ways(
    engine: Engine,
    ids: Sequence[int],
    wanted: npt.NDArray[np.floating],
    progress: Callable[[str], None],
) -> tuple[Way, ...]:
    """Distances in one piece, in chunks and token by token."""
    found: list[Way] = []
    first: npt.NDArray[np.float32] | None = None
    for name, chunk in (("one piece", None), ("chunks", CHUNK_TOKENS), ("token by token", 1)):
        progress(f"logits: {name}")
        logits = engine.logits(ids, chunk)
        if logits.shape != wanted.shape:
            raise InfercError(
                f"The artifact gives logits of shape {logits.shape}, the source {wanted.shape}: "
                "they are not the same model."
            )
        if first is None:
            first = logits
        same = first is logits or np.array_equal(first.view(np.int32), logits.view(np.int32))
        known = found[0].distance if found and same else distance(logits, wanted)
        found.append(Way(name, chunk, same, known))
    return tuple(found)


def _greedy(engine: Engine, ids: Sequence[int], wanted: Reference) -> Greedy:
    if not wanted.greedy:
        return Greedy(0, 0, None)
    params = SamplingParams(max_tokens=len(wanted.greedy), ignore_eos=True)
    ours = engine.generate(list(ids), params)[0].token_ids
    pairs = zip(ours, wanted.greedy, strict=True)
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(ours))
    return Greedy(len(ours), equal, wanted.margins[equal] if equal < len(ours) else None)


def _options(folder: Path) -> dict[str, Any]:
    """What the artifact was compiled with."""
    options: dict[str, Any] = report_file.read(folder)["options"]
    return options


def _compute(options: dict[str, Any], manifest: Manifest) -> str:
    """The coarsest arithmetic of the matrix products."""
    compute = options["compute"]
    if manifest.targets[0].kind == "cuda":  # whatever the weights are, activations are rounded
        return "f32" if compute == "f32" else "bf16"
    target = parse_target(select_target(manifest, "cpu").name)  # the one that was loaded
    prefill = options.get("prefill_precision", "auto")
    kinds = {
        math_type(tensor.dtype, KernelOptions(target, each)).removeprefix("Math").lower()
        for each in {compute, compute if prefill == "auto" else prefill}
        for tensor in manifest.weights.tensors
        if tensor.layout.startswith(("n16", "experts"))
    }
    return max(kinds, key=list(COMPUTE_TOLERANCE).index, default="f32")
