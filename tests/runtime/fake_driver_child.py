"""In a process whose libcuda.so.1 is fake_driver.c: runs the toy artifact; results as JSON."""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from inferc.errors import InfercError
from inferc.runtime.block_manager import BlockId
from inferc.runtime.engine import load
from inferc.runtime.plan import Plan, PlannedSequence, Rows
from inferc.runtime.request import SequenceId

folder = Path(sys.argv[1])
fake = ctypes.CDLL("libcuda.so.1")
results: dict[str, object] = {}


def register() -> None:
    library = ctypes.CDLL(str(folder / "cuda/step.so"))
    for function in (library.inferc_emulation_launch, library.inferc_emulated_kernels):
        function.restype = ctypes.c_void_p
    sizes = (ctypes.c_uint64 * 2).in_dll(library, "toy_args_bytes")
    fake.fake_register(
        ctypes.c_void_p(library.inferc_emulation_launch()),
        ctypes.c_void_p(library.inferc_emulated_kernels()),
        library.inferc_cuda_kernel_name,
        library.inferc_cuda_kernel_count(),
        sizes,
    )


def refused(name: str, work: Callable[[], object], **settings: int) -> None:
    """Note the error of `work` with the fake driver set to misbehave."""
    for key, value in settings.items():
        ctypes.c_int.in_dll(fake, key).value = value
    try:
        work()
        results[name] = "no error"
    except InfercError as error:
        results[name] = str(error)
    for key in settings:
        usual = {"fake_devices": 1, "fake_version": 13000}.get(key, 0)
        ctypes.c_int.in_dll(fake, key).value = usual


def open_and_close(device: str = "cuda") -> None:
    load(folder, device=device).close()


register()
with load(folder, device="cuda:0") as engine:
    results["logits"] = engine.logits(list(range(40)), chunk_tokens=7).tolist()
    completions = engine.generate(["Hello", "z"], max_tokens=6, ignore_eos=True)
    results["tokens"] = [c.token_ids for c in completions]
    results["bandwidth"] = engine.executor.copy_bandwidth()
    results["graphs"] = engine.executor.graphs.replayed
    page = BlockId(0)
    entry = PlannedSequence(SequenceId(0), 0, (1, 2, 3), (page,), Rows.LAST, 0)
    times = engine.executor.profile(Plan(1, (entry,)))
    results["times"] = [(t.kernel, t.call, t.milliseconds) for t in times]
    refused("launch", lambda: engine.generate("a", max_tokens=2), fake_fail_launch=1)
    refused("capture", lambda: engine.generate(["a"] * 3, max_tokens=2), fake_fail_launch=2)
    refused("illegal address", lambda: engine.generate("a", max_tokens=2), fake_sync_error=700)
results["live"] = fake.fake_live()
dropped = load(folder, device="cuda")
dropped.generate("a", max_tokens=2)
child = os.fork()
if child == 0:
    try:
        dropped.generate("a", max_tokens=2)
    except InfercError as error:
        os._exit(7 if "before this process was forked" in str(error) else 1)
    os._exit(1)
results["forked"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
del dropped
gc.collect()
results["live after a drop"] = fake.fake_live()
refused("closed", lambda: engine.generate("a"))
refused("no device", open_and_close, fake_devices=0)
refused("old", open_and_close, fake_version=12080)
refused("index", lambda: open_and_close("cuda:3"))
refused("memory", lambda: load(folder, device="cuda", kv_budget_bytes=2**40))
(folder / "cuda/sm_80/toy_logits.cubin").write_bytes(b"for something else")
refused("unfit", lambda: load(folder, device="cuda", check=False))
(folder / "cuda/sm_80/toy_logits.cubin").unlink()
refused("missing", lambda: load(folder, device="cuda", check=False))
results["live after refusals"] = fake.fake_live()
print(json.dumps(results))
