"""Running ahead on the device: requests that join, end and are aborted give the CPU's tokens."""

from pathlib import Path

import numpy as np
import pytest
from tiny import write_tiny_llama

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.ahead import RunAhead
from strata.engine.load import load_model

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module", params=["llama", "qwen4exp-quantised"])
def model(request, tmp_path_factory):
    if request.param == "llama":
        return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    return GOLDENS / request.param / "model.gguf"


def engines(model, backend):
    options = EngineOptions(device="cpu", prefill=0, max_model_len=128, max_num_seqs=3, spec=0)
    return Engine.load(model, options), Engine(load_model(model, options, None, backend()))


def play(engine):
    """Three requests of different lengths, one joining late, one aborted."""
    prompts = np.random.default_rng(1).integers(0, 100, (3, 9)).tolist()

    def add(i, **more):
        sampling = SamplingParams(temperature=0.7, seed=i, ignore_eos=True, **more)
        return engine.add(prompts[i][: 4 + i], sampling)

    requests = [add(0, max_tokens=30), add(1, max_tokens=6)]
    for step in range(60):
        if step == 12:
            requests.append(add(2, max_tokens=9, repetition_penalty=1.3))
        if step == 25:
            engine.abort(requests[0])
        engine.step()
    return [r.output_token_ids for r in requests]


@pytest.fixture
def met(monkeypatch):
    """Of every step that met a guess, whether it was taken."""
    seen = []
    meet = RunAhead.meet

    def spy(self, plan):
        guessed = self._guess is not None
        meet(self, plan)
        if guessed:
            seen.append(self.taken)

    monkeypatch.setattr(RunAhead, "meet", spy)
    return seen


def test_tokens_are_those_of_single_steps(model, backend, met):
    cpu, device = engines(model, backend)
    want = play(cpu)
    assert not met
    assert play(device) == want
    assert met.count(True) > 15 and met.count(False) >= 2


def test_a_wrong_guess_would_be_seen(model, backend, monkeypatch):
    """Taking every guess, whatever the plan, changes tokens."""
    cpu, device = engines(model, backend)

    def meet(self, plan):
        self.taken = self._guess is not None and len(plan.decode) == len(self._guess) and len(plan.decode) > 0
        self._guess = None if self.taken else self._guess
        if not self.taken:
            self._guess = None

    monkeypatch.setattr(RunAhead, "meet", meet)
    monkeypatch.setattr("strata.engine.ahead.SAMPLED", 5)  # the guess goes on from another token
    assert play(device) != play(cpu)


def test_a_fault_ends_its_request_alone(backend, tmp_path):
    """A page that is not there: the sequence ends, the other goes on."""
    _, device = engines(write_tiny_llama(tmp_path / "tiny.gguf"), backend)
    cpu = engines(tmp_path / "tiny.gguf", backend)[0]
    outputs = []
    for engine, damaged in ((cpu, False), (device, True)):
        sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        a, b = engine.add([1, 2, 3], sampling), engine.add([4, 5, 6], sampling)
        for step in range(20):
            if damaged and step == 5:
                runner = engine._runner
                runner._at[runner.step_inputs.page_table][a.sequence, 0] = 10_000
            engine.step()
        outputs.append((a, b))
    assert outputs[1][0].error is not None and len(outputs[1][0].output_token_ids) < 12
    assert outputs[1][1].output_token_ids == outputs[0][1].output_token_ids
