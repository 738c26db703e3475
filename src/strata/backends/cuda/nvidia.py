"""The driver protocol on an NVIDIA GPU, over cuda-bindings' driver API: one device, its primary context, one stream."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata import log
from strata.backends.cuda import compile as kernel_compiler
from strata.backends.cuda.compile import Compiler
from strata.backends.cuda.driver import COMPUTE, DeviceProperties, HostMemory, Kernel, Launch, Source
from strata.backends.cuda.driver_calls import CAUSES, STICKY, bindings, check
from strata.errors import DeviceError

_OLDEST = 75  # sm_75
_STATIC_SHARED = 48 << 10  # more must be asked for


def device_count() -> int:
    """GPUs that the driver shows; 0 without a driver, a package or a GPU."""
    try:
        driver = bindings()
        check(driver.cuInit(0))
        return int(check(driver.cuDeviceGetCount()))
    except (DeviceError, RuntimeError, OSError):
        return 0


class NvidiaDriver:
    """A GPU by number. Any thread may use it, one at a time; `close` gives all that it holds back."""

    def __init__(self, device: int, cache: Path):
        self._bindings = cuda = bindings()
        self._context: Any = None
        self._thread = threading.local()  # `bound`: the context is this thread's
        try:
            check(cuda.cuInit(0))
        except (RuntimeError, OSError) as error:
            raise DeviceError(f"no NVIDIA driver: {str(error).splitlines()[0]}") from None
        self._check_version()
        count = int(check(cuda.cuDeviceGetCount()))
        if not count:
            raise DeviceError(CAUSES["CUDA_ERROR_NO_DEVICE"])
        if not 0 <= device < count:
            raise DeviceError(f"--device names GPU {device}; this machine shows {count} (from 0 on)")
        self._device = check(cuda.cuDeviceGet(device))
        self.properties = self._read_properties()
        if int(self.properties.arch.removeprefix("sm_")) < _OLDEST:
            raise DeviceError(
                f"{self.properties.name} is {self.properties.arch}; sm_{_OLDEST} is the oldest served"
            )
        self._context = self._open()
        cuda = self._cuda
        apart = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._stream, self._side = (check(cuda.cuStreamCreate(apart)) for _ in range(2))
        # few thread blocks, which must not wait for many
        _, first = check(cuda.cuCtxGetStreamPriorityRange())
        self._streams = self._stream, check(cuda.cuStreamCreateWithPriority(apart, first))  # COMPUTE, COPIES
        self._compiler = Compiler(self.properties.arch, cache)
        self._modules: dict[Source, Any] = {}
        self._functions: dict[tuple[Kernel, bool], Any] = {}
        self._warn_of_others(device)

    def _open(self) -> Any:
        """The device's context. One that was lost cannot be had again in the same process (CUDA's manual, "sticky"
        errors; seen on an H200 after ILLEGAL_ADDRESS)."""
        code, context = self._bindings.cuDevicePrimaryCtxRetain(self._device)
        if code.name in STICKY:
            raise DeviceError(
                f"this process has lost the GPU and cannot have it again: start it anew ({code.name} {int(code)})"
            )
        return check((code, context), "opening the GPU")

    @property
    def _cuda(self) -> Any:
        """The bindings, with the context as the calling thread's."""
        if self._context is not None and not getattr(self._thread, "bound", False):
            check(self._bindings.cuCtxSetCurrent(self._context))
            self._thread.bound = True
        return self._bindings

    def close(self) -> None:
        """Ends the context and with it all memory, graphs and images; nothing may be used afterwards. One that is lost
        is given up without a word."""
        if self._context is not None:
            self._context = None
            self._bindings.cuDevicePrimaryCtxRelease(self._device)

    # ---- memory ------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Zeroed device memory."""
        pointer = int(self._within_memory(self._cuda.cuMemAlloc(max(nbytes, 16)), "allocating", nbytes))
        check(self._cuda.cuMemsetD8Async(pointer, 0, max(nbytes, 16), self._stream))
        self.synchronize()
        return pointer

    def _within_memory(self, result: tuple[Any, ...], doing: str, nbytes: int = 0) -> Any:
        """As `check`, for calls that take device memory: what was needed, where that is known, and what is free."""
        if result[0].name == "CUDA_ERROR_OUT_OF_MEMORY":
            free, total = (n / 2**30 for n in check(self._cuda.cuMemGetInfo()))
            needed = f"{nbytes / 2**30:.2f} GiB more needed" if nbytes else f"more needed for {doing}"
            raise DeviceError(
                f"GPU memory is full: {needed}, {free:.2f} of {total:.1f} GiB free; "
                "lower --max-context or --parallel, or keep keys and values in --kv int8"
            )
        return check(result, doing)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Zeroed page-locked memory; one address on both sides."""
        size = max(nbytes, 16)
        flags = self._cuda.CU_MEMHOSTALLOC_PORTABLE | self._cuda.CU_MEMHOSTALLOC_DEVICEMAP
        code, address = self._cuda.cuMemHostAlloc(size, flags)
        if code.name == "CUDA_ERROR_OUT_OF_MEMORY":  # of the host's memory, or what may be locked of it
            raise DeviceError(f"RAM cannot be page-locked: {size / 2**20:.1f} MiB more needed ({code.name})")
        pointer = int(check((code, address), "page-locking"))
        array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))
        array[:] = 0
        return HostMemory(pointer, array[:nbytes])

    def register(self, address: int, nbytes: int) -> int:
        """Page-locks host memory; unlike what is allocated here it may have another address for kernels."""
        cuda = self._cuda
        flags = cuda.CU_MEMHOSTREGISTER_PORTABLE | cuda.CU_MEMHOSTREGISTER_DEVICEMAP
        check(cuda.cuMemHostRegister(address, nbytes, flags), f"page-locking {nbytes / 2**30:.1f} GiB of RAM")
        return int(check(cuda.cuMemHostGetDevicePointer(address, 0), "mapping RAM"))

    def unregister(self, address: int) -> None:
        """After everything that may read it; a context that is over has given it back."""
        if self._context is None:
            return
        self.synchronize()
        check(self._cuda.cuMemHostUnregister(address), "unlocking RAM")

    def free_memory(self) -> int:
        """Bytes that can still be allocated."""
        return int(check(self._cuda.cuMemGetInfo())[0])

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copies to the device, on the stream."""
        check(self._cuda.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream), "uploading")
        self.synchronize()

    def download(self, address: int, out: NDArray[Any]) -> None:
        """Copies from the device, on the stream."""
        check(self._cuda.cuMemcpyDtoHAsync(out.ctypes.data, address, out.nbytes, self._stream), "downloading")
        self.synchronize()

    # ---- kernels -----------------------------------------------------------------------------------------------

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Compiles and loads the images of kernels that are not loaded."""
        missing = list(dict.fromkeys(k.source for k in kernels if k.source not in self._modules))
        if not missing:
            return
        before = self._compiler.compiled
        images = self._compiler.images(missing, self._progress)
        if self._compiler.compiled > before:
            log.logger(__name__).info("%d kernels compiled", self._compiler.compiled - before)
        for source, image in zip(missing, images, strict=True):
            loaded = self._cuda.cuModuleLoadData(image)
            self._modules[source] = self._within_memory(loaded, f"loading {source}")

    def _progress(self, done: int, of: int) -> None:
        if done == of or done % 16 == 0:
            log.logger(__name__).info("kernels for %s: %d of %d", self.properties.arch, done, of)

    def launch(self, launch: Launch) -> None:
        """Starts one kernel on the stream."""
        self.prepare([launch.kernel])
        self._start(launch, self._stream)

    def _start(self, launch: Launch, stream: Any) -> None:
        cuda, config = self._cuda, self._cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
        config.sharedMemBytes, config.hStream = launch.shared, stream
        attributes = self._attributes(launch)
        config.attrs, config.numAttrs = attributes, len(attributes)
        held = [np.array([a]) for a in launch.args]
        pointers = np.array([a.ctypes.data for a in held], np.uint64)
        function = self._function(launch.kernel, launch.shared)
        check(cuda.cuLaunchKernelEx(config, function, pointers.ctypes.data, 0), f"starting {launch.kernel}")

    def _attributes(self, launch: Launch) -> list[Any]:
        cuda, found = self._cuda, []
        if launch.dependent:
            serial = cuda.CUlaunchAttribute()
            serial.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            serial.value.programmaticStreamSerializationAllowed = 1
            found.append(serial)
        if launch.cluster > 1:
            cluster = cuda.CUlaunchAttribute()
            cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x = launch.cluster
            cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
            found.append(cluster)
        return found

    def _function(self, kernel: Kernel, shared: int) -> Any:
        large = shared > _STATIC_SHARED
        if (kernel, large) not in self._functions:
            module = self._modules[kernel.source]
            function = check(
                self._cuda.cuModuleGetFunction(module, kernel.entry.encode()), f"finding {kernel}"
            )
            if large:
                key = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                static = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
                room = self.properties.shared - int(check(self._cuda.cuFuncGetAttribute(static, function)))
                check(self._cuda.cuFuncSetAttribute(function, key, room), f"shared memory of {kernel}")
            self._functions[kernel, large] = function
        return self._functions[kernel, large]

    # ---- graphs ------------------------------------------------------------------------------------------------

    def record(self, launches: Sequence[Launch], stream: int = COMPUTE) -> Any:
        """A graph by stream capture; its programmatic edges come from the launches' attributes, its priority from the
        stream."""
        return self._capture(launches, lambda _: None, self._streams[stream])

    def _capture(self, launches: Sequence[Launch], after: Callable[[int], None], main: Any) -> Any:
        cuda = self._cuda
        self.prepare([launch.kernel for launch in launches])
        for launch in launches:
            self._function(launch.kernel, launch.shared)
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cuda.cuStreamBeginCapture(main, mode))
        try:
            after(0)
            beside = False
            for i, launch in enumerate(launches):
                if launch.beside and not beside:
                    self._follow(self._side, main)
                joins = launch.joins and beside
                if joins:
                    self._follow(main, self._side)
                beside = launch.beside or (beside and not joins)
                # What waits for two is not what dependent launch is made for.
                node = replace(launch, dependent=False) if joins else launch
                self._start(node, self._side if launch.beside else main)
                after(i + 1)
            if beside:
                self._follow(main, self._side)
        finally:
            graph = check(cuda.cuStreamEndCapture(main), "recording")
        executable = self._within_memory(cuda.cuGraphInstantiate(graph, 0), "instantiating a graph")
        check(cuda.cuGraphDestroy(graph))
        check(cuda.cuGraphUpload(executable, self._stream))
        return executable

    def _follow(self, stream: Any, other: Any) -> None:
        """What comes next on `stream` waits for what `other` has been given."""
        event = self.event()
        check(self._cuda.cuEventRecord(event, other))
        check(self._cuda.cuStreamWaitEvent(stream, event, 0))

    def timeline(self, launches: Sequence[Launch], repeats: int) -> list[float]:
        """Medians by events between nodes."""
        cuda = self._cuda
        events = [check(cuda.cuEventCreate(0)) for _ in range(len(launches) + 1)]
        external = int(cuda.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)
        launches = [replace(n, beside=False, joins=False) for n in launches]

        def note(i: int) -> None:
            check(cuda.cuEventRecordWithFlags(events[i], self._stream, external))

        graph = self._capture(launches, note, self._stream)
        seen = []
        for _ in range(repeats):
            self.replay(graph)
            self.synchronize()
            seen.append([self.elapsed(a, b) for a, b in pairwise(events)])
        return [float(x) for x in np.median(np.array(seen), axis=0)]

    def replay(self, graph: Any, stream: int = COMPUTE) -> None:
        """Starts a graph."""
        check(self._cuda.cuGraphLaunch(graph, self._streams[stream]), "replaying")

    def synchronize(self) -> None:
        """Waits for the stream."""
        check(self._cuda.cuStreamSynchronize(self._stream), "waiting")

    def event(self, timed: bool = False) -> Any:
        """An event, without timing where nobody asks for it."""
        untimed = int(self._cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        return check(self._cuda.cuEventCreate(0 if timed else untimed))

    def signal(self, event: Any, stream: int = COMPUTE) -> None:
        """Records it on the stream."""
        check(self._cuda.cuEventRecord(event, self._streams[stream]))

    def wait_on(self, event: Any, stream: int = COMPUTE) -> None:
        """Lets the stream wait."""
        check(self._cuda.cuStreamWaitEvent(self._streams[stream], event, 0))

    def wait(self, event: Any) -> None:
        """Waits for its last record."""
        check(self._cuda.cuEventSynchronize(event), "waiting")

    def passed(self, event: Any) -> bool:
        """Asks without waiting."""
        result = self._cuda.cuEventQuery(event)
        if result[0].name == "CUDA_ERROR_NOT_READY":
            return False
        check(result, "asking for an event")
        return True

    def mark(self) -> Any:
        """An event on the stream."""
        event = self.event(timed=True)
        self.signal(event)
        return event

    def elapsed(self, first: Any, last: Any) -> float:
        """Microseconds between two events."""
        return 1000.0 * float(check(self._cuda.cuEventElapsedTime(first, last)))

    # ---- what the machine is -----------------------------------------------------------------------------------

    def _check_version(self) -> None:
        found = int(check(self._cuda.cuDriverGetVersion()))
        wanted = kernel_compiler.version()[0]
        if found // 1000 < wanted:
            raise DeviceError(
                f"the NVIDIA driver serves CUDA {found // 1000}.{found % 1000 // 10}, the compiler is {wanted}'s: "
                f"update the driver, or install strata-engine[cuda{found // 1000}]"
            )

    def _read_properties(self) -> DeviceProperties:
        a = self._cuda.CUdevice_attribute
        major, minor, processors, shared, l2, clock, width = (
            int(check(self._cuda.cuDeviceGetAttribute(key, self._device)))
            for key in (
                a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                a.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                a.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
                a.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
                a.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
            )
        )
        name = check(self._cuda.cuDeviceGetName(128, self._device)).split(b"\0")[0].decode()
        memory = int(check(self._cuda.cuDeviceTotalMem(self._device)))
        return DeviceProperties(
            name, f"sm_{major}{minor}", processors, memory, shared, l2, 2e3 * clock * width / 8
        )

    def _warn_of_others(self, device: int) -> None:
        free, total = check(self._cuda.cuMemGetInfo())
        taken = total - free - (1 << 30)  # a context and its modules take up to a GiB
        if taken > 0:
            log.logger(__name__).warning(
                "other processes hold about %.1f of %.1f GiB of GPU %d",
                (total - free) / 2**30,
                total / 2**30,
                device,
            )
