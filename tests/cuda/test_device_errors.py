"""Whatever is wrong with a GPU is one clear line with the numbers; a made-up driver says it."""

import logging
import threading
from pathlib import Path

import numpy as np
import pytest
from fake_cuda import GIB, LOST, OUT_OF_MEMORY, Code, FakeCuda

from strata.backends.cuda import compile as compiler
from strata.backends.cuda import nvidia
from strata.backends.cuda.compile import KERNELS, Compiler
from strata.backends.cuda.driver import Kernel, Launch, Source
from strata.cli.main import main
from strata.errors import DeviceError


@pytest.fixture
def open_gpu(monkeypatch, tmp_path):
    """`open_gpu(...)`: a driver over FakeCuda(...), which it is given as `cuda`."""

    def make(device=0, fails=None, **made):
        cuda = FakeCuda(**made)
        cuda.fails.update(fails or {})
        monkeypatch.setattr(nvidia, "bindings", lambda: cuda)
        monkeypatch.setattr(compiler, "version", lambda: (13, 0))
        driver = nvidia.NvidiaDriver(device, tmp_path)
        driver.cuda = cuda
        return driver

    return make


NO_GPU = Code(100, "CUDA_ERROR_NO_DEVICE")
EXCLUSIVE = Code(46, "CUDA_ERROR_DEVICE_UNAVAILABLE")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"fails": {"cuInit": NO_GPU}}, "no NVIDIA GPU is visible; --device cpu runs without one"),
        ({"count": 0}, "no NVIDIA GPU is visible"),
        ({"device": 3, "count": 2}, "--device names GPU 3; this machine shows 2"),
        ({"version": 12040}, "the NVIDIA driver serves CUDA 12.4, the compiler is 13's: update the driver, or install"),
        ({"arch": (7, 0)}, "a card is sm_70; sm_75 is the oldest served"),
        ({"fails": {"cuDevicePrimaryCtxRetain": EXCLUSIVE}}, "another process has the GPU for itself"),
        ({"fails": {"cuDevicePrimaryCtxRetain": OUT_OF_MEMORY}}, "GPU memory is full (opening the GPU"),
        ({"fails": {"cuDevicePrimaryCtxRetain": LOST}}, "this process has lost the GPU and cannot have it again"),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_be_used(open_gpu, what, told):
    with pytest.raises(DeviceError) as raised:
        open_gpu(**what)
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_driver_library(monkeypatch, tmp_path):
    class Missing:
        def cuInit(self, flags):
            raise RuntimeError("Failed to load libcuda.so.1\nand more lines")

    monkeypatch.setattr(nvidia, "bindings", Missing)
    with pytest.raises(DeviceError, match=r"^no NVIDIA driver: Failed to load libcuda\.so\.1$"):
        nvidia.NvidiaDriver(0, tmp_path)
    assert nvidia.device_count() == 0


def test_memory_that_is_full_says_what_is_needed_and_free(open_gpu):
    driver = open_gpu(free=2 * GIB)
    driver.cuda.fails["cuMemAlloc"] = OUT_OF_MEMORY
    with pytest.raises(
        DeviceError, match=r"5\.00 GiB more needed, 2\.00 of 80\.0 GiB free; lower --max-context"
    ):
        driver.allocate(5 * GIB)
    driver.cuda.fails["cuMemHostAlloc"] = OUT_OF_MEMORY
    with pytest.raises(DeviceError, match=r"RAM cannot be page-locked: 3\.0 MiB more needed"):
        driver.allocate_host(3 << 20)
    driver.cuda.fails["cuGraphInstantiate"] = OUT_OF_MEMORY
    with pytest.raises(DeviceError, match=r"more needed for instantiating a graph, 2\.00 of 80\.0 GiB free"):
        driver.record([])


def test_another_process_on_the_card_is_a_warning(open_gpu, caplog):
    with caplog.at_level(logging.WARNING):
        open_gpu(free=79 * GIB)
        assert not caplog.messages
        open_gpu(free=30 * GIB)
    assert caplog.messages == ["other processes hold about 50.0 of 80.0 GiB of GPU 0"]


def test_a_lost_card_says_so_at_every_call(open_gpu):
    driver = open_gpu()
    driver.cuda.lost = LOST
    for call in (
        lambda: driver.replay(None),
        lambda: driver.wait(None),
        lambda: driver.upload(1, np.zeros(4, np.uint8)),
        lambda: driver.download(1, np.zeros(4, np.uint8)),
        lambda: driver.allocate(16),
    ):
        with pytest.raises(
            DeviceError, match=r"^a kernel failed; the GPU context is lost \(.*LAUNCH_FAILED 719\)$"
        ):
            call()
    driver.close()
    driver.close()
    assert driver.cuda.calls.count("cuDevicePrimaryCtxRelease") == 1


def test_any_thread_may_use_it(open_gpu):
    """The model is loaded by one thread and served by another, each of which needs the context."""
    driver, errors = open_gpu(), []

    def serve():
        try:
            driver.upload(1, np.zeros(4, np.uint8))
            driver.replay(None)
        except DeviceError as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert not errors
    assert driver.cuda.calls.count("cuCtxSetCurrent") == 2


@pytest.fixture
def broken_kernel(tmp_path):
    """A source that does not compile, with its own include path."""
    (tmp_path / "broken.cu").write_text('extern "C" __global__ void k(float* x) { *x = undeclared; }\n')
    return Compiler("sm_90", tmp_path / "cache", (tmp_path, KERNELS)), Source("broken.cu", (("ROWS", 2),))


def test_a_kernel_that_does_not_compile(broken_kernel):
    compiler, source = broken_kernel
    with pytest.raises(DeviceError) as raised:
        compiler.image(source)
    told = str(raised.value)
    assert told.startswith("broken.cu ROWS=2 does not compile for sm_90: ") and "\n" not in told
    assert 'identifier "undeclared" is undefined' in told
    log = told.rsplit("all of it is in ", 1)[1]
    assert "undeclared" in Path(log).read_text()


def test_a_kernel_that_fails_is_named(open_gpu, monkeypatch):
    driver = open_gpu()
    monkeypatch.setattr(driver._compiler, "images", lambda sources, progress: [b"" for _ in sources])
    driver.cuda.fails["cuModuleLoadData"] = Code(209, "CUDA_ERROR_NO_BINARY_FOR_GPU")
    node = Launch(Kernel(Source("norm.cu"), "norm"), (1, 1, 1), 32, ())
    with pytest.raises(
        DeviceError, match=r"the kernel image does not fit this GPU \(loading norm\.cu: .* 209\)"
    ):
        driver.record([node])


def test_the_command_prints_one_line(monkeypatch, capfd):
    """Asked for a GPU where none is."""
    cuda = FakeCuda(count=0)
    monkeypatch.setattr(nvidia, "bindings", lambda: cuda)
    monkeypatch.setattr(compiler, "version", lambda: (13, 0))
    model = "tests/goldens/llama/model.gguf"
    with pytest.raises(SystemExit) as left:
        main(["run", "--model", model, "--device", "cuda", "hello"])
    assert left.value.code == 1
    assert (
        capfd.readouterr().err == "strata: error: no NVIDIA GPU is visible; --device cpu runs without one\n"
    )
