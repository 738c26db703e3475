"""A thin driver for the contract's GPU experiments: NVRTC, launches with attributes, graphs, events, host memory."""

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = [ROOT / "src/strata/backends/cuda/kernels", ROOT / "native/include", ROOT / "benchmarks/contract"]
CACHE = ROOT / "build/cubins"
_CTYPES = {int: ctypes.c_int32, float: ctypes.c_float}


class NoCompiler(Exception):
    """The NVRTC library is not installed."""


def check(result: tuple[Any, ...]) -> Any:
    """The values of a driver or NVRTC call; RuntimeError on any error code."""
    code = result[0]
    if int(code) != 0:
        raise RuntimeError(f"{code!r}")
    return result[1] if len(result) == 2 else result[1:]


def _texts() -> str:
    return "".join(
        f.read_text()
        for p in INCLUDE
        for f in sorted([*p.rglob("*.cuh"), *p.rglob("*.h")])
        if f.name != "quants_tables.h"
    )


def compile_cubin(source: str, arch: str, headers: dict[str, str] | None = None) -> bytes:
    """NVRTC machine code of `source` for e.g. sm_90, kept in CACHE; `headers` replaces include files by text."""
    headers = headers or {}
    key = hashlib.sha256(repr((source, arch, sorted(headers.items()), _texts())).encode()).hexdigest()[:24]
    kept = CACHE / f"{key}.cubin"
    if kept.exists():
        return kept.read_bytes()
    cubin = _compile(source, arch, headers)
    CACHE.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_bytes(cubin)
    part.rename(kept)
    return cubin


def _program(source: str, arch: str, headers: dict[str, str], extra: tuple[str, ...] = ()) -> Any:
    """A compiled NVRTC program; NoCompiler without the library, RuntimeError with the log on an error."""
    names, texts = [n.encode() for n in headers], [t.encode() for t in headers.values()]
    try:
        program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", len(names), texts, names))
    except RuntimeError as error:
        if "nvrtc" in str(error).lower():
            raise NoCompiler(f"the NVRTC library is not installed: {error}") from error
        raise
    options = [f"--gpu-architecture={arch}", "--std=c++20", "--fmad=false", "-default-device", *extra]
    options += [f"-I{p}" for p in INCLUDE]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if int(code) != 0:
        raise RuntimeError(_log(program)[:6000])
    return program


def _log(program: Any) -> str:
    log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
    check(nvrtc.nvrtcGetProgramLog(program, log))
    return log.decode()


def _compile(source: str, arch: str, headers: dict[str, str]) -> bytes:
    program = _program(source, arch, headers)
    cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def compile_log(source: str, arch: str) -> str:
    """What ptxas says of registers and spills."""
    return _log(_program(source, arch, {}, ("--ptxas-options=-v",)))


class Buffer:
    """Device memory of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pointer = int(check(driver.cuMemAlloc(max(size, 16))))

    def put(self, data: np.ndarray, offset: int = 0) -> "Buffer":
        data = np.ascontiguousarray(data)
        check(driver.cuMemcpyHtoD(self.pointer + offset, data.ctypes.data, data.nbytes))
        return self

    def get(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray:
        out = np.empty(shape, dtype)
        check(driver.cuMemcpyDtoH(out.ctypes.data, self.pointer + offset, out.nbytes))
        return out

    def fill(self, byte: int) -> None:
        check(driver.cuMemsetD8(self.pointer, byte, self.size))

    def free(self) -> None:
        check(driver.cuMemFree(self.pointer))


class HostBuffer:
    """Page-locked memory that the GPU reads in place; `array` is its uint8 view."""

    def __init__(self, size: int) -> None:
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        self.pointer = int(check(driver.cuMemHostAlloc(size, flags)))
        self.array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.pointer))


class Gpu:
    """One device, one stream."""

    def __init__(self) -> None:
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.device))
        check(driver.cuCtxSetCurrent(self.context))
        self.stream = check(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        self.modules: list[Any] = []
        a = driver.CUdevice_attribute
        major, minor, self.sms, self.l2 = (
            check(driver.cuDeviceGetAttribute(x, self.device))
            for x in (
                a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                a.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
            )
        )
        self.arch = f"sm_{major}{minor}"

    def load(self, cubin: bytes) -> Any:
        self.modules.append(check(driver.cuModuleLoadData(cubin)))
        return self.modules[-1]

    def kernel(self, module: Any, name: str, shared: int = 0) -> Any:
        """A function of a module, allowed `shared` bytes of dynamic shared memory."""
        function = check(driver.cuModuleGetFunction(module, name.encode()))
        if shared > 48 * 1024:
            key = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, key, shared))
        return function

    def launch(
        self,
        function: Any,
        grid: tuple[int, ...],
        threads: int,
        args: tuple[Any, ...],
        shared: int = 0,
        dependent: bool = False,
        stream: Any = None,
    ) -> None:
        """Launches on the stream; Buffer and HostBuffer arguments pass as pointers, int as int32, float as float32."""
        values = tuple(a.pointer if isinstance(a, Buffer | HostBuffer) else a for a in args)
        types = tuple(
            ctypes.c_void_p
            if isinstance(a, Buffer | HostBuffer)
            else ctypes.c_uint64
            if isinstance(a, np.uint64)
            else _CTYPES[type(a)]
            for a in args
        )
        values = tuple(int(v) if isinstance(v, np.uint64) else v for v in values)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared
        config.hStream = stream or self.stream
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        check(driver.cuLaunchKernelEx(config, function, (values, types), 0))

    def capture(self, body: Any) -> Any:
        """A graph of what `body()` launches."""
        check(
            driver.cuStreamBeginCapture(self.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        )
        body()
        graph = check(driver.cuStreamEndCapture(self.stream))
        return check(driver.cuGraphInstantiate(graph, 0))

    def replay(self, graph: Any) -> None:
        check(driver.cuGraphLaunch(graph, self.stream))

    def sync(self) -> None:
        check(driver.cuStreamSynchronize(self.stream))

    def time(self, body: Any, repeats: int = 20, warmup: int = 3) -> list[float]:
        """Microseconds of each of `repeats` runs of body(), by events."""
        for _ in range(warmup):
            body()
        pairs = [[check(driver.cuEventCreate(0)) for _ in range(2)] for _ in range(repeats)]
        for begin, end in pairs:
            check(driver.cuEventRecord(begin, self.stream))
            body()
            check(driver.cuEventRecord(end, self.stream))
        self.sync()
        return [1000.0 * float(check(driver.cuEventElapsedTime(b, e))) for b, e in pairs]
