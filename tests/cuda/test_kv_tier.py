"""Groups of KV cells in slots beside pools in page-locked RAM: the bits are the CPU's whatever is resident, counts tell what
happened, and conversations that move pages see what hosts write."""

import numpy as np
import pytest
from backends.test_kv_resident import BUDGET, PAGES, RATIO, ROWS, Rig
from emulated_driver import EmulatedDriver

from strata.backends.cuda import CudaBackend
from strata.memory.resident import forget_pages
from strata.ops.kv_fetch import HEAD


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
    """The policy in a few lines: a step's groups that are resident are marked, then the others find slots. Any group may
    get any of these, so that the model goes on from what the device did."""

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
    assert counts["kv_streamed"] > 40 and ROWS * BUDGET * 6 <= asked


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
