"""Experts in slots, in the staging ring, in RAM: where they lie and who computes them changes no bit."""

import numpy as np
import pytest
from gpu_rig import GpuRig, digest
from rig import write_model

from strata.config import EngineOptions
from strata.engine import Engine


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tier") / "planted.gguf")


@pytest.fixture(scope="module")
def wanted(path):
    engine = Engine.load(path, EngineOptions(device="cpu", threads=2, prefill=0, max_model_len=192))
    return digest(engine, np.load(f"{path}.cycle.npy").tolist())


@pytest.mark.parametrize("slots", [0, 4, 20])
def test_equal(path, wanted, backend, slots):
    r = GpuRig(path, backend(), slots)
    got = r.digest()
    print({k: v for k, v in r.counts().items() if v})
    assert got == wanted
