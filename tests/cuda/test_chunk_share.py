"""CPU workers that take some of the experts that a prompt chunk lacks: who computes an expert changes no bit."""

import time
from dataclasses import replace

import numpy as np
import pytest
from gpu_rig import GEOMETRY

from strata import models
from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend, TierOptions
from strata.backends.cuda.prompt_experts import PromptExperts
from strata.backends.cuda.workers import MailboxWorkers
from strata.errors import FaultError
from strata.gguf import open_model
from strata.memory.counters import read_counters
from strata.memory.expert_store import ExpertStore, StoreOptions, expert_layers
from strata.ops import Buffer, Builder, StepBuffers, group_by_expert, routed_experts
from strata.ops.combine import Combine
from strata.synth import PlantedOptions, write_planted

EXPERTS, K, WIDTH = 40, 4, GEOMETRY.hidden_size
BY_COSTS, COSTS = -1.0, [1.0, 0.1, 0.1, 0.0, 0.0]
STALL, DIE = 1, 2
OUT = 25  # which word of the device's ExpertTier says where the mailbox has results


def written(path, **types):
    geometry = replace(GEOMETRY, num_experts=EXPERTS, vocab_size=512)
    write_planted(path, PlantedOptions(geometry, types=types, topics=8, gain=None), 2)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("share") / "planted.gguf")


class Rows:
    """The routed experts of some layers, one after another, of rows that choose a few of them far more often."""

    def __init__(self, backend, layers, rows, form="chunk"):
        self.backend, self.rows = backend, rows
        self.steps = StepBuffers.create(rows, 1, 64, rows)
        b, live = Builder(self.steps, rows), self.steps.num_rows
        b.form = form
        self.ids = Buffer("ids", (rows, K), "i32", "input", live=live)
        self.x = Buffer("x", (rows, WIDTH), "f32", "input", live=live)
        self.mix = Buffer("mix", (rows, K), "f32", "input", live=live)
        groups = group_by_expert(b, self.ids, EXPERTS)
        x, self.outs = self.x, []
        for i, layer in enumerate(layers):
            b.mark(f"layer.{i}")
            out = Buffer("out", (rows, WIDTH), "f32", "state", live=live)
            b.emit(Combine(routed_experts(b, x, groups, layer), self.mix, out))
            self.outs.append(out)
            x = out
        program = b.finish()
        self.borders = list(program.marks.values())
        backend.reserve(program.arena_bytes, form)
        self.replay = backend.lower(program, form)

    def fill(self):
        g, array = np.random.default_rng(self.rows), self.backend.array
        array(self.steps.num_rows)[0] = self.rows - 3
        array(self.x)[:] = g.standard_normal((self.rows, WIDTH))
        array(self.mix)[:] = g.uniform(0.1, 1, (self.rows, K))
        chosen = g.random((self.rows, EXPERTS)) * np.linspace(1, 4, EXPERTS)
        array(self.ids)[:] = np.argsort(chosen, axis=1)[:, :K]

    def results(self):
        return b"".join(
            self.backend.array(out)[:].tobytes()[: (self.rows - 3) * WIDTH * 4] for out in self.outs
        )

    def run(self):
        self.fill()
        self.replay.run()
        return self.results()

    def pairs(self):
        """Of each expert."""
        ids = self.backend.array(self.ids)[: self.rows - 3]
        return np.bincount(ids.reshape(-1), minlength=EXPERTS)


class Rig:
    """A device whose slots hold no expert yet."""

    def __init__(self, path, driver, share=BY_COSTS):
        file = open_model(path)
        self.layers = expert_layers(models.load(file))
        self.store = ExpertStore(self.layers, (file,), StoreOptions())
        self.store.load(None)
        self.backend = CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 20)
        size = -(-max(self.store.tiers.blob_bytes) // 256) * 256
        slots = (size,) * EXPERTS
        self.backend.hold_experts(
            self.store.tiers,
            TierOptions(slots, EXPERTS + 16, K, 0.5, 2, prompt_places=EXPERTS + 8, chunk_share=share),
        )
        self.tier = self.backend.tier
        self.tier.set_costs(COSTS)
        if share:
            self.device = self.tier.prompts.share.device

    def chunk(self, rows, layers=1):
        return Rows(self.backend, self.layers[:layers], rows)

    def computed(self, chunk):
        """Whether a chunk has the CPU's bits, experts copied for it, experts that the workers computed."""
        before = self.backend.prompt_counts
        right = chunk.run() == wanted(self.layers, chunk.rows, len(chunk.outs))
        after = self.backend.prompt_counts
        return right, *(after[k] - before[k] for k in ("prompt_copies", "prompt_cpu_experts"))


def wanted(layers, rows, count=1):
    return Rows(CpuBackend(2, "auto"), layers[:count], rows).run()


def cheapest(pairs):
    """How many experts the CPU takes by COSTS: those with the fewest pairs, while it is done before the link."""
    before = np.concatenate([[0], np.cumsum(np.sort(pairs))])
    m = np.arange(len(pairs) + 1)
    return int(np.argmin(np.maximum(COSTS[0] * (len(pairs) - m), COSTS[1] * m + COSTS[2] * before)))


@pytest.mark.parametrize("rows", [64, 128, 256])
def test_bits_do_not_depend_on_the_share(path, driver, rows):
    """Nor on where experts lie."""
    r = Rig(path, driver)
    chunk = r.chunk(rows)
    tiles = chunk.rows * K >= 14 * EXPERTS  # of tensor cores, which take the emulator long
    for resident in (12,) if tiles else (0, 12, EXPERTS):
        r.backend.fill((0, e) for e in range(resident))
        for share in (0.5, BY_COSTS) if tiles else (0.0, 0.5, 1.0, BY_COSTS):
            r.device.set_share(share)
            r.tier.set_costs(COSTS)  # workers correct them by what they take
            right, copied, computed = r.computed(chunk)
            absent = chunk.pairs()[resident:]
            absent = absent[absent > 0]
            taken = cheapest(absent) if share == BY_COSTS else int(share * len(absent) + 0.5)
            assert (right, copied, computed) == (True, len(absent) - taken, taken), (resident, share)
            assert share != BY_COSTS or not len(absent) or 0 < taken < len(absent)
    decode = read_counters(r.store.counters)
    assert decode["cpu_experts"] == decode["computed_pairs"] == 0  # what chunks do is not counted with steps
    r.tier.close()


@pytest.mark.parametrize(
    "types", [{"gate": "Q4_K", "up": "Q8_0", "down": "Q5_0"}, {"gate": "F16", "up": "F16"}]
)
def test_planes_of_several_types(driver, tmp_path, types):
    """Rows as int8 blocks, and as floats."""
    r = Rig(written(tmp_path / "types.gguf", **types), driver, 0.5)
    right, copied, computed = r.computed(r.chunk(64))
    assert right and copied > 0 and computed > 0
    r.tier.close()


def test_wider_chunks_and_those_without_a_share_have_no_such_nodes(path, driver):
    def entries(rows, share):
        return {n.kernel.entry for n in Rig(path, driver, share).chunk(rows).replay.launches}

    mine = {"share_absent", "take_computed"}
    assert entries(256, 0.5) >= mine | {"copy_absent"}
    for rows, share in ((512, 0.5), (256, 0.0)):
        found = entries(rows, share)
        assert not found & mine
        assert ("copy_absent" in found) == (rows == 256)  # what comes on a stream of its own is no node


def test_rows_that_nobody_takes_and_wrong_rows_are_seen(path, driver, monkeypatch):
    r = Rig(path, driver, 0.5)
    chunk = r.chunk(64)
    address, image = r.tier.prompts.share._mine, np.zeros(26, np.uint64)
    driver.download(address, image)
    for wrong in (0, 4 * WIDTH):
        image[OUT] += np.uint64(wrong)  # results are looked for a row further on
        driver.upload(address, image)
        assert r.computed(chunk)[0] == (wrong == 0)
    monkeypatch.setattr(PromptExperts, "take", lambda *_: [])
    assert not r.computed(r.chunk(64))[0]
    r.tier.close()


@pytest.mark.parametrize("fault", [STALL, DIE])
def test_a_worker_that_stalls_or_dies(path, driver, fault):
    """The chunk is void; until the late worker is through everything is copied, then the workers take their share."""
    r = Rig(path, driver, 0.5)
    chunk = r.chunk(64, layers=2)
    assert r.computed(chunk)[0]
    r.device.set_limit(100_000_000)
    r.device.inject_worker(fault, 7)
    with pytest.raises(FaultError, match="did not answer in time"):
        chunk.run()
    r.device.set_limit(20_000_000_000)
    for _ in range(2):
        right, copied, computed = r.computed(chunk)
        assert right and copied > 0 and computed == 0
    r.device.inject_worker(0, 0)
    assert r.device.workers == (1 if fault == DIE else 2)
    for _ in range(1 if fault == DIE else 200):  # what a dead worker has taken nobody computes
        right, _, computed = r.computed(chunk)
        assert right
        if computed > 0:
            break
    assert (computed > 0) == (fault == STALL)
    r.tier.close()


def test_steps_between_a_chunks_layers(path, driver):
    """Each has its mailbox; a chunk that is void leaves them alone."""
    r = Rig(path, driver, 0.5)
    chunk, step = r.chunk(64, layers=2), Rows(r.backend, r.layers[:2], 16, "step")
    want = wanted(r.layers, 64, 2), wanted(r.layers, 16, 2)
    for fault in (0, STALL):
        r.device.set_limit(100_000_000 if fault else 20_000_000_000)
        r.device.inject_worker(fault, 3)
        chunk.fill()
        step.fill()
        chunk.replay.submit(0, chunk.borders[1])
        step.replay.submit()
        chunk.replay.submit(chunk.borders[1])
        step.replay.submit()
        chunk.replay.wait()
        step.replay.wait()
        step.replay.check()
        assert step.results() == want[1]
        assert bool(chunk.replay.reported()) == bool(fault)
        assert fault or chunk.results() == want[0]
    r.device.inject_worker(0, 0)
    assert read_counters(r.store.counters)["cpu_experts"] > 0
    assert r.backend.prompt_counts["prompt_cpu_experts"] > 0
    r.tier.close()


def test_workers_sleep_when_nothing_that_posts_is_under_way():
    class Device:
        wakes = over = 0

        def started(self):
            self.wakes += 1
            return self.wakes

        def finished(self, number):
            self.over = number

    workers = MailboxWorkers(Device())
    workers.start(5)  # replays 1 to 4 are others'
    workers.over(4)
    assert (workers.device.wakes, workers.device.over) == (1, 0)
    workers.start(6)
    workers.over(5)  # the sixth may still post
    assert workers.device.over == 0
    workers.over(7)
    assert workers.device.over == workers.device.wakes == 2


def test_programs_wake_those_who_serve_them(path, driver):
    r = Rig(path, driver, 0.5)
    step = Rows(r.backend, r.layers[:1], 16, "step")
    served = [step.replay._workers, r.chunk(64).replay._workers, r.chunk(512).replay._workers]
    assert served == [r.tier.workers, r.tier.prompts.share.workers, None]
    r.tier.close()


def test_workers_are_awake_for_a_timeline(path, driver):
    r = Rig(path, driver, 0.5)
    chunk = r.chunk(64)
    computed = r.computed(chunk)[2]
    r.device.set_limit(2_000_000_000)
    chunk.run()
    time.sleep(0.05)  # until they sleep
    chunk.replay.timeline(1)
    chunk.replay.check()
    assert r.backend.prompt_counts["prompt_cpu_experts"] == 3 * computed > 0
    r.tier.close()
