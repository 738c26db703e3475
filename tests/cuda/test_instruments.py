"""A filled context, rates and the table of nodes, on the emulated device; what the GPU says of itself."""

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from tiny import write_tiny_llama

from strata.backends.cuda import CudaBackend
from strata.backends.cuda.driver import DeviceProperties
from strata.backends.cuda.summary import kernels, paths_off
from strata.bench.probe import WARM_UP_ROUNDS, Probe
from strata.bench.sustained import describe
from strata.cli import decode_speed
from strata.config import EngineOptions
from strata.engine.load import load_model
from strata.errors import UsageError

OPTIONS = EngineOptions(device="cpu", prefill=0, max_model_len=256, kv="int8")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_a_filled_context_is_that_of_the_cpu(model):
    """The same pseudo-random cells give the same logits, others give others."""
    tokens = []
    for backend, cells in ((None, 150), (CudaBackend(EmulatedDriver(), 1 << 20), 150), (None, 90)):
        probe = Probe(load_model(model, OPTIONS, None, backend))
        probe.fill(cells)
        probe.loaded.runner.watch = lambda s, p, logits, to=tokens: to.append(np.array(logits).tobytes())
        probe.step(cells)
    assert tokens[0] == tokens[1] != tokens[2]


def test_rates_and_nodes(model):
    probe = Probe(load_model(model, OPTIONS, None, CudaBackend(EmulatedDriver(), 1 << 20)))
    steps = []
    step = probe.step
    probe.step = lambda position: steps.append(position) or step(position)
    assert len(probe.rates(3, 2, 1)) == 1
    assert steps == [3, 4] * (WARM_UP_ROUNDS + 1)
    table = probe.timeline()
    assert sum(count for _, count, _, _ in table) == len(probe.replay.launches)
    assert np.all(np.diff([us for _, _, us, _ in table]) <= 0)


def test_command(model):
    lines = decode_speed.decode_benchmark(model, OPTIONS, 100, 2, 1, 0, False)
    assert "(2 tokens after 100)" in lines[0] and "share" in lines[2]
    with pytest.raises(UsageError, match="needs a GPU"):
        decode_speed.decode_benchmark(model, OPTIONS, 0, 2, 1, 0, True)


def test_throttle_reasons():
    assert describe("300.1 W, 1700 MHz, 3201 MHz, 55, 0x0000000000000024").endswith(
        "power cap, thermal (software)"
    )
    assert describe("90 W, 1980 MHz, 3201 MHz, 40, 0x0000000000000001").endswith("not throttled")


def test_what_a_model_runs_on(model):
    runner = load_model(model, OPTIONS, None, CudaBackend(EmulatedDriver(), 1 << 20)).runner
    lowered = runner.programs.of("step", 1)
    lines = kernels(lowered.replay.launches)
    assert sum(int(line.split(" x ")[0]) for line in lines) == len(lowered.replay.launches)
    assert any("norm_row" in line for line in lines)
    new = DeviceProperties("new", "sm_90", 1, 1, 1, 1)
    assert paths_off(lowered.program.ops, new) == []
    old = paths_off(lowered.program.ops, DeviceProperties("old", "sm_75", 1, 1, 1, 1))
    assert [line.split(":")[0] for line in old] == ["dependent launch", "asynchronous copies"]
