"""The hot kernels compile for every architecture in use, within their registers and spills. Needs NVRTC, no GPU."""

import pytest

from strata.backends.cuda.compile import Compiler, nvrtc
from strata.backends.cuda.driver import Source
from strata.backends.cuda.hot import hot_kernels, missing
from strata.errors import DeviceError

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
HOT = hot_kernels()


@pytest.fixture(scope="module", autouse=True)
def compiler_is_there():
    try:
        nvrtc()
    except DeviceError as error:
        pytest.skip(str(error))


def excess(arch, folder, hot):
    compiler = Compiler(arch, folder)
    logs = {source: compiler.log(source) for source in {h.kernel.source for h in hot}}
    return [e for e in (h.excess(logs[h.kernel.source]) for h in hot) if e is not None]


@pytest.mark.parametrize("arch", ARCHS)
def test_registers_and_spills(arch, tmp_path):
    assert not excess(arch, tmp_path, [h for h in HOT if not h.archs or arch in h.archs])


def uncompiled(folder, hot):
    """sm_75 has no limits, and whether a kernel compiles does not depend on how well, which takes most of the time. The
    fast way knows not every instruction, so what it refuses goes the other."""
    fast = Compiler("sm_75", folder)
    left = [
        h for h in hot if "tells no" in (h.excess(fast.log(h.kernel.source, "--Ofast-compile=max")) or "")
    ]
    return [e for e in excess("sm_75", folder, left) if "tells no" in e]


def test_they_compile_for_what_may_spill(tmp_path):
    assert not uncompiled(tmp_path, HOT)


def test_what_this_architecture_lacks_is_seen(tmp_path, monkeypatch):
    """Bytes that cp.async copies: sm_80 on."""
    text = 'extern "C" __global__ void f() { asm volatile("cp.async.wait_all;"); }'
    monkeypatch.setattr(Source, "text", property(lambda _: text))
    assert uncompiled(tmp_path, HOT[:1])
    assert not [e for e in excess("sm_80", tmp_path, HOT[:1]) if "tells no" in e]


def test_a_limit_that_is_too_low_is_seen(tmp_path):
    hot = hot_kernels("norm_row of norm.cu | 16 0")[0]
    assert "registers of 16" in hot.excess(Compiler("sm_90", tmp_path).log(hot.kernel.source))


def test_what_takes_time_and_is_not_listed():
    first = str(HOT[0].kernel)
    assert missing([(first, 80.0), ("new of new.cu", 15.0), ("small of small.cu", 5.0)]) == ["new of new.cu"]
    with pytest.raises(ValueError, match=r"hot\.txt"):
        hot_kernels("norm_row | 1")
