"""Drafts on the device: programs of the draft layer replayed in chains, answers as on the CPU without drafts."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from drafting import Always
from golden import ALL

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams, Status
from strata.engine.load import load_model

CASES = {
    "qwen4exp": {"mtp": "on"},
    "qwen35-quantised": {"mtp": str(ALL["qwen35-quantised"].draft_path)},
}


def prompts():
    return np.random.default_rng(1).integers(0, 100, (3, 40)).tolist()


def play(engine, temperature):
    sampling = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=n) for i, n in enumerate((12, 20, 9))
    ]
    made = [engine.add(p[: 5 + 17 * i], s) for i, (p, s) in enumerate(zip(prompts(), sampling, strict=True))]
    while any(r.status is not Status.FINISHED for r in made):
        engine.step()
    return [(r.output_token_ids, r.finish_reason) for r in made]


def device_engine(name, backend, **more):
    options = EngineOptions(device="cpu", prefill=0, max_model_len=128, max_num_seqs=3, **CASES[name], **more)
    return Engine(load_model(ALL[name].model_path, options, None, backend()))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_without_drafts(name, temperature, backend):
    options = EngineOptions(device="cpu", prefill=0, max_model_len=128, max_num_seqs=3, spec=0)
    want = play(Engine.load(ALL[name].model_path, options), temperature)
    engine = device_engine(name, backend, lookup="off")
    drafts = engine.scheduler.drafts
    drafts.decision = Always(4)
    assert play(engine, temperature) == want
    assert drafts.counts.proposed["layer"] > 40
    assert engine._runner.following.chains.faults == 0


def test_drafts_are_the_cpu_s(backend):
    """What is proposed, not only what is accepted."""
    found = []
    for engine in (
        Engine.load(
            ALL["qwen4exp"].model_path,
            EngineOptions(device="cpu", prefill=0, max_model_len=128, max_num_seqs=3, lookup="off"),
        ),
        device_engine("qwen4exp", backend, lookup="off"),
    ):
        seen, drafts = [], engine.scheduler.drafts
        drafts.decision = Always(5)
        drafts.tamper = lambda request, tokens, seen=seen: seen.append(tokens) or tokens
        play(engine, 0.8)
        found.append(seen)
    assert found[0] == found[1]
    assert len(found[0]) > 15


def test_running_ahead_goes_on_where_nothing_is_drafted(backend):
    engine = device_engine("qwen4exp", backend, lookup="on")
    engine.scheduler.drafts.decision = Always(0)
    want = play(engine, 0.8)
    assert engine.scheduler.drafts.counts.drafted_steps == 0
    drafting = device_engine("qwen4exp", backend)
    drafting.scheduler.drafts.decision = Always(2)
    assert play(drafting, 0.8) == want
