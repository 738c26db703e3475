"""The stage of chunks whose cells lie in RAM: the bits of a pool in VRAM, whether cells come ahead or by choice."""

import functools

import numpy as np
import pytest
from streams_driver import StreamsDriver

from backends.harness import Case
from strata.backends.cuda import CudaBackend
from strata.backends.cuda import backend as backend_module
from strata.backends.cuda.driver import COMPUTE, COPIES
from strata.errors import FaultError
from strata.memory import IndexShape, StatePool, StateShape
from strata.memory.resident import Residency, read_kv_counts
from strata.ops import Buffer, Builder, copy_rows, kv_store, sparse_attention
from strata.ops.buffers import NUMPY_DTYPES
from strata.ops.select_blocks import RankBlocks

HEADS, KV_HEADS, DIM, INDEX_DIM, RATIO = 4, 2, 64, 64, 4
PAGES, MAX_LEN, LAYERS = 40, 1024, 2
BUDGET, ROWS, FIRST = 24, 64, 576
VRAM = None
LIE, STAGED = Residency(64), Residency(64, staged=True)


def rows_of(case, width, seed, unlike=1.0):
    """Rows that differ from each other by so much."""
    random = np.random.default_rng([seed, width])
    rows = random.standard_normal(width) + unlike * random.standard_normal((ROWS, width))
    return case.input(rows.astype(np.float32))


class Chunk:
    """A chunk of one sequence through layers of stores, selection and attention, on pools filled at random."""

    def __init__(self, kv, resident, ratio=RATIO, first=FIRST):
        self.case = case = Case(ROWS, sequences=2, max_len=MAX_LEN)
        case.builder = Builder(case.steps, ROWS, "chunk")
        shape = StateShape(LAYERS, KV_HEADS, DIM, IndexShape(LAYERS, INDEX_DIM, ratio))
        self.pool = StatePool.create(shape, PAGES, 2, kv, resident)
        random = np.random.default_rng(3)
        for buffer in self.pool.paged():
            integers = buffer.dtype in ("i8", "u8")
            value = random.integers(0, 99, buffer.shape) if integers else random.standard_normal(buffer.shape)
            value = np.abs(0.02 * value) if "scales" in buffer.name else value
            case.set(buffer, value.astype(NUMPY_DTYPES[buffer.dtype]))
        table = random.permutation(PAGES)[:32].reshape(2, 16)
        case.set(case.steps.page_table, table.astype(np.int32))
        case.set(case.steps.sequences, np.ones(ROWS, np.int32))
        case.set(case.steps.positions, np.arange(first, first + ROWS, dtype=np.int32))
        self.outs = [self._layer(i, ratio) for i in range(LAYERS)]

    def _layer(self, i, ratio):
        case, b = self.case, self.case.builder
        b.mark(f"layer.{i}")
        kv_store(b, *(rows_of(case, KV_HEADS * DIM, 10 * i + s) for s in (1, 2)), self.pool.kv.layers[i])
        step = (case.steps.positions, case.steps.sequences, case.steps.page_table)
        selected = Buffer(f"selected.{i}", (ROWS, BUDGET), "i32", "output", live=case.steps.num_rows)
        index, q = rows_of(case, 3 * INDEX_DIM, 10 * i + 3, 0.1), rows_of(case, HEADS * DIM, 10 * i + 4)
        b.emit(RankBlocks(*step, index, self.pool.index[i].pooled, selected, BUDGET, MAX_LEN // ratio))
        y = sparse_attention(b, q, selected, self.pool.kv.layers[i], HEADS, ratio, DIM**-0.5)
        out = Buffer(f"out.{i}", y.shape, role="output", live=case.steps.num_rows)
        copy_rows(b, y, out)
        return out

    def lower(self, backend):
        self.backend, program = backend, self.case.finish()
        self.replay = backend.lower(program, "chunk")
        for buffer, value in self.case.values.items():
            backend.array(buffer)[: len(value)] = value
        return self

    def run(self):
        self.replay.run()
        return np.stack([np.asarray(self.backend.array(out)[:]) for out in self.outs])

    def counts(self):
        return read_kv_counts(self.pool.kv, self.backend.array)

    def entries(self):
        return [n.kernel.entry for n in self.replay.launches]


def outputs(kv, resident, backend, **more):
    return Chunk(kv, resident, **more).lower(backend).run()


@pytest.fixture(params=["by choice", "ahead"])
def wide(request, monkeypatch):
    """Whether chunks of 64 rows are wide ones."""
    if request.param == "ahead":
        monkeypatch.setattr(backend_module, "CHOOSING_ROWS", 32)
    return request.param == "ahead"


@pytest.fixture(scope="module")
def wanted(driver):
    """Outputs with all cells in VRAM, by format and cells of a block."""

    @functools.cache
    def found(kv, ratio=RATIO):
        return outputs(kv, VRAM, CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18), ratio=ratio)

    return found


@pytest.mark.parametrize(("kv", "ratio"), [("int8", 4), ("k8v4", 16)])
def test_bits_are_those_of_vram(backend, wanted, wide, kv, ratio):
    want = wanted(kv, ratio)
    assert np.isfinite(want).all()
    if not wide:
        assert np.array_equal(outputs(kv, LIE, backend(), ratio=ratio), want)
    chunk = Chunk(kv, STAGED, ratio=ratio).lower(backend())
    assert np.array_equal(chunk.run(), want)
    assert np.array_equal(chunk.run(), want)  # bits of what is wanted, and counters, are clean again
    entries = chunk.entries()
    assert entries.count("kv_bring") == entries.count("kv_wanted") == (1 if wide else LAYERS)
    assert entries.count("kv_store") == 2 * LAYERS and "kv_resolve" not in entries


def test_what_is_copied_is_what_is_wanted_once(backend, wide):
    chunk = Chunk("int8", STAGED).lower(backend())
    chunk.run()
    group, before = RATIO * KV_HEADS * 2 * (DIM + 2), FIRST // RATIO
    chosen = [
        np.asarray(chunk.backend.array(s)[:]) for s in chunk.replay._program.buffers() if "selected" in s.name
    ]
    distinct = [len({g for g in rows.ravel().tolist() if g < before}) for rows in chosen]
    assert min(distinct) > 0 and max(distinct) < before
    groups = distinct[0] + (LAYERS - 1) * before if wide else sum(distinct)
    assert chunk.counts()["kv_stage_bytes"] == groups * group


def test_the_first_chunk_copies_nothing(backend):
    want = outputs("int8", VRAM, backend(), first=0)
    chunk = Chunk("int8", STAGED, first=0).lower(backend())
    assert np.array_equal(chunk.run(), want)
    assert chunk.counts()["kv_stage_bytes"] == 0


def test_cells_reach_the_pool_in_ram(backend):
    """What a chunk computes is where steps look for it."""
    pools = []
    for resident in (VRAM, STAGED):
        chunk = Chunk("int8", resident).lower(backend())
        chunk.run()
        pools.append([np.asarray(chunk.backend.array(b)[:]).tobytes() for b in chunk.pool.kv.buffers()])
    assert pools[0] == pools[1]


@pytest.mark.parametrize("first", [COMPUTE, COPIES])
@pytest.mark.parametrize("missing", [None, "compute", "copies"])
def test_streams_wait_for_each_other(wanted, first, missing, monkeypatch):
    """Whichever goes on as far as it may; and a wait that is not there is seen by one of them."""
    monkeypatch.setattr(backend_module, "CHOOSING_ROWS", 32)
    chunk = Chunk("int8", STAGED).lower(
        CudaBackend(StreamsDriver(first), slab_bytes=1 << 20, input_bytes=1 << 18)
    )
    stage = chunk.replay.staged.stage
    if missing == "compute":
        monkeypatch.setattr(stage, "settle", lambda: None)
    elif missing == "copies":
        wait_on = stage._driver.wait_on
        monkeypatch.setattr(stage._driver, "wait_on", lambda e, s=COMPUTE: s == COPIES or wait_on(e))
    same = np.array_equal(chunk.run(), wanted("int8"))
    assert same == (missing is None or (missing, first) in (("compute", COPIES), ("copies", COMPUTE)))


@pytest.mark.parametrize("fault", ["page", "sequence"])
def test_what_is_outside_its_table(backend, fault):
    chunk = Chunk("int8", STAGED)
    if fault == "page":
        chunk.case.values[chunk.case.steps.page_table][1, 3] = 10_000
    else:
        chunk.case.values[chunk.case.steps.sequences][40] = 0
    with pytest.raises(FaultError):
        chunk.lower(backend()).run()
