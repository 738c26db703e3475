"""The plan's figure of a GPU's memory is what loading takes there, and nothing is taken after that."""

import sys
from dataclasses import replace

import pytest
from emulated_driver import EmulatedDriver

from strata.backends.cuda import CudaBackend
from strata.backends.cuda.inputs import StepInputs
from strata.config import EngineOptions
from strata.engine.load import load_model
from strata.synth import FULL, PlantedOptions, write_planted

CONTEXT = 4096


class Ledger(EmulatedDriver):
    """Sums up what is allocated; computes nothing but what fills slots."""

    def __init__(self):
        super().__init__()
        self.taken = 0

    def allocate(self, nbytes):
        self.taken += nbytes
        return super().allocate(nbytes)

    def allocate_host(self, nbytes):
        taken, memory = self.taken, super().allocate_host(nbytes)
        self.taken = taken
        return memory

    def record(self, launches, stream=0):
        return None

    def replay(self, graph, stream=0):
        pass


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """All kinds of layers at widths of the target's order."""
    path = tmp_path_factory.mktemp("planned") / "model.gguf"
    sizes = {"hidden_size": 512, "moe_intermediate_size": 256, "shared_intermediate_size": 256}
    g = replace(
        FULL, num_layers=4, num_experts=32, vocab_size=8192, max_position=CONTEXT, draft=True, **sizes
    )
    write_planted(path, PlantedOptions(g), 2)
    return path


def loaded(path, monkeypatch, **more):
    monkeypatch.setattr(sys.modules["strata.memory.plan"], "LEAST_RESIDENT", 512)
    driver = Ledger()
    options = EngineOptions(device="cpu", threads=2, kv="int8", **{"prefill": 1024, **more})
    backend = CudaBackend(driver, slab_bytes=1 << 16, input_bytes=1 << 19)
    model = load_model(path, options, None, backend)
    model.runner.programs.prepare()
    return driver, model


@pytest.mark.parametrize(
    ("slots", "resident", "prefill"), [("auto", 0, "auto:1024"), ("64", 1024, 1024), ("8", 1024, 512)]
)
def test_what_is_planned_is_taken(path, monkeypatch, slots, resident, prefill):
    driver, model = loaded(path, monkeypatch, expert_cache=slots, kv_resident=resident, prefill=prefill)
    planned = model.placement.vram.used
    assert model.placement.model.stage(model.placement.choice) > 0 or not resident
    assert abs(driver.taken - planned) <= 0.01 * planned
    scratch = model.placement.model.step_scratch + model.placement.model.chunk_scratch
    assert scratch > 0.05 * planned, "a plan without it would not be noticed"


def test_nothing_is_taken_afterwards(path, monkeypatch):
    """Neither by a program of any width nor by parts of one."""
    driver, model = loaded(path, monkeypatch, expert_cache="64", kv_resident=1024)
    monkeypatch.setattr(StepInputs, "snapshot", lambda self: None)
    before, programs = driver.taken, model.runner.programs
    for lowered in {*programs.step_of, *programs.chunks}:
        for part in range(lowered.head + 1):
            lowered.submit_part(part)
        lowered.replay.submit()
    programs.sampler.submit()
    model.runner.backend.end_prompts()
    assert driver.taken == before
