"""cuda-bindings' driver module as NvidiaDriver calls it, without a GPU: what it answers can be set, and calls that need
the context of their thread fail without it, as the real ones do."""

import threading
from types import SimpleNamespace

GIB = 1 << 30
# Calls that need no context.
FREE = ("cuInit", "cuDriverGetVersion", "cuDevice", "cuCtxSetCurrent")
ENUMS = (
    "CUdevice_attribute",
    "CUstream_flags",
    "CUstreamCaptureMode",
    "CUevent_flags",
    "CUevent_record_flags",
)


class Code(int):
    """A CUresult."""

    def __new__(cls, value=0, name="CUDA_SUCCESS"):
        made = super().__new__(cls, value)
        made.name = name
        return made


OUT_OF_MEMORY = Code(2, "CUDA_ERROR_OUT_OF_MEMORY")
LOST = Code(719, "CUDA_ERROR_LAUNCH_FAILED")


class Enum:
    """Any member, as a number."""

    def __getattr__(self, name):
        return sum(name.encode()) if not name.startswith("_") else super().__getattribute__(name)


class FakeCuda:
    """`fails`: by call, the code it ends with; `lost`: with what everything ends; `calls`: names in order."""

    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP = 1, 2

    def __init__(self, *, version=13000, count=1, arch=(9, 0), free=70 * GIB, total=80 * GIB):
        self.version, self.count, self.arch, self.free, self.total = version, count, arch, free, total
        self.fails, self.lost, self.calls = {}, None, []
        self._thread, self._address = threading.local(), 1 << 40
        for name in ENUMS:
            setattr(self, name, Enum())

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args):
            self.calls.append(name)
            if name in self.fails:
                return (self.fails[name], None)
            if not name.startswith(FREE):
                if self.lost is not None:
                    return (self.lost, None)
                if not getattr(self._thread, "bound", False):
                    return (Code(201, "CUDA_ERROR_INVALID_CONTEXT"), None)
            return (Code(), *self._answer(name, args))

        return call

    def _answer(self, name, args):
        if name == "cuMemAlloc":
            self._address += 1 << 32
        if name == "cuCtxSetCurrent":
            self._thread.bound = True
        known = {
            "cuDriverGetVersion": (self.version,),
            "cuDeviceGetCount": (self.count,),
            "cuDeviceGetName": (b"a card\0",),
            "cuDeviceTotalMem": (self.total,),
            "cuMemGetInfo": (self.free, self.total),
            "cuMemAlloc": (self._address,),
            "cuCtxGetStreamPriorityRange": (0, -5),
        }
        if name == "cuDeviceGetAttribute":
            return (self._attribute(args[0]),)
        return known.get(name, (SimpleNamespace(),))

    def _attribute(self, key):
        keys = self.CUdevice_attribute
        if key == keys.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            return self.arch[0]
        return self.arch[1] if key == keys.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR else 64 << 10
