"""cuda-python's driver bindings: found, checked, and called with errors raised."""

from collections.abc import Callable
from functools import cache
from typing import Any

from inferc.errors import InfercError

_INSTALL = "pip install 'inferc[cuda]'"
_NEEDED_VERSION = 13000
"""What cuda-python 13 and kernels made by CUDA 13 need; NVIDIA's driver 580 is the first."""


class CudaError(InfercError):
    """A call of the driver failed."""

    def __init__(self, function: str, result: Any) -> None:
        self.result = int(result)
        self.short = found(self.result)
        super().__init__(f"{function} of NVIDIA's driver failed: {self.short}.")

    def is_called(self, name: str) -> bool:
        """Whether this is CUDA_ERROR_<name>."""
        return self.result == int(getattr(_module().CUresult, f"CUDA_ERROR_{name}"))


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Call a function of the bindings: (result, values …) → the value, or a tuple of several."""
    result, *values = function(*arguments)
    if int(result) != 0:
        raise CudaError(function.__name__, result)
    return values[0] if len(values) == 1 else tuple(values)


def found(result: int) -> str:
    """Name and meaning of a result of the driver, such as an error of a launch."""
    try:
        code = _module().CUresult(result)
    except (ValueError, InfercError):  # these bindings do not know it, or none are here
        return f"error {result}"
    try:
        return f"{code.name}, {_module().cuGetErrorString(code)[1].decode()}"
    except RuntimeError:  # no driver
        return str(code.name)


def open_driver() -> Any:
    """The bindings, once the driver behind them has been found to work."""
    driver = _module()
    try:
        result = int(driver.cuInit(0)[0])
        version = 0 if result else int(driver.cuDriverGetVersion()[1])
    except RuntimeError as error:  # the bindings load the driver at the first call
        raise InfercError(
            f"device cuda: NVIDIA's driver is not installed on this machine ({error})"
            " Use device='cpu', or install the driver."
        ) from error
    if result == int(driver.CUresult.CUDA_ERROR_NO_DEVICE):
        raise InfercError(
            "device cuda: NVIDIA's driver finds no GPU (is CUDA_VISIBLE_DEVICES set so that none"
            " is left?). Use device='cpu' without one."
        )
    if result:
        raise CudaError("cuInit", result)
    check_version(version)
    return driver


def check_version(version: int, needed: int = _NEEDED_VERSION) -> None:
    """Refuse a driver that is older than `needed`; both are 1000 * major + 10 * minor."""
    if version < needed:
        raise InfercError(
            f"device cuda: NVIDIA's driver is too old: it knows CUDA {_dotted(version)}, and"
            f" {_dotted(needed)} is needed. Install a newer driver (580 or later has CUDA 13)."
        )


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


@cache
def _module() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise InfercError(
            f"device cuda needs NVIDIA's bindings, which are not installed ({error}): {_INSTALL}"
        ) from error
    return driver
