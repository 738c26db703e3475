"""GPUs through a management library that is made up."""

import ctypes

from strata.hw import gpu


class FakeLibrary:
    """Two GPUs, of which the first cannot be opened."""

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        return 0 if index else 999

    def nvmlDeviceGetName(self, handle, name, length):
        name.value = b"a card"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total, memory._obj.free, memory._obj.used = 10 << 30, 7 << 30, 3 << 30
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, load):
        load._obj.gpu = 40
        return 0

    def nvmlDeviceGetTemperature(self, handle, sensor, celsius):
        celsius._obj.value = 55
        return 0

    def nvmlDeviceGetPowerUsage(self, handle, milliwatts):
        return 3  # not supported


def test_what_a_gpu_tells(monkeypatch):
    monkeypatch.setattr(gpu, "_nvml", FakeLibrary)
    (card,) = gpu.gpus()
    assert card == {
        "name": "a card", "memory_used": 3 << 30, "memory_total": 10 << 30, "busy": 0.4, "celsius": 55, "watts": 0.0,
    }  # fmt: skip


def test_none_without_the_library(monkeypatch):
    monkeypatch.setattr(gpu, "LIBRARY", "libthere-is-no-such.so.1")
    gpu._nvml.cache_clear()
    assert gpu.gpus() == []
    gpu._nvml.cache_clear()
    assert ctypes.sizeof(gpu._Memory) == 24, "as the driver writes it"
