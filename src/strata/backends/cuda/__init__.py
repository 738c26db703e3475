"""The CUDA backend: op records become kernel launches, recorded once as graphs and replayed."""

from pathlib import Path

from strata import env, hw
from strata.backends.cuda.backend import CudaBackend
from strata.backends.cuda.nvidia import NvidiaDriver, device_count
from strata.backends.cuda.tier import TierOptions

__all__ = ["CudaBackend", "TierOptions", "gpu_count", "kernel_cache", "open_gpu"]


def gpu_count() -> int:
    """GPUs that can be used: 0 without a driver, the bindings or a GPU."""
    return device_count()


def kernel_cache() -> Path:
    """Where compiled kernels are kept; may be filled on another machine with the same NVRTC."""
    return Path(env.kernel_cache() or hw.cache_directory() / "kernels")


def open_gpu(number: int) -> CudaBackend:
    """The backend on a GPU; DeviceError in one line where it cannot be."""
    return CudaBackend(NvidiaDriver(number, kernel_cache()))
