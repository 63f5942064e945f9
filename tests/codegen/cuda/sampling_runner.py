"""The sampling kernels under emulation, called with the runtime's sampling parameters."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from inferc.codegen.cuda_step import SAMPLING_KERNELS, CudaStepParams, sampling_code
from inferc.codegen.render import render
from inferc.codegen.step import Phase
from inferc.runtime.request import Sampled, SamplingParams
from tests.codegen.cuda.cuda_runner import Emulation, check_guards, emulated_library, guarded

ROW = np.dtype(
    [(n, "f8") for n in ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")]
    + [(n, "u8") for n in ("seed", "sample", "position")]
    + [(n, "i4") for n in ("top_k", "logprobs", "first_edit", "edits")]
)
EDIT = np.dtype([("bias", "f8")] + [(n, "i4") for n in ("token", "count", "seen", "unused")])
SAMPLED = np.dtype([("token", "i4"), ("status", "i4"), ("logprob", "f8")])
TOP = np.dtype([("token", "i4"), ("unused", "i4"), ("logprob", "f8")])


class SampleArgs(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p), ("stride", ctypes.c_int64),
        ("rows", ctypes.c_int32), ("columns", ctypes.c_int32),
        ("holes", ctypes.c_void_p),
        ("hole_count", ctypes.c_int32), ("top_stride", ctypes.c_int32),
        ("rows_host", ctypes.c_void_p), ("parameters", ctypes.c_void_p), ("edits", ctypes.c_void_p),
        ("edit_count", ctypes.c_int64),
        ("sampled", ctypes.c_void_p), ("top", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
    )  # fmt: skip


@dataclass
class Request:
    """A sequence as the sampler sees it, at one step."""

    params: SamplingParams
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    seed: int = 0
    sample: int = 0

    def edits(self) -> list[tuple[float, int, int, int, int]]:
        counts = Counter(self.output)
        seen = set(self.prompt) | set(self.output)
        bias = self.params.logit_bias
        return [
            (bias.get(t, 0.0), t, counts[t], int(t in seen), 0) for t in sorted(seen | set(bias))
        ]


@dataclass
class Result:
    """What came back, and the launches by name."""

    sampled: list[Sampled]
    status: list[int]
    launches: list[str]


@cache
def emulation() -> Emulation:
    empty = tuple(Phase(name, ()) for name in ("prefill", "decode"))
    params = CudaStepParams((), SAMPLING_KERNELS, 1, 1, 1, 0, 0, 0, 0, empty)
    library = emulated_library(
        {"sampling": sampling_code()}, render("cuda_step.cpp.j2", params), 80
    )
    library.inferc_cuda_sample_bytes.restype = ctypes.c_uint64
    return Emulation(library, 80)


def sample(
    requests: Sequence[Request], logits: np.ndarray, *, holes: Sequence[int] = (), order: int = 0,
    top: int = 8,
) -> Result:  # fmt: skip
    """One token for each row of `logits`."""
    made = emulation()
    rows, columns = logits.shape
    edits = [request.edits() for request in requests]
    parameters = np.zeros(rows, ROW)
    for i, request in enumerate(requests):
        p, first = request.params, sum(map(len, edits[:i]))
        parameters[i] = (
            p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty,
            p.frequency_penalty, request.seed, request.sample, len(request.output), p.top_k or 0,
            -1 if p.logprobs is None else p.logprobs, first, len(edits[i]),
        )  # fmt: skip
    flat = np.array([e for part in edits for e in part], EDIT)
    stride = columns + 3
    given, whole = guarded(4 * rows * stride)
    given.view(np.float32).reshape(rows, stride)[:, :columns] = logits
    library = made.library
    workspace, space = guarded(
        int(library.inferc_cuda_sample_bytes(rows, columns, ctypes.c_int64(len(flat))))
    )
    sampled, sampled_whole = guarded(SAMPLED.itemsize * rows)
    tops, tops_whole = guarded(TOP.itemsize * rows * top)
    hole_ids = np.array(holes, np.int32)
    args = SampleArgs(
        given.ctypes.data, stride, rows, columns, hole_ids.ctypes.data, len(hole_ids), top,
        parameters.ctypes.data, parameters.ctypes.data, flat.ctypes.data, len(flat),
        sampled.ctypes.data, tops.ctypes.data, workspace.ctypes.data,
    )  # fmt: skip
    launches: list[str] = []
    launch = _recording(made.context.launch, launches)
    context = type(made.context).from_buffer_copy(made.context)
    context.launch = ctypes.cast(launch, ctypes.c_void_p)
    made.begin(order)
    made.end(library.inferc_cuda_sample(ctypes.byref(context), ctypes.byref(args)))
    check_guards(workspace, space)
    for inner, outer in ((given, whole), (sampled, sampled_whole), (tops, tops_whole)):
        check_guards(inner, outer)
    found, best = sampled.view(SAMPLED), tops.view(TOP).reshape(rows, top)
    results = [_result(r, f, b) for r, f, b in zip(requests, found, best, strict=True)]
    return Result(results, [int(f["status"]) for f in found], launches)


_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_uint64,
)  # fmt: skip


def _recording(address: int, names: list[str]) -> Callable[..., int]:
    """A launch function that notes the kernel's name and does what the one at `address` does."""
    inner = _LAUNCH(address)

    def launch(context: int, kernel: int, config: int, args: int, nbytes: int) -> int:
        names.append(SAMPLING_KERNELS[kernel].name.partition("_")[2])
        return inner(context, kernel, config, args, nbytes)

    return _LAUNCH(launch)


def _result(request: Request, found: np.ndarray, best: np.ndarray) -> Sampled:
    wanted = request.params.logprobs
    if wanted is None:
        return Sampled(int(found["token"]))
    pairs = tuple((int(t["token"]), float(t["logprob"])) for t in best[:wanted])
    return Sampled(int(found["token"]), float(found["logprob"]), pairs)
