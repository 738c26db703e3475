"""NVIDIA GPUs as the driver's management library sees them (NVML API reference, "Device Queries"); else none."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_CORE_TEMPERATURE = 0  # NVML_TEMPERATURE_GPU


class _Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


@cache
def _nvml() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(LIBRARY)
        library.nvmlDeviceGetHandleByIndex_v2.argtypes = (c_uint, POINTER(c_void_p))
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def gpus() -> list[dict[str, Any]]:
    """Of each GPU: name, memory_used and memory_total in bytes, busy as a share, celsius, watts; 0 where it does not
    tell."""
    library = _nvml()
    count = c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(byref(count)):
        return []
    handles = [c_void_p() for _ in range(count.value)]
    return [
        _look(library, handle)
        for i, handle in enumerate(handles)
        if library.nvmlDeviceGetHandleByIndex_v2(i, byref(handle)) == 0
    ]


def _look(library: ctypes.CDLL, handle: c_void_p) -> dict[str, Any]:
    name, memory, load = (c_char * 96)(), _Memory(), _Utilization()
    celsius, milliwatts = c_uint(), c_uint()
    library.nvmlDeviceGetName(handle, name, c_uint(len(name)))
    library.nvmlDeviceGetMemoryInfo(handle, byref(memory))
    library.nvmlDeviceGetUtilizationRates(handle, byref(load))
    library.nvmlDeviceGetTemperature(handle, c_uint(_CORE_TEMPERATURE), byref(celsius))
    library.nvmlDeviceGetPowerUsage(handle, byref(milliwatts))
    return {
        "name": name.value.decode("utf-8", "replace"),
        "memory_used": memory.used,
        "memory_total": memory.total,
        "busy": load.gpu / 100,
        "celsius": celsius.value,
        "watts": milliwatts.value / 1e3,
    }
