"""How the CUDA executor runs: nothing here changes a result."""

import os
from dataclasses import dataclass, replace

from inferc.errors import RequestError

VARIABLE = "INFERC_CUDA"
_SWITCHES = {
    "no-graphs": {"graphs": False},
    "dependent-launch": {"dependent_launch": True},
    "check-launches": {"check_launches": True, "graphs": False},
    "host-sampling": {"host_sampling": True},
    "nvtx": {"nvtx": True, "graphs": False},
}


@dataclass(frozen=True)
class CudaOptions:
    """Switches of the executor; `from_environment` reads them from INFERC_CUDA.

    Attributes:
        graphs: decode steps are captured as CUDA graphs and replayed.
        dependent_launch: kernels that ask for it may begin before the one ahead has ended
            (programmatic dependent launch, sm_90 and later).
        check_launches: wait for each kernel, so that an error names the one that failed; slow.
        host_sampling: logits are copied to the host and sampled there.
        nvtx: mark steps and launches with NVTX ranges, for Nsight Systems; needs `nvtx`. A
            replayed graph has no launches to mark, so graphs are better off.
    """

    graphs: bool = True
    dependent_launch: bool = False
    check_launches: bool = False
    host_sampling: bool = False
    nvtx: bool = False


def from_environment() -> CudaOptions:
    """The options that INFERC_CUDA asks for: names of switches, with commas."""
    options = CudaOptions()
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        if name not in _SWITCHES:
            raise RequestError(
                f"{VARIABLE}: expected names among {', '.join(_SWITCHES)}, found '{name}'."
            )
        options = replace(options, **_SWITCHES[name])
    return options
