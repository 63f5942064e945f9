"""Runs plans on an NVIDIA GPU: inputs in one copy, a step launched by the compiled library.

Decode steps are captured as CUDA graphs, one for each size of `cuda_inputs`, and replayed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from inferc.errors import InfercError
from inferc.runtime.artifact import Manifest, TargetEntry, artifact_path
from inferc.runtime.executors.base import Logits
from inferc.runtime.executors.cuda_buffers import DeviceBuffers, allocate_buffers
from inferc.runtime.executors.cuda_device import Device
from inferc.runtime.executors.cuda_graphs import Graphs
from inferc.runtime.executors.cuda_inputs import PackedInputs, PackedStep
from inferc.runtime.executors.cuda_library import CudaContext, CudaStepLibrary, StepLaunchError
from inferc.runtime.executors.cuda_memory import device_plan
from inferc.runtime.executors.cuda_options import CudaOptions
from inferc.runtime.executors.cuda_profile import LaunchTime, TimingLauncher
from inferc.runtime.executors.cuda_sampling import DeviceSampler
from inferc.runtime.executors.memory import Bytes
from inferc.runtime.executors.nvtx import MarkedLauncher, modules_of_unit, ranges, reported_calls
from inferc.runtime.kv_budget import KvBudget
from inferc.runtime.plan import Plan
from inferc.runtime.request import Sampled
from inferc.runtime.sample_rows import SampleRows
from inferc.runtime.step_inputs import check_limits
from inferc.runtime.target_choice import architecture, select_target

_log = logging.getLogger(__name__)
MakeBudget = Callable[[int], KvBudget]
"""The KV budget, given the bytes that the model leaves free on the device."""


class CudaExecutor:
    """The step library and kernels of one artifact on one device, with all its memory."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        device: Device,
        budget: MakeBudget,
        options: CudaOptions,
    ) -> None:
        self._folder = folder
        self._limits = manifest.limits
        self._page_tokens = manifest.kv.page_tokens
        self._vocab_size = manifest.model.vocab_size
        self._options = options
        self._device = device
        target = select_target(manifest, "cuda", device.facts.capability)
        self.target_name = target.name
        _check_toolkit(target, device)
        self._library = CudaStepLibrary(artifact_path(folder, target.library))
        if target.kernels is None:
            raise InfercError(f"manifest.json: target '{target.name}' names no folder of kernels.")
        kernels = artifact_path(folder, target.kernels)
        self._range = ranges(options.nvtx)
        launcher = device.launcher(self._library.library, self._library.kernels, kernels)
        self._marked = (
            MarkedLauncher(launcher, self._library.kernels, folder, self._range)
            if options.nvtx
            else None
        )
        self._launcher = self._marked or launcher
        self._buffers = self._allocate(manifest, budget)
        self.budget = self._buffers.budget
        self._inputs = PackedInputs(self._limits, self._page_tokens, self._buffers.spare_page)
        self._args = self._buffers.bind_args()
        self._context = CudaContext(
            launch=self._launcher.function,
            launch_context=self._launcher.context,
            scratch=self._buffers.scratch,
            sm=architecture(target).number,
            multiprocessors=device.facts.multiprocessors,
        )
        self._graphs = Graphs(device)
        self._sampler = DeviceSampler(device, self._library.sample, self._library.sample_bytes)
        self._samples = self._library.samples and not options.host_sampling
        if not self._samples:
            reason = (
                "as asked for" if options.host_sampling else "the artifact has no kernels for it"
            )
            _log.info("Logits are copied from the device and sampled on the host: %s.", reason)

    def _allocate(self, manifest: Manifest, budget: MakeBudget) -> DeviceBuffers:
        inputs_bytes = PackedInputs(self._limits, self._page_tokens, 0).capacity_bytes
        rows = min(self._limits.sequences, self._limits.step_tokens)
        plan = device_plan(
            manifest, self._library.scratch_bytes, inputs_bytes, 4 * rows * self._vocab_size
        )
        return allocate_buffers(self._device, self._folder, manifest, plan, budget)

    @property
    def total_blocks(self) -> int:
        """Pages in the KV pools."""
        return self.budget.pages

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self._page_tokens

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._vocab_size

    @property
    def graphs(self) -> Graphs:
        """The captured steps, for statistics."""
        return self._graphs

    def run(self, plan: Plan) -> Logits:
        """Logits of the wanted rows, in a buffer that the next call overwrites."""
        check_limits(plan, self._limits)
        self._device.attach()
        with self._range(f"{plan.phase} {plan.tokens} tokens of {len(plan.sequences)} sequences"):
            step = self._submit(plan)
            nbytes = 4 * step.logit_rows * self._vocab_size
            host = self._buffers.host_logits[:nbytes]
            if nbytes:
                self._device.download(host, self._buffers.logits)
            self._device.synchronize()
        return host.view(np.float32).reshape(step.logit_rows, self._vocab_size)

    @property
    def samples(self) -> bool:
        """Whether `sample` is there and wanted."""
        return self._samples

    def sample(self, plan: Plan, rows: SampleRows) -> Sequence[Sampled]:
        """Tokens for the wanted rows, chosen on the device."""
        check_limits(plan, self._limits)
        self._device.attach()
        with self._range(f"{plan.phase} {plan.tokens} tokens of {len(plan.sequences)} sequences"):
            self._submit(plan)
            if not len(rows.rows):
                self._device.synchronize()
                return ()
            with self._explained():
                logits = self._buffers.logits
                self._sampler.launch(self._context, logits, self._vocab_size, rows)
            return self._sampler.finish(rows)

    def profile(self, plan: Plan) -> tuple[LaunchTime, ...]:
        """Run a plan as it is, without graphs, and take the time of every launch."""
        check_limits(plan, self._limits)
        self._device.attach()
        calls = reported_calls(self._folder).get(plan.phase, ())
        timed = TimingLauncher(self._device, self._launcher, self._library.kernels, calls)
        step = self._pack(plan, widen=False)
        self._device.keep_busy()
        self._upload(step)
        self._context.launch = timed.function
        try:
            self._launch(step.size.decode)
        finally:
            self._context.launch = self._launcher.function
        times = timed.times()
        self._device.synchronize()
        return times

    def overwrite_weights(self, pattern: Bytes) -> None:
        """Put other bytes, again and again, in place of all weights: for measuring without any."""
        self._device.attach()
        self._buffers.overwrite_weights(pattern)

    def copy_bandwidth(self) -> float:
        """Bytes a second that a copy within the device reads and writes, measured now."""
        self._device.attach()
        return self._device.copy_bandwidth()

    def close(self) -> None:
        """Give all memory and the device back; safe to call twice."""
        self._device.close()

    def _submit(self, plan: Plan) -> PackedStep:
        """Copy the inputs and launch everything; the device may still be at it."""
        step = self._pack(plan, self._options.graphs and not self._options.check_launches)
        self._upload(step)
        if step.replayable:
            self._graphs.run(step.size, self._launch_decode)
        else:
            self._launch(step.size.decode)
        return step

    def _pack(self, plan: Plan, widen: bool) -> PackedStep:
        step = self._inputs.pack(plan, self._buffers.host_inputs, widen)
        if self._buffers.ensure_logits(4 * step.size.logit_rows * self._vocab_size):
            self._graphs.clear()  # they write to the old buffer
        return step

    def _upload(self, step: PackedStep) -> None:
        buffers = self._buffers
        self._device.upload(buffers.inputs, buffers.host_inputs[: step.nbytes])
        self._bind(step)

    def _bind(self, step: PackedStep) -> None:
        args, size = self._args, step.size
        args.tokens = size.tokens
        args.sequences = size.sequences
        args.logit_rows = size.logit_rows
        args.table_stride = size.table_stride
        args.logits = self._buffers.logits
        for name, offset in step.offsets.items():
            setattr(args, name, self._buffers.inputs + offset)
        self._context.longest_context = size.longest_context

    def _launch_decode(self) -> None:
        self._launch(True)

    def _launch(self, decode: bool) -> None:
        if self._marked is not None:
            self._marked.begin("decode" if decode else "prefill")
        with self._explained():
            self._library.run(self._context, self._args, decode)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the kernel whose launch failed."""
        try:
            yield
        except StepLaunchError as error:
            failure = self._launcher.take_failure()
            if failure is None:
                raise
            unit = self._library.kernels[failure.kernel].unit
            modules = modules_of_unit(self._folder, unit)
            raise StepLaunchError(self._library.describe(failure, modules)) from error


def _check_toolkit(target: TargetEntry, device: Device) -> None:
    """Refuse kernels of a later major version of CUDA than the driver knows."""
    major = (target.toolkit or "").partition(".")[0]
    known = device.facts.driver_version // 1000
    if major.isdigit() and int(major) > known:
        raise InfercError(
            f"{device.facts.label}: the artifact's kernels were compiled by CUDA {target.toolkit},"
            f" and the driver knows CUDA {known}. Install a newer driver, or compile the model"
            f" with CUDA {known}."
        )
