"""Once warm, a step is two replays and nothing else: no memory, no recording, no copies, no launches beside them."""

from collections import Counter

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from golden import ALL
from tiny import write_tiny_llama

from strata.backends.cuda import CudaBackend
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.load import load_model

CALLS = (
    "allocate", "allocate_host", "upload", "download", "prepare", "record", "replay", "launch", "synchronize",
    "event", "signal", "wait", "mark",
)  # fmt: skip


class CountingDriver(EmulatedDriver):
    """Counts what the backend asks for; what the emulation does inside a call is not counted."""

    def __init__(self):
        super().__init__()
        self.calls, self._inside = Counter(), False

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in CALLS or self._inside:
            return found

        def counted(*args):
            self.calls[name] += 1
            self._inside = True
            try:
                return found(*args)
            finally:
                self._inside = False

        return counted


@pytest.fixture(scope="module", params=["llama", "qwen4exp-quantised"])
def model(request, tmp_path_factory):
    """One without recurrent state, one with all there is."""
    if request.param == "llama":
        return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    return ALL[request.param].model_path


class Even:
    """A mask that lets even tokens through."""

    def fill(self, allowed):
        allowed[:] = np.uint32(0x55555555).view(np.int32)

    def accept(self, token_id):
        pass


def warm_engine(model, rows, **more):
    """An engine whose requests have decoded a few tokens of their first page."""
    driver = CountingDriver()
    options = EngineOptions(device="cpu", prefill=0, max_model_len=256, max_num_seqs=rows, spec=0)
    engine = Engine(
        load_model(model, options, None, CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18))
    )
    sampling = SamplingParams(max_tokens=200, temperature=0.7, repetition_penalty=1.1, ignore_eos=True)
    for i in range(rows):
        engine.add([1 + i, 2, 3], sampling, **more)
    for _ in range(6):
        engine.step()
    return engine, driver


def of_steps(engine, driver, steps):
    """Calls of some steps, a step."""
    driver.calls.clear()
    for _ in range(steps):
        engine.step()
    return {name: count / steps for name, count in driver.calls.items()}


@pytest.mark.parametrize("rows", [1, 3])
def test_two_replays_a_step(model, rows):
    engine, driver = warm_engine(model, rows)
    # the event that is signalled after a replay and waited for before tokens are read
    assert of_steps(engine, driver, 20) == {"replay": 2, "signal": 2, "wait": 1}


def test_so_it_is_at_the_border_of_a_page(model):
    """There the next forward is not started ahead, and it waits for no one."""
    engine, driver = warm_engine(model, 1)
    calls = of_steps(engine, driver, 80)
    assert calls["replay"] == calls["signal"] == 2 and set(calls) == {"replay", "signal", "wait"}


def test_rows_with_a_mask_cost_no_more_calls(model):
    engine, driver = warm_engine(model, 2, mask=Even())
    calls = of_steps(engine, driver, 10)
    assert calls["replay"] == 2 and set(calls) <= {"replay", "signal", "wait", "upload"}, calls


def test_another_request_brings_no_memory_and_no_graph(model):
    """Requests that come and go find their programs recorded, once each bucket has been met."""
    engine, driver = warm_engine(model, 3)
    for request in engine.scheduler.open_requests[:2]:
        engine.abort(request)
    driver.calls.clear()
    engine.add([7, 8, 9], SamplingParams(max_tokens=4, ignore_eos=True))
    for _ in range(8):
        engine.step()
    assert not {"allocate", "allocate_host", "launch"} & set(driver.calls)


def test_the_count_would_tell(model, monkeypatch):
    """A step that copies, or records its graph anew, is seen."""
    engine, driver = warm_engine(model, 1)
    submit = type(engine._runner.programs.sampler).submit

    def careless(self, *part):
        self._graphs.clear()
        submit(self, *part)

    monkeypatch.setattr(type(engine._runner.programs.sampler), "submit", careless)
    assert of_steps(engine, driver, 4)["record"] == 2
