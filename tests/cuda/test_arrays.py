"""Arrays on the device and in page-locked memory, read piece by piece."""

import numpy as np
import pytest

from strata.backends.cuda.memory import DeviceArray, HostArray

SHAPE = (5, 12, 3, 4)
RING = np.arange(10, 17) % 12  # goes round the ring's end
PARTS = [(2,), (2, RING), (slice(1, 3),), ([4, 0, 1],), (3, slice(None))]


@pytest.fixture(params=["device", "host"])
def array(driver, request):
    values = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    if request.param == "device":
        array = DeviceArray(driver, driver.allocate(values.nbytes), SHAPE, np.float32)
    else:
        array = HostArray(driver, driver.allocate_host(values.nbytes), SHAPE, np.float32)
    array[:] = values
    return array, values


@pytest.mark.parametrize("where", PARTS, ids=str)
def test_parts_are_read_where_they_are_wanted(array, where):
    array, values = array
    out = np.full(values[where].shape, -1, np.float32)
    array.read_into(where, out)
    np.testing.assert_array_equal(out, values[where])
    np.testing.assert_array_equal(array[where], values[where])
