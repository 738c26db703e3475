"""The hot kernels compile for every architecture in use, within their registers and spills. Needs NVRTC, no GPU."""

import pytest

from strata.backends.cuda.compile import Compiler, nvrtc
from strata.backends.cuda.hot import hot_kernels, missing
from strata.errors import DeviceError

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
HOT = hot_kernels()


@pytest.fixture(scope="module", autouse=True)
def compiler_is_there():
    try:
        nvrtc()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", ARCHS)
def test_registers_and_spills(arch, tmp_path):
    compiler = Compiler(arch, tmp_path)
    logs = {source: compiler.log(source) for source in {hot.kernel.source for hot in HOT}}
    excess = [hot.excess(logs[hot.kernel.source]) for hot in HOT]
    if arch == "sm_75":
        excess = [e for e in excess if e is not None and "tells no" in e]
    assert not any(excess), excess


def test_a_limit_that_is_too_low_is_seen(tmp_path):
    hot = hot_kernels("norm_row of norm.cu | 16 0")[0]
    assert "registers of 16" in hot.excess(Compiler("sm_90", tmp_path).log(hot.kernel.source))


def test_what_takes_time_and_is_not_listed():
    first = str(HOT[0].kernel)
    assert missing([(first, 80.0), ("new of new.cu", 15.0), ("small of small.cu", 5.0)]) == ["new of new.cu"]
    with pytest.raises(ValueError, match=r"hot\.txt"):
        hot_kernels("norm_row | 1")
