"""The devices that these tests run on: the emulated one everywhere, and a GPU where there is one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from emulated_driver import EmulatedDriver

from strata import env
from strata.backends.cuda import CudaBackend
from strata.backends.cuda.driver import Driver
from strata.errors import DeviceError

KERNEL_CACHE = Path(env.kernel_cache() or Path(__file__).resolve().parents[2] / "build" / "kernels")


def open_gpu() -> Driver:
    """GPU 0; a skip that says why where there is none."""
    from strata.backends.cuda.nvidia import NvidiaDriver  # noqa: PLC0415  (the bindings are optional)

    try:
        return NvidiaDriver(0, KERNEL_CACHE)
    except DeviceError as error:
        pytest.skip(f"no GPU to test on: {error}")


@pytest.fixture(scope="session", params=["emulated", pytest.param("gpu", marks=pytest.mark.cuda)])
def driver(request: pytest.FixtureRequest) -> Driver:
    """One driver for the session; both kinds keep what they compiled."""
    return EmulatedDriver() if request.param == "emulated" else open_gpu()


@pytest.fixture
def backend(driver: Driver) -> Callable[[], CudaBackend]:
    """Makes backends with little memory of their own."""
    return lambda: CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18)
