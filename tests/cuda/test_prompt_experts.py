"""Prompt chunks whose experts lie in slots, in RAM, or anywhere between: one hash, however they arrive."""

import hashlib
import sys

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from gpu_rig import GpuRig, write_model
from streams_driver import StreamsDriver

from strata.backends.cuda import CudaBackend, backend, prompt_experts
from strata.backends.cuda.driver import COMPUTE, COPIES
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.load import load_model
from strata.memory import plan_parts

NARROW, WIDE = 64, 128
RESIDENT = 2  # SlotState of tiers.h


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("prompts") / "planted.gguf")


def device(driver=None):
    return CudaBackend(driver or EmulatedDriver(), slab_bytes=1 << 20, input_bytes=1 << 18)


def digest(engine, tokens, rows):
    return hashlib.sha256(np.concatenate(list(engine.logits(tokens, rows))).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def tokens(path):
    return np.load(f"{path}.cycle.npy").tolist()[:131]


@pytest.fixture(scope="module")
def wanted(path, tokens):
    """Of the same device with all experts in its memory."""
    options = EngineOptions(device="cpu", threads=2, prefill=WIDE, max_model_len=192)
    return digest(Engine(load_model(path, options, None, device())), tokens, WIDE)


@pytest.fixture(autouse=True)
def wide_from_here(monkeypatch):
    for module in (backend, prompt_experts):
        monkeypatch.setattr(module, "NARROW_ROWS", NARROW)
    monkeypatch.setattr(backend, "OWN_ROWS", NARROW)


def test_residency(path, tokens, wanted, monkeypatch, slots=30):
    """Of experts and of cells, and whether or not CPU workers take a share."""
    monkeypatch.setattr(sys.modules["strata.memory.plan"], "LEAST_RESIDENT", 16)
    r = GpuRig(path, device(StreamsDriver()), slots, "0.5", prefill=WIDE, kv_resident=16)
    assert digest(r.engine, tokens, NARROW) == wanted
    shared = r.engine.tier_counts()
    assert shared["prompt_cpu_experts"] > 0
    r.backend.tier.prompts.share.device.set_share(0.0)
    assert {digest(r.engine, tokens, rows) for rows in (NARROW, WIDE)} == {wanted}
    counts = r.engine.tier_counts()
    assert counts["prompt_cpu_experts"] == shared["prompt_cpu_experts"]
    assert counts["kv_stage_bytes"] > 0
    experts = r.backend.num_experts * r.layers
    wide = experts - slots  # all that no slot has; a narrow chunk copies less
    assert wide <= counts["prompt_copies"] - shared["prompt_copies"] <= 3 * wide


def answers(engine, tokens, between=lambda reader: None):
    """A prompt that is read while another answer goes on: logits of both by sequence and position; `between` is called
    after each step."""
    found = {}

    def watch(sequences, positions, logits):
        for s, p, row in zip(sequences.ravel(), positions.ravel(), logits, strict=True):
            found[int(s), int(p)] = row.tobytes()

    engine._runner.watch = watch
    first = engine.add(tokens[:3], SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True))
    while not first.output_token_ids:
        engine.step()
    second = engine.add(tokens, SamplingParams(max_tokens=4, temperature=1.0, ignore_eos=True))
    while first.finish_reason is None or second.finish_reason is None:
        engine.step()
        between(engine.scheduler._reader)
    assert first.error is None and second.error is None
    return found


@pytest.fixture(scope="module")
def resident(path, tokens):
    """The same of a device with all experts in its memory."""
    options = EngineOptions(device="cpu", threads=2, prefill=WIDE, max_model_len=192, max_num_seqs=2)
    return answers(Engine(load_model(path, options, None, device())), tokens)


def test_slots_lend_their_memory(path, tokens, resident, monkeypatch):
    """A wide chunk takes it, for cells from RAM too; steps between its layers do without those experts, and afterwards
    others are there."""
    monkeypatch.setattr("strata.engine.reader.MOST_CREDIT_MS", 1e-6)
    monkeypatch.setattr(sys.modules["strata.memory.plan"], "LEAST_RESIDENT", 16)
    r = GpuRig(path, device(StreamsDriver()), 62, prefill=WIDE, max_num_seqs=2, kv_resident=32)
    ask, seen = r.backend.tier.lending.ask, []
    monkeypatch.setattr(r.backend.tier.lending, "ask", lambda n: seen.append(ask(n)) or seen[-1])
    assert answers(r.engine, tokens) == resident
    assert seen[:2] == [False, True]  # the steps that decode emptied them
    assert r.backend._stage.lent
    counts = r.counts()
    assert counts["retirements"] >= 20  # the slots were emptied,
    assert counts["promotions"] >= 62 + 20  # and are not empty now
    assert not r.backend.tier.lending.lent


class Mover:
    """Between a chunk's layers, swaps an expert of a layer that the chunk is not at, then those of the layer whose list
    was made; counts the former that come while the chunk is read."""

    def __init__(self, rig):
        self._device, self._layers, self._experts = rig.device, rig.layers, rig.backend.num_experts
        self._coming, self.moved = [], 0

    def __call__(self, reader):
        if not reader.busy or not 0 < reader._part < self._layers:
            return
        states = self._device.slots()
        self.moved += sum(states[slot][1:] == (RESIDENT, *expert) for slot, expert in self._coming)
        self._coming.clear()
        for layer in ((reader._part + 2) % self._layers, reader._part):
            there = {state[3]: slot for slot, state in enumerate(states) if state[1:3] == (RESIDENT, layer)}
            absent = [e for e in range(self._experts) if self._device.slot_of(layer, e) < 0]
            for gone, expert in list(zip(there, absent, strict=False))[
                : None if layer == reader._part else 1
            ]:
                slot = there[gone]
                swapped = self._device.retire(layer, gone) and self._device.promote(layer, expert, slot)
                if swapped and layer != reader._part:
                    self._coming.append((slot, (layer, expert)))


@pytest.mark.parametrize(("first", "held"), [(COMPUTE, True), (COPIES, True), (COPIES, False)])
def test_experts_move_while_a_chunk_is_read(path, tokens, resident, monkeypatch, first, held):
    """All but those of the layer at hand and the next one; where those move too, it is seen."""
    monkeypatch.setattr("strata.engine.reader.MOST_CREDIT_MS", 1e-6)
    r = GpuRig(path, device(StreamsDriver(first)), 20, prefill=WIDE, max_num_seqs=2)
    if not held:
        monkeypatch.setattr(r.backend.tier.prompts, "_hold", lambda *layers: None)
    mover = Mover(r)
    assert (answers(r.engine, tokens, mover) == resident) == held
    assert mover.moved > 0
    assert r.backend.tier.prompts.held is False


def given_up(path, tokens, monkeypatch, when):
    """A rig whose prompt is aborted as soon as `when` is true beside an answer, and what was then signalled and waited
    for."""
    monkeypatch.setattr("strata.engine.reader.MOST_CREDIT_MS", 1e-6)
    r = GpuRig(path, device(StreamsDriver()), 20, prefill=WIDE, max_num_seqs=2)
    driver, events = r.backend.driver, []
    answer = r.engine.add(tokens[:3], SamplingParams(max_tokens=60, ignore_eos=True))
    while not answer.output_token_ids:
        r.engine.step()
    request = r.engine.add(tokens, SamplingParams(max_tokens=4))
    while not when(r):
        assert answer.finish_reason is None
        r.engine.step()
    assert r.backend.tier.prompts.held
    signal, wait_on = driver.signal, driver.wait_on
    monkeypatch.setattr(driver, "signal", lambda *of: events.append(of) or signal(*of))
    monkeypatch.setattr(driver, "wait_on", lambda *of: events.append(of) or wait_on(*of))
    r.engine.abort(request)
    r.engine.step()
    return r, events


@pytest.mark.parametrize(
    "when", [lambda r: r.backend.tier.prompts.begun, lambda r: r.engine.scheduler._reader._part]
)
def test_a_chunk_that_is_given_up(path, tokens, monkeypatch, when):
    """Before it begins, or between its parts: what is started later waits for the experts that were sent for it, since
    the ring has one list at a time."""
    r, events = given_up(path, tokens, monkeypatch, when)
    prompts = r.backend.tier.prompts
    assert events[:2] == [(prompts._ready, COPIES), (prompts._ready,)]
    assert (prompts.begun, prompts.held) == (0, False)


def test_a_ring_with_no_room_beside_a_layer(path, tokens, wanted, monkeypatch):
    """What does not fit beside the layer before waits for it."""
    monkeypatch.setattr("strata.engine.gpu_experts.prompt_places", lambda sizes, rows: 16)
    r = GpuRig(path, device(), 7, prefill=WIDE)
    assert digest(r.engine, tokens, WIDE) == wanted
    assert plan_parts.prompt_places(r.loaded.placement.model, 1) == 20


def test_a_wrong_place_is_seen(path, tokens, wanted):
    """The hash can fail: copies go where another expert's bytes should be."""
    r = GpuRig(path, device(), 3, prefill=WIDE)
    driver, prompts = r.backend.driver, r.backend.tier.prompts
    image = np.zeros(8, np.uint64)
    driver.download(prompts._ring, image)
    image[7] -= np.uint64(5)  # the ring is said to be smaller than a layer
    driver.upload(prompts._ring, image)
    assert digest(r.engine, tokens, WIDE) != wanted
