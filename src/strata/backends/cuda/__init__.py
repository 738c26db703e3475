"""The CUDA backend: op records become kernel launches, recorded once as graphs and replayed."""

from pathlib import Path

from strata.backends.cuda.backend import CudaBackend
from strata.backends.cuda.nvidia import NvidiaDriver, device_count
from strata.backends.cuda.tier import TierOptions

__all__ = ["CudaBackend", "TierOptions", "gpu_count", "open_gpu"]


def gpu_count() -> int:
    """GPUs that can be used: 0 without a driver, the bindings or a GPU."""
    return device_count()


def open_gpu(number: int) -> CudaBackend:
    """The backend on a GPU; DeviceError in one line where it cannot be."""
    return CudaBackend(NvidiaDriver(number, Path("~/.cache/strata/kernels").expanduser()))
