"""Calls of cuda-bindings' driver API: where they are found, and their errors in one line each."""

from typing import Any

from strata.errors import DeviceError

# What a driver's code means for a user, in one line each; the code itself is added.
CAUSES = {
    "CUDA_ERROR_NO_DEVICE": "no NVIDIA GPU is visible; --device cpu runs without one",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver and its library differ; restart the machine or its container",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "the driver is too old for this GPU's CUDA library",
    "CUDA_ERROR_INSUFFICIENT_DRIVER": "the driver is too old",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process has the GPU for itself (exclusive mode)",
    "CUDA_ERROR_OUT_OF_MEMORY": "GPU memory is full",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory failed (uncorrectable ECC error); it is lost until it is reset",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel read or wrote outside its memory; the GPU context is lost",
    "CUDA_ERROR_LAUNCH_FAILED": "a kernel failed; the GPU context is lost",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel ran longer than the display's watchdog allows; the GPU context is lost",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "the GPU reported a hardware error; its context is lost",
    "CUDA_ERROR_UNKNOWN": "the GPU does not answer; it may have fallen off the bus",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel image does not fit this GPU",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is older than the compiler; update it, or install cuda12",
}

# After these the context is over.
STICKY = {
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "HARDWARE_STACK_ERROR", "ECC_UNCORRECTABLE",
        "LAUNCH_FAILED", "LAUNCH_TIMEOUT",
    )
}  # fmt: skip


def bindings() -> Any:
    """cuda-bindings' driver module; DeviceError in one line where it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise DeviceError(
            "cuda-bindings is not installed; install strata-engine[cuda13], or [cuda12]"
        ) from None
    return driver


def check(result: tuple[Any, ...], doing: str = "") -> Any:
    """The values of a driver call; DeviceError in one line for any error."""
    code = result[0]
    if int(code) == 0:
        return result[1] if len(result) == 2 else result[1:]
    cause = CAUSES.get(code.name, "the driver reports an error")
    raise DeviceError(f"{cause} ({doing + ': ' if doing else ''}{code.name} {int(code)})")
