"""The GPU kernels compile, without a GPU, for every architecture in use, and keep out of local memory."""

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra (cuda-bindings) is not installed")

from benchmarks.contract import harness, products

ARCHS = ("sm_75", "sm_90", "sm_120")
SOURCES = {
    "gemv": products.gemv_source("IQ3_XXS", 2560, 1, False),
    "gemm": products.gemm_source("Q4_K", True),
    "steps": '#include "step_kernels.cuh"\n',
    "layers": '#include "layer_kernels.cuh"\n',
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("source", SOURCES)
def test_compiles(source: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CACHE", tmp_path)
    try:
        cubin = harness.compile_cubin(SOURCES[source], arch)
    except harness.NoCompiler as missing:
        pytest.skip(str(missing))
    assert cubin[:4] == b"\x7fELF"


def test_an_error_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CACHE", tmp_path)
    try:
        with pytest.raises(RuntimeError, match="undefined_name"):
            harness.compile_cubin("__global__ void k() { undefined_name(); }", "sm_90")
    except harness.NoCompiler as missing:
        pytest.skip(str(missing))
