"""Experts in slots, in the staging ring, in RAM: where they lie and who computes them changes no bit."""

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from gpu_rig import EVERY, ROWS, GpuRig, digest, write_model
from rig import Swapper

from strata.backends.cuda import CudaBackend
from strata.backends.cuda.tier import ExpertTier
from strata.config import EngineOptions
from strata.engine import Engine, gpu_experts
from strata.engine.rates import MissCosts
from strata.errors import FaultError

STALL, DIE = 1, 2
ARRIVING, RESIDENT, LEAVING = 1, 2, 3  # SlotState of tiers.h


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tier") / "planted.gguf")


@pytest.fixture(scope="module")
def wanted(path):
    return cpu_digest(path)


def cpu_digest(path, rows=ROWS):
    engine = Engine.load(path, EngineOptions(device="cpu", threads=2, prefill=0, max_model_len=192))
    return digest(engine, np.load(f"{path}.cycle.npy").tolist(), rows)


def check(r, wanted, rows=ROWS):
    assert r.digest(rows) == wanted
    counts = r.counts()
    assert counts["routed_pairs"] == counts["computed_pairs"] > 0
    assert counts["distinct"] == counts["hits"] + counts["copies"] + counts["cpu_experts"]
    assert counts["void_steps"] == 0
    return counts


@pytest.mark.parametrize(("slots", "share"), [(0, "0"), (4, "1"), (20, "0"), (56, "0.5")])
def test_residency_and_cpu_share(path, wanted, backend, slots, share):
    r = GpuRig(path, backend(), slots, share)
    counts = check(r, wanted)
    assert (counts["hits"] > counts["staged_hits"]) == (slots > 0)
    assert (counts["copies"] > 0) == (share != "1")
    assert (counts["cpu_experts"] > 0) == (share != "0")
    assert {n.kernel.entry for n in r.launches(1)} >= {"stage_experts", "experts_gate_up", "experts_down"}
    assert "take_computed" not in {n.kernel.entry for n in r.launches(8)}
    assert ("take_computed" in {n.kernel.entry for n in r.launches(32)}) == (share != "0")


def test_every_bucket(path, backend):
    check(GpuRig(path, backend(), 20, "0.5"), cpu_digest(path, EVERY), EVERY)


def test_by_costs_the_link_brings_what_several_rows_miss(path, backend):
    """However cheap the CPU is: its experts would cross the link for their promotion before the step ends."""
    r = GpuRig(path, backend(), 4, "auto")
    r.backend.tier.set_costs(MissCosts(1e4, 1e-3, 1e-3, 1e-3, 1.0).values())
    check(r, cpu_digest(path, (1, 1)), (1, 1))
    of_one = r.counts()["cpu_experts"]
    assert of_one > 0
    check(r, cpu_digest(path, (2, 9)), (2, 9))
    assert r.counts()["cpu_experts"] == of_one


def test_planes_of_several_types(backend, tmp_path):
    path = write_model(tmp_path / "types.gguf", gate="Q4_K", up="Q8_0", down="Q5_0")
    r = GpuRig(path, backend(), 10, "0.5")
    check(r, cpu_digest(path))


def test_while_experts_are_swapped(path, wanted, backend):
    r = GpuRig(path, backend(), 16, "0.3")
    with Swapper(r.device, r.layers) as swapper:
        for _ in range(5):
            counts = check(r, wanted)
            if swapper.done >= 20 and counts["retirements"] >= 5:
                break
    assert swapper.done >= 20 and swapper.replaced >= 3
    assert counts["retirements"] >= 5


def test_an_expert_takes_the_place_of_another(path, wanted, backend):
    """In one change; not where it is already, and not in a slot whose expert is still on its way."""
    r = GpuRig(path, backend(), 20)
    device = r.device
    size, _, layer, expert = device.slots()[3]
    absent = next(e for e in range(16) if device.slot_of(layer, e) < 0)
    assert not device.replace(layer, expert, 3), "it is there"
    assert device.replace(layer, absent, 3)
    assert not device.replace(layer, expert, 3), "what comes is not there yet"
    assert device.slots()[3] == (size, ARRIVING, layer, absent) and device.slot_of(layer, expert) == -1
    before = r.counts()
    check(r, wanted)
    assert device.slots()[3] == (size, RESIDENT, layer, absent)
    assert before["promotions"] == before["retirements"] + 20 == 21
    assert not device.replace(layer, expert, 99)


def test_the_policy_brings_in_what_is_used(path, wanted, backend):
    r = GpuRig(path, backend(), 30, policy=True)
    before, hashes = r.counts()["promotions"], set()
    for _ in range(10):  # on a busy machine the policy may get few turns
        hashes.add(r.digest((1,) * 8))
        if r.counts()["promotions"] > before + 5:
            break
    assert r.counts()["promotions"] > before + 5
    assert len(hashes) == 1
    check(r, wanted)
    r.policy.close()


def test_what_the_ring_has_is_not_copied_again(path, backend, monkeypatch):
    monkeypatch.setattr(gpu_experts, "staging_places", lambda sizes: 48)
    r = GpuRig(path, backend(), 0)
    r.device.set_ahead(0)
    hashes = {r.digest((1,)) for _ in range(2)}
    counts = r.counts()
    assert len(hashes) == 1
    assert counts["copies"] == counts["staged_hits"] == counts["distinct"] // 2


@pytest.mark.parametrize("within", [True, False])
def test_steps_of_several_rows_take_changes_within(path, monkeypatch, within):
    """What is asked for while a step runs is promoted from the ring before that has come round."""
    driver = EmulatedDriver()
    monkeypatch.setattr(gpu_experts, "staging_places", lambda sizes: 20)  # a layer's experts, and a few
    if not within:
        monkeypatch.setattr(ExpertTier, "_takes_changes", lambda *_: False)
    r = GpuRig(path, CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18), 20)
    r.device.set_ahead(0)
    looks = [n.kernel.entry for n in r.launches(8) if n.kernel.entry in ("begin_experts", "stage_experts")]
    assert looks == ["stage_experts", *[*["begin_experts"] * within, "stage_experts"] * (r.layers - 1)]
    assert "begin_experts" not in {n.kernel.entry for n in r.launches(1)}
    gates = {layer: gate for gate, layer in r.loaded.experts.tiers.layers.items()}
    run, seen = driver._run, {}

    def table(layer):
        found = np.zeros(16, np.uint64)
        driver.download(r.backend.tier.table(gates[layer]), found)
        return found

    def ask_for_what_came(launch, call, watch):
        run(launch, call, watch)
        if launch.kernel.entry == "stage_experts":
            layer = int(launch.args[10])
            now, before = table(layer), seen[layer]
            came = [e for e in np.flatnonzero(now != before) if r.device.slot_of(layer, e) < 0]
            for e in came:  # the expert of another layer makes room
                any(
                    r.device.replace(layer, e, slot)
                    for slot, s in enumerate(r.device.slots())
                    if s[2] != layer
                )

    seen.update((layer, table(layer)) for layer in range(r.layers))
    monkeypatch.setattr(driver, "_run", ask_for_what_came)
    got = r.digest((8,))
    monkeypatch.setattr(driver, "_run", run)
    r.backend.tier.settle()
    assert got == cpu_digest(path, (8,))
    assert r.counts()["copies"] > 20, "the ring has come round"
    r.digest((1,))  # tells what was counted
    counts = r.counts()
    assert counts["promotions"] >= 20 + 20, "all slots got others"
    assert (counts["promotions_from_ram"] == 20) == within, "slots were filled from RAM"


@pytest.mark.parametrize("most", [1, 4])
def test_guesses_for_the_next_layer(path, wanted, backend, most, monkeypatch):
    monkeypatch.setattr(gpu_experts, "AHEAD", 2)
    r = GpuRig(path, backend(), 8, "0.3")
    r.device.set_ahead(most)
    assert sum(n.kernel.entry == "fetch_guessed" for n in r.launches(1)) == r.layers - 1
    counts = check(r, wanted)
    assert counts["prefetches"] >= counts["prefetch_used"] > 0


def test_slots_that_are_lent_stay_empty(path, wanted, backend):
    """Steps empty them, as many as there are changes in one; whoever moves experts finds no room there."""
    r = GpuRig(path, backend(), 20)
    device, lent = r.device, [3, 17, 18, 19]
    states = device.slots()
    assert device.lend(lent) == len(lent)
    assert [device.slots()[i][1] for i in lent] == [LEAVING] * 4
    assert not device.promote(*states[3][2:], 3), "it is lent"
    assert device.promote(*states[3][2:], 20) is False, "there is no such slot"
    check(r, wanted)
    assert device.lend(lent) == 0
    device.give_back()
    assert device.promote(*states[3][2:], 3)
    check(r, wanted)
    assert device.slots()[3] == states[3]
    with pytest.raises(ValueError, match="no slot 20"):
        device.lend([20])


def test_the_policy_leaves_layers_that_a_chunk_reads_alone(path, backend):
    """Nothing comes into them or leaves them; when the chunk is through, it does."""
    r = GpuRig(path, backend(), 30, policy=True)
    held = set(range(1, r.layers))

    def there():
        return {tuple(slot[2:]) for slot in r.device.slots() if slot[2] in held}

    def moves(tries):
        before = there()
        for _ in range(tries):
            r.digest((1,) * 8)
            if there() != before:
                return True
        return False

    r.device.reading(1, r.layers - 1)
    assert not moves(3)
    r.device.reading(0, 0)
    assert moves(20)
    r.policy.close()


def test_a_wrong_byte_is_seen(path, wanted, backend):
    """The hash can fail: two experts of a layer change places in the residency table."""
    r = GpuRig(path, backend(), 20)
    at = r.backend.tier.table(r.loaded.experts.layers[1].down)
    driver, table = r.backend.driver, np.zeros(16, np.uint64)
    driver.download(at, table)
    driver.upload(at, np.roll(table[:4], 1))
    assert r.digest() != wanted


@pytest.mark.parametrize("fault", [STALL, DIE])
def test_a_worker_that_stalls_or_dies(path, wanted, backend, fault):
    r = GpuRig(path, backend(), 4, "0.5")
    r.device.set_limit(200_000_000)
    r.device.inject_worker(fault, 7)
    with pytest.raises(FaultError, match="did not answer in time"):
        r.digest()
    r.engine._runner.pages.free(0)
    r.device.inject_worker(0, 0)
    r.device.set_limit(20_000_000_000)
    assert r.digest() == wanted
    assert r.counts()["void_steps"] == 1
    assert r.device.workers == (1 if fault == DIE else 2)


def test_steps_go_on_while_a_worker_stalls(path, wanted, backend):
    """Until the late worker is through, all misses are copied; then the workers take their share again."""
    r = GpuRig(path, backend(), 0, "1")
    for _ in range(r.device.workers):
        r.device.inject_worker(STALL, 0)
    r.device.set_limit(100_000_000)
    with pytest.raises(FaultError):
        r.digest((1,))
    r.engine._runner.pages.free(0)
    before = r.counts()["cpu_experts"]
    assert r.digest() == wanted
    assert r.counts()["cpu_experts"] == before
    r.device.inject_worker(0, 0)
    r.digest((1,))
    assert r.digest() == wanted
    assert r.counts()["cpu_experts"] > before


def test_a_slow_link_changes_no_bit(path, wanted, backend):
    r = GpuRig(path, backend(), 4, "0")
    r.device.set_link(3.0)
    check(r, wanted)
