"""Groups of KV cells in slots beside pools in page-locked RAM: the bits are the CPU's whatever is resident, counts tell
what happened, and conversations that move pages see what hosts write."""

import random
import sys

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from golden import ALL

import models.driver
from backends.test_kv_resident import BUDGET, PAGES, RATIO, ROWS, Rig
from cuda.test_hybrids import TINY, mixed_steps
from engine.recorded import Recorded
from models.driver import Driver, digest
from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend
from strata.bench.probe import Probe
from strata.config import ServingOptions
from strata.engine import Engine, Status
from strata.engine.load import load_model
from strata.memory.resident import forget_pages, read_kv_counts
from strata.ops.kv_fetch import HEAD
from strata.synth.planted import PlantedOptions, write_planted


def device(seed=0, fused=True):
    return CudaBackend(EmulatedDriver(seed=seed), slab_bytes=1 << 20, input_bytes=1 << 16, fused=fused)


@pytest.mark.parametrize("kv", ["f32", "f16", "int8", "k8v4", "q4"])
def test_bits_do_not_depend_on_what_is_resident(kv):
    wanted = Rig(kv, None)
    steps = [wanted.step() for _ in range(12)]
    for cells in (4, 64, 256, PAGES * 64):
        rig = Rig(kv, cells, device(seed=cells))
        assert [rig.step() for _ in range(12)] == steps, cells


class SecondChance:
    """The policy in a few lines: a step's groups that are resident are marked, then the others find slots. Any group
    may get any of these, so that the model goes on from what the device did."""

    def __init__(self, clock, slots):
        self.hand, self.now = int(clock[0]), int(clock[1]) + 1
        self.groups, self.used, self.marked = (part.tolist() for part in clock[HEAD:].reshape(3, slots))

    def step(self, wanted):
        """Hits and fetches."""
        distinct = {group + 1 for group in wanted}
        missing = distinct - set(self.groups)
        for slot, group in enumerate(self.groups):
            if group in distinct:
                self.used[slot], self.marked[slot] = self.now, 1
        for group in missing:
            while self.groups[self.hand] and (self.used[self.hand] == self.now or self.marked[self.hand]):
                if self.used[self.hand] != self.now:
                    self.marked[self.hand] = 0
                self.hand = (self.hand + 1) % len(self.groups)
            slot, self.hand = self.hand, (self.hand + 1) % len(self.groups)
            self.groups[slot], self.used[slot], self.marked[slot] = group, self.now, 0
        return np.array([len(wanted) - len(missing), len(missing)])


def wanted(rig):
    """Groups that the rig's last step asked for, row by row."""
    at, steps, found = rig.at, rig.case.steps, []
    for row, position in enumerate(at(steps.positions).tolist()):
        blocks = at(rig.selected)[row].tolist()
        if (position + 1) % RATIO:
            blocks.append(position // RATIO)
        pages = at(steps.page_table)[row]
        found += [int(pages[b * RATIO // 64]) * (64 // RATIO) + b % (64 // RATIO) for b in blocks]
    return found


@pytest.mark.parametrize("cells", [112, 256])
def test_slots_go_by_second_chance(cells):
    """Also that table and owners agree, and that what is counted is what happened. 28 slots for up to 21 groups."""
    rig = Rig("f16", cells, device(seed=5))
    resident = rig.pool.kv.layers[0].resident
    before, expected = rig.counts(), np.zeros(2, int)
    for _ in range(40):
        model = SecondChance(np.asarray(rig.at(resident.clock)), resident.slots)
        rig.step(recent=True)
        expected += model.step(wanted(rig))
        clock, table = np.asarray(rig.at(resident.clock)), np.asarray(rig.at(resident.table))
        owners, used, marked = clock[HEAD:].reshape(3, -1)
        held = np.flatnonzero(table > 0)
        assert sorted(owners[owners > 0] - 1) == held.tolist()
        assert (owners[table[held] - 1] - 1 == held).all()
        assert set(owners.tolist()) == set(model.groups) and clock[:2].tolist() == [model.hand, model.now]
        assert used.tolist() == model.used and marked.tolist() == model.marked
    counts = {name: n - before[name] for name, n in rig.counts().items()}
    assert [counts["kv_hits"], counts["kv_fetches"], counts["kv_streamed"]] == [*expected, 0]
    assert counts["kv_fetch_bytes"] == counts["kv_fetches"] * 2 * 2 * RATIO * 64 * 2
    assert min(counts["kv_hits"], counts["kv_fetches"]) > 90


def test_groups_without_a_place_are_counted_as_streamed():
    rig = Rig("int8", 32, device(seed=2))
    before, asked = rig.counts(), 0
    for _ in range(6):
        rig.step()
        asked += len(wanted(rig))
    after = rig.counts()
    counts = {name: after[name] - before[name] for name in after}
    assert sum(counts[n] for n in ("kv_hits", "kv_fetches", "kv_streamed")) == asked
    assert counts["kv_streamed"] > 40 and asked >= ROWS * BUDGET * 6


def test_pages_that_a_host_writes_are_fetched_again():
    def run(backend, cells, forget):
        rig = Rig("f16", cells, backend)
        rig.step()
        rig.step()
        rig.at(rig.pool.kv.layers[0].k)[:] = np.float16(0.25)
        if forget:
            forget_pages(rig.pool.kv, rig.at, range(rig.pool.num_pages))
        rig.replay.run()
        return np.asarray(rig.at(rig.out)).tobytes()

    want = run(None, None, False)
    assert run(device(), 15 * 64, forget=True) == want
    assert run(device(), 15 * 64, forget=False) != want


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    path = tmp_path_factory.mktemp("planted") / "planted.gguf"
    write_planted(path, PlantedOptions(geometry=TINY, gain=4.0), 2)
    return path


@pytest.mark.parametrize(("cells", "rows", "kv"), [(16, 8, "int8"), (48, 8, "k8v4"), (512, 1, "q4")])
def test_fused_sublayers_of_sequences_that_share_the_slots(planted, cells, rows, kv, monkeypatch):
    monkeypatch.setattr(models.driver, "ROWS", rows)
    tokens = np.random.default_rng(2).integers(0, 250, 40).tolist()
    cpu, cuda = (
        Driver(planted, b, kv, resident=n) for b, n in ((CpuBackend(2), None), (device(seed=4), cells))
    )
    assert digest(mixed_steps(cuda, tokens, rows, 9)) == digest(mixed_steps(cpu, tokens, rows, 9))
    nodes = [n.kernel.entry for n in cuda.backend.driver.launched]
    assert nodes.count("attention_inputs") == nodes.count("kv_resolve") == nodes.count("kv_copy") == 1
    counts = read_kv_counts(cuda.state.kv, cuda.at)
    assert counts["kv_fetches"] > 0 and (counts["kv_streamed"] > 0) == (cells < 512)


def test_prompts_in_the_chunk_form():
    tokens = np.random.default_rng(3).integers(0, 120, 132).tolist()
    path = ALL["qwen4exp"].model_path
    every, few = (Driver(path, device(), "k8v4", resident=n).read(0, tokens, 64) for n in (None, 48))
    assert digest(every) == digest(few)


SMALL = {"device": "cpu", "prefill": 0, "threads": 2, "max_model_len": 192}


def recorded(monkeypatch, resident, **options):
    """An engine on the CPU, or with so many resident cells on the emulated device."""

    def load(path, options, serving):
        return Engine(load_model(path, options, None, device() if resident else None, serving))

    monkeypatch.setattr("engine.recorded.Engine.load", load)
    monkeypatch.setattr(sys.modules["strata.memory.plan"], "LEAST_RESIDENT", 16)
    serving = ServingOptions(conversation_cache_mib=64)
    return Recorded(ALL["qwen4exp"].model_path, serving, **SMALL, kv_resident=resident, **options)


def text(seed, count):
    return np.random.default_rng(seed).integers(0, 120, count).tolist()


def test_conversations_that_take_turns_in_a_pool_of_one(monkeypatch):
    """Pages leave the pool for RAM and come back; what is resident never shows."""

    def talk(resident):
        e = recorded(monkeypatch, resident, max_num_seqs=1)
        history, found = {seed: text(seed, 70) for seed in (0, 50)}, []
        for turn in (0, 1):
            for seed, known in history.items():
                result, answer, request = e.run(known, 8, turn)
                history[seed] = known + answer + text(seed + 1 + turn, 6)
                found.append((result, request.num_cached_tokens))
        return found, e.engine.tier_counts()

    (want, _), (got, counts) = talk(0), talk(32)
    assert got == want and got[2][1] > 0 and got[3][1] > 0
    assert counts["kv_fetches"] > 0


def test_a_filled_context_is_that_of_the_cpu(monkeypatch):
    """--fill-context writes the pools in RAM, twice: what was resident is fetched again."""
    found = []
    for resident in (0, 64):
        probe = Probe(recorded(monkeypatch, resident, max_num_seqs=1).engine._loaded)
        probe.loaded.runner.watch = lambda s, p, logits: found.append(np.array(logits).tobytes())
        for cells in (150, 150):
            probe.fill(cells)
            probe.tokens[:] = 3
            probe.step(cells)
            monkeypatch.setattr("strata.bench.probe._SEED", 2)
        monkeypatch.setattr("strata.bench.probe._SEED", 1)
    assert found[:2] == found[2:] and found[0] != found[1]


def test_preemption_at_random(monkeypatch):
    def play(resident):
        e, chance = recorded(monkeypatch, resident, max_num_seqs=2), random.Random(5)
        requests = [e.add(text(seed, 40), 24, seed) for seed in (3, 4)]

        def preempt():
            running = [r for r in e.engine.scheduler.running if r.output_token_ids]
            if running and chance.random() < 0.15:
                e.engine.scheduler.preempt(chance.choice(running))

        return e.finish(*requests, between=preempt), [r.status for r in requests]

    want, got = play(0), play(48)
    assert got == want and got[1] == [Status.FINISHED] * 2
