"""Resident groups of KV cells: the bits never depend on them, the counts tell what happened, hosts' writes are seen."""

import numpy as np
import pytest

from backends.harness import Case
from backends.test_recurrent_ops import out_of, rows_input
from strata import _native
from strata.backends.cpu import CpuBackend
from strata.memory import IndexShape, StatePool, StateShape
from strata.memory.resident import Residency, forget_pages, read_kv_counts
from strata.ops import kv_store, sparse_attention
from strata.ops.buffers import NUMPY_DTYPES, Buffer
from strata.ops.kv_fetch import HEAD

HEADS, KV_HEADS, DIM, RATIO, BUDGET, PAGES = 4, 2, 64, 4, 6, 12
ROWS, LENGTH = 3, 320


class Rig:
    """Steps that store a row of each of three sequences and attend to blocks chosen at random."""

    def __init__(self, kv, cells, backend=None):
        self.case = case = Case(ROWS, sequences=ROWS, max_len=LENGTH)
        resident = None if cells is None else Residency(cells)
        shape = StateShape(1, KV_HEADS, DIM, IndexShape(1, 32, RATIO))
        self.pool = StatePool.create(shape, PAGES + 3, ROWS, kv, resident)
        g = np.random.default_rng(7)
        for buffer in self.pool.kv.buffers():
            value = (
                g.integers(0, 99, buffer.shape) if buffer.dtype in ("i8", "u8") else g.random(buffer.shape)
            )
            case.set(buffer, value.astype(NUMPY_DTYPES[buffer.dtype]))
        case.set(case.steps.page_table, g.permutation(PAGES + 3).reshape(ROWS, -1).astype(np.int32))
        case.set(case.steps.sequences, np.arange(ROWS, dtype=np.int32))
        case.set(case.steps.positions, np.zeros(ROWS, np.int32))
        self.selected = Buffer("selected", (ROWS, BUDGET), "i32", "input", live=case.steps.num_rows)
        case.set(self.selected, np.zeros((ROWS, BUDGET), np.int32))
        self.k, self.v = (rows_input(case, ROWS, KV_HEADS * DIM, s) for s in (1, 2))
        layer = self.pool.kv.layers[0]
        kv_store(case.builder, self.k, self.v, layer)
        q = rows_input(case, ROWS, HEADS * DIM, 3)
        self.out = out_of(case, sparse_attention(case.builder, q, self.selected, layer, HEADS, RATIO, 0.125))
        program, self.backend = case.finish(), backend or CpuBackend(2)
        case.run(self.backend, self.out)
        self.replay = self.backend.lower(program)
        self.random = np.random.default_rng(11)

    def at(self, buffer):
        return self.backend.array(buffer)

    def step(self, recent=False):
        """A step at random positions; returns its bytes."""
        positions = self.random.integers(40, LENGTH - 1, ROWS)
        self.at(self.case.steps.positions)[:] = positions
        for r, position in enumerate(positions):
            blocks = (position + 1) // RATIO
            low = max(0, blocks - 8) if recent else 0
            chosen = self.random.choice(np.arange(low, blocks), BUDGET, replace=False)
            self.at(self.selected)[r] = np.sort(chosen)
        self.at(self.k)[:] = self.random.standard_normal(self.k.shape)
        self.at(self.v)[:] = self.random.standard_normal(self.v.shape)
        self.replay.run()
        return np.asarray(self.at(self.out)).tobytes()

    def counts(self):
        return read_kv_counts(self.pool.kv, self.at)


@pytest.mark.parametrize("kv", ["f32", "f16", "int8", "k8v4", "q4"])
def test_bits_do_not_depend_on_what_is_resident(kv):
    wanted = Rig(kv, None)
    steps = [wanted.step() for _ in range(25)]
    for cells in (4, 64, 256, PAGES * 64):
        rig = Rig(kv, cells)
        assert [rig.step() for _ in range(25)] == steps, cells
    for level in _native.isa_levels():
        rig = Rig(kv, 128, CpuBackend(2, level))
        assert [rig.step() for _ in range(5)] == steps[:5], level


def test_every_selected_group_is_counted_once():
    rig = Rig("f16", 64)
    before = rig.counts()
    asked = 0
    for _ in range(20):
        rig.step()
        tails = sum((int(p) + 1) % RATIO != 0 for p in rig.at(rig.case.steps.positions))
        asked += ROWS * BUDGET + tails
    after = rig.counts()
    known = ("kv_hits", "kv_fetches", "kv_streamed")
    assert sum(after[n] - before[n] for n in known) == asked
    assert after["kv_streamed"] > 0 and after["kv_fetches"] > 0  # 16 slots for up to 21 groups a step
    assert after["kv_fetch_bytes"] == after["kv_fetches"] * 2 * KV_HEADS * RATIO * DIM * 2


def test_more_slots_hit_more_and_all_fit():
    hits = []
    for cells in (128, 256, 15 * 64):
        rig = Rig("f16", cells)
        for _ in range(60):
            rig.step()
        c = rig.counts()
        hits.append(c["kv_hits"] / (c["kv_hits"] + c["kv_fetches"] + c["kv_streamed"]))
    assert hits == sorted(hits) and hits[2] > hits[0] + 0.2
    assert c["kv_fetches"] <= 15 * 64 // RATIO and c["kv_streamed"] == 0


def test_a_group_used_again_gets_a_second_chance():
    """One group is asked for in every step, others pass by: it is fetched once."""
    rig = Rig("f16", 96)
    rig.at(rig.case.steps.positions)[:] = 319
    base = rig.counts()["kv_hits"]
    for i in range(30):
        rest = 1 + (np.arange(BUDGET - 1) + 5 * i) % 70
        rig.at(rig.selected)[:] = np.sort(np.concatenate([[0], rest]))
        rig.replay.run()
    assert rig.counts()["kv_hits"] - base >= 29 * ROWS


def test_pages_that_a_host_writes_are_fetched_again():
    def run(forget):
        rig = Rig("f16", 15 * 64)
        rig.step()
        rig.step()
        rig.at(rig.pool.kv.layers[0].k)[:] = np.float16(0.25)
        if forget:
            forget_pages(rig.pool.kv, rig.at, range(rig.pool.num_pages))
            assert not rig.at(rig.pool.kv.layers[0].resident.table).any()
            clock = rig.at(rig.pool.kv.layers[0].resident.clock)
            assert not clock[HEAD : HEAD + rig.pool.kv.layers[0].resident.slots].any()
        rig.replay.run()
        return np.asarray(rig.at(rig.out)).tobytes()

    plain = Rig("f16", None)
    plain.step()
    plain.step()
    plain.at(plain.pool.kv.layers[0].k)[:] = np.float16(0.25)
    plain.replay.run()
    wanted = np.asarray(plain.at(plain.out)).tobytes()
    assert run(forget=True) == wanted
    assert run(forget=False) != wanted, "the fault that forgetting prevents would not be seen"
