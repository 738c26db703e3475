"""Dense attention of prompts on tensor cores: near the contract's, with windows, the same bits in any chunk."""

import numpy as np
import pytest

from backends.harness import Case, nrmse
from strata.backends import ReferenceBackend
from strata.errors import FaultError
from strata.memory import StatePool, StateShape
from strata.ops import Buffer, Builder, attention, copy_rows
from strata.ops.buffers import NUMPY_DTYPES

PAGES, MAX_LEN = 24, 512
BOUND = 1e-6  # as float32 sums in another order
GROUPS = ((0, 64, 0), (1, 128, 192))


def case_of(groups, heads, kv_heads, dim, kv="f16", window=0, plant=None):
    """One step of (sequence, rows, first position)."""
    rows = sum(n for _, n, _ in groups)
    case = Case(rows, sequences=2, max_len=MAX_LEN)
    case.builder = Builder(case.steps, rows, "chunk")
    pool, g = StatePool.create(StateShape(1, kv_heads, dim), PAGES, 2, kv), np.random.default_rng(3)
    for buffer in pool.paged():
        if buffer.dtype == "i8":
            value = g.integers(-127, 128, buffer.shape)
        else:
            value = (
                g.uniform(0.005, 0.02, buffer.shape)
                if "scales" in buffer.name
                else g.standard_normal(buffer.shape)
            )
        case.set(buffer, value.astype(NUMPY_DTYPES[buffer.dtype]))
    case.set(case.steps.page_table, g.permutation(PAGES)[:16].reshape(2, 8).astype(np.int32))
    case.set(
        case.steps.sequences, np.repeat([s for s, _, _ in groups], [n for _, n, _ in groups]).astype(np.int32)
    )
    case.set(
        case.steps.positions, np.concatenate([np.arange(p, p + n) for _, n, p in groups]).astype(np.int32)
    )
    whole = 2 * np.random.default_rng([heads, dim]).standard_normal((2, MAX_LEN, heads * dim)).astype(
        np.float32
    )
    q = case.input(np.concatenate([whole[s, p : p + n] for s, n, p in groups]))
    if plant is not None:
        plant(case, pool)
    y = attention(case.builder, q, pool.kv.layers[0], heads, dim**-0.5, window)
    out = Buffer("out", y.shape, role="output", live=case.steps.num_rows)
    copy_rows(case.builder, y, out)
    return case, out


def run(backend, *args, **options):
    case, out = case_of(*args, **options)
    return case.run(backend, out)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "kv", "window"),
    [
        (4, 2, 64, "f16", 0),
        (3, 1, 64, "int8", 70),
        (2, 1, 128, "int8", 0),
        (2, 1, 256, "f16", 1),
    ],
)
def test_near_the_contract(backend, heads, kv_heads, dim, kv, window):
    shape = (heads, kv_heads, dim, kv, window)
    got, want = run(backend(), GROUPS, *shape), run(ReferenceBackend("contract"), GROUPS, *shape)
    assert nrmse(got, want) < BOUND
    assert np.abs(got - want).max() < 10 * BOUND * np.abs(want).max()

    def fault(case, pool):
        case.values[pool.kv.layers[0].k][:, :, 5] = 0
        case.values[pool.kv.layers[0].v][:, :, 5] = 9

    assert nrmse(run(backend(), GROUPS, *shape, plant=fault), want) > 10 * BOUND


@pytest.mark.parametrize("window", [0, 100])
def test_chunks_do_not_change_a_bit(backend, window):
    whole = run(backend(), GROUPS, 2, 1, 64, window=window)
    parts = [run(backend(), ((1, 64, first),), 2, 1, 64, window=window) for first in (192, 256)]
    assert np.array_equal(np.concatenate(parts), whole[64:])


def test_cells_behind_a_row_change_nothing(backend):
    """Of the row's own page and of pages after it, and before its window."""

    def plant(case, pool):
        table = case.values[case.steps.page_table]
        for cells in (case.values[pool.kv.layers[0].k], case.values[pool.kv.layers[0].v]):
            cells[table[1, 4], :, 41:] = 7
            cells[table[1, 5:]] = 7
            cells[table[1, 0], :, :41] = 7

    got, want = (run(backend(), ((1, 128, 192),), 2, 1, 64, window=256, plant=p) for p in (plant, None))
    assert np.array_equal(got[104], want[104])  # position 296 sees cells 41 .. 296
    assert not np.array_equal(got[105], want[105])
    assert not np.array_equal(got[103], want[103])


def test_a_page_that_is_not_there(backend):
    def plant(case, pool):
        case.values[case.steps.page_table][1, 1] = 10_000

    with pytest.raises(FaultError):
        run(backend(), GROUPS, 2, 1, 64, plant=plant)
