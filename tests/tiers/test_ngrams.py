"""Rows of the n-gram table from every place, through the mailbox and through a model."""

import numpy as np
import pytest
from rig import NgramOptions, rig

from strata import _native
from strata.engine.plan import ScheduledRows
from strata.errors import FaultError
from strata.memory.counters import read_counters
from strata.memory.ngram_store import MODES

ROWS, ROW_BYTES, OFFSET = 5000, 90, 777


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Rows that say their number, in the middle of a file."""
    path = tmp_path_factory.mktemp("table") / "rows.bin"
    rows = np.random.default_rng(3).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)
    path.write_bytes(b"\xff" * OFFSET + rows.tobytes())
    return path, rows


def open_store(path, mode, *, threads=0, cache=64, counters=None, limit=5.0):
    counters = counters or _native.TierCounters()
    ns = int(limit * 1e9)
    return _native.NgramStore(
        str(path), OFFSET, ROWS, ROW_BYTES, MODES.index(mode), cache, threads, ns, counters
    )


def gather(store, ids):
    out = np.zeros((len(ids), ROW_BYTES), np.uint8)
    return out if store.gather(store.add_box(512), [int(i) for i in ids], out.ctypes.data) else None


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_the_files(table, mode, threads):
    path, rows = table
    store = open_store(path, mode, threads=threads)
    random = np.random.default_rng(1)
    for count in (1, 2, 17, 512):
        ids = random.integers(0, ROWS, count)
        ids[-1:] = ROWS - 1
        assert (gather(store, ids) == rows[ids]).all()
    near = np.arange(100, 130)  # rows whose sectors touch, each twice
    assert (gather(store, np.repeat(near, 2)) == rows[np.repeat(near, 2)]).all()


def test_direct_reads_are_direct_and_the_cache_is_bounded(table):
    path, rows = table
    counters = _native.TierCounters()
    store = open_store(path, "direct", cache=64, counters=counters)
    assert store.direct
    assert store.method == "io_uring"

    def reads():
        return read_counters(counters)["ngram_reads"]

    few = np.arange(0, ROWS, ROWS // 16)
    gather(store, few)
    before = reads()
    assert (gather(store, few) == rows[few]).all()
    assert reads() - before <= 4, "most of sixteen rows are still there (sets of four may clash)"
    for first in range(0, ROWS - 512, 512):
        gather(store, np.arange(first, first + 512))
    before = reads()
    gather(store, few)
    assert reads() > before + 8, "they were pushed out"


@pytest.mark.parametrize(("fault", "text"), [(2, "Input/output error"), (3, "the file ends before them")])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_failed_read_is_told_and_the_next_one_works(table, fault, text, threads):
    path, rows = table
    store = open_store(path, "direct", threads=threads, cache=4)
    ids = np.arange(0, ROWS, 13)
    store.inject(fault, 40)
    assert gather(store, ids) is None
    assert text in store.failure()
    assert (gather(store, ids) == rows[ids]).all()


@pytest.mark.parametrize("threads", [0, 2])
def test_short_reads_go_on(table, threads):
    path, rows = table
    store = open_store(path, "direct", threads=threads, cache=4)
    store.inject(1, 0)
    ids = np.arange(0, ROWS, 17)
    assert (gather(store, ids) == rows[ids]).all()


@pytest.mark.parametrize("sim", [None, {"cpu_share": 0.5}])
@pytest.mark.parametrize("mode", MODES)
def test_a_model_reads_its_table_through_the_store(model_path, wanted, mode, sim):
    r = rig(model_path, budget=0, sim=sim, ngram=NgramOptions(mode, cache_bytes=2000))
    assert r.digest() == wanted
    assert r.counts()["ngram_rows"] > 0
    assert (r.counts()["ngram_reads"] > 0) == (mode == "direct")


def test_a_step_whose_rows_do_not_come_is_void(model_path):
    r = rig(model_path, budget=0, ngram=NgramOptions(cache_bytes=400))
    plain = rig(model_path)

    for position in range(6):
        assert (r.step(position) == plain.step(position)).all()
    r.ngram[0].inject(2, 0)
    with pytest.raises(FaultError, match="rows of the n-gram table cannot be read: Input/output error"):
        r.step(6)
    for position in range(6, 12):
        assert (r.step(position) == plain.step(position)).all()


def test_requests_are_read_while_layers_compute(model_path):
    """The ids are posted before the first layer: the record that asks comes well before the one that waits."""
    r = rig(model_path, budget=0, ngram=NgramOptions())
    kinds = [op.kind for op in r.runner.programs.of("step", 1).program.ops]
    assert kinds.index("ngram_rows") < kinds.index("embed") + 3
    assert kinds.index("table_rows") > kinds.index("combine")
    assert np.isfinite(r.step(0)).all()


@pytest.mark.parametrize("sim", [None, {"cpu_share": 0.5}])
def test_a_chunk_stands_while_steps_ask(model_path, sim):
    """Between a chunk's asking for its rows and its taking them, a step asks for others: each gets its own."""
    r = rig(model_path, budget=0, sim=sim, ngram=NgramOptions(cache_bytes=400))
    plain = rig(model_path)
    wanted = plain.read("chunk", 0, plain.tokens[:64], range(64))
    r.read("chunk", 0, r.tokens[:64], range(0))
    r.runner.pages.free(0)
    r.runner.keeper.grow(0, 64)
    r.runner.write("chunk", ScheduledRows(-1, 0, 0, r.tokens[:64], sampled=False))
    chunk = r.runner.programs.of("chunk", 64)
    asked = next(i for i, op in enumerate(chunk.program.ops) if op.kind == "ngram_rows") + 1
    chunk.replay.run(0, asked)
    step = r.runner.programs.of("step", 1)
    r.runner.write("step", ScheduledRows(-1, 0, 0, r.tokens[40:41], sampled=False))
    step.replay.run(0, [op.kind for op in step.program.ops].index("table_rows") + 1)
    chunk.replay.run(asked, chunk.borders[chunk.head])
    r.runner.commit({0: 0})
    r.runner.want(np.arange(32))
    chunk.run_part(chunk.head)
    assert (r.runner.logits(32) == wanted[:32]).all()
