"""Selection and sparse attention of prompts on tensor cores: the contract's blocks, near its values, the same bits in
any chunk."""

import numpy as np
import pytest

from backends.harness import Case, nrmse
from strata.backends import ReferenceBackend
from strata.backends.cuda import lower_sparse
from strata.errors import FaultError
from strata.memory import IndexShape, StatePool, StateShape
from strata.ops import Buffer, Builder, copy_rows, sparse_attention
from strata.ops.buffers import NUMPY_DTYPES
from strata.ops.select_blocks import RankBlocks

HEADS, KV_HEADS, DIM, INDEX_DIM, RATIO = 4, 2, 64, 64, 4
PAGES, MAX_LEN = 40, 1024
BUDGET = 24
BOUND = 1e-6  # of attention: as float32 sums in another order


def inputs(rows, first, width, seed):
    """Rows of positions from `first` on."""
    whole = np.random.default_rng([seed, width]).standard_normal((MAX_LEN, width)).astype(np.float32)
    return whole[first : first + rows]


def case_of(groups, kv="f16", plant=None):
    """One step of (sequence, rows, first position): outputs of attention, then what was selected."""
    rows = sum(n for _, n, _ in groups)
    case = Case(rows, sequences=2, max_len=MAX_LEN)
    case.builder = Builder(case.steps, rows, "chunk")
    pool = StatePool.create(StateShape(1, KV_HEADS, DIM, IndexShape(1, INDEX_DIM, RATIO)), PAGES, 2, kv)
    g = np.random.default_rng(3)
    for buffer in pool.paged():
        if buffer.dtype == "i8":
            value = g.integers(-127, 128, buffer.shape)
        else:
            value = g.standard_normal(buffer.shape) * (0.02 if "scales" in buffer.name else 1)
        case.set(
            buffer,
            np.abs(value).astype(np.float16)
            if "scales" in buffer.name
            else value.astype(NUMPY_DTYPES[buffer.dtype]),
        )
    case.set(case.steps.page_table, g.permutation(PAGES)[:32].reshape(2, 16).astype(np.int32))
    case.set(case.steps.sequences, np.repeat([g[0] for g in groups], [g[1] for g in groups]).astype(np.int32))
    case.set(
        case.steps.positions, np.concatenate([np.arange(p, p + n) for _, n, p in groups]).astype(np.int32)
    )
    index, q = (
        case.input(np.concatenate([inputs(n, p, width, s) for s, n, p in groups]))
        for width in (3 * INDEX_DIM, HEADS * DIM)
    )
    if plant is not None:
        plant(case, pool, index)
    step = (case.steps.positions, case.steps.sequences, case.steps.page_table)
    selected = Buffer("selected", (rows, BUDGET), "i32", "output", live=case.steps.num_rows)
    case.builder.emit(RankBlocks(*step, index, pool.index[0].pooled, selected, BUDGET, MAX_LEN // RATIO))
    y = sparse_attention(case.builder, q, selected, pool.kv.layers[0], HEADS, RATIO, DIM**-0.5)
    out = Buffer("out", y.shape, role="output", live=case.steps.num_rows)
    copy_rows(case.builder, y, out)
    return case, out, selected


def run(made, backend):
    """Attention, and the blocks that each row selected, places that are not used -1."""
    case, out, selected = made
    y = case.run(backend, out)
    found = np.array(backend.array(selected)[: case.live_rows])
    for row, position in enumerate(case.values[case.steps.positions][: case.live_rows]):
        found[row, (position + 1) // RATIO :] = -1
    return y, found


GROUPS = ((0, 64, 0), (1, 128, 576))


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_near_the_contract(backend, kv):
    """Rows that see fewer blocks than the budget and rows that choose."""
    (got, chosen), (want, best) = (
        run(case_of(GROUPS, kv), backend()),
        run(case_of(GROUPS, kv), ReferenceBackend("contract")),
    )
    assert np.array_equal(chosen, best)
    assert nrmse(got, want) < BOUND
    assert np.abs(got - want).max() < 10 * BOUND * np.abs(want).max()

    def fault(case, pool, index):
        case.values[pool.kv.layers[0].v][:] = np.roll(case.values[pool.kv.layers[0].v], 1, axis=2)

    assert nrmse(run(case_of(GROUPS, kv, fault), backend())[0], want) > 10 * BOUND


def test_chunks_do_not_change_a_bit(backend, monkeypatch, kv="int8"):
    whole, chosen = run(case_of(GROUPS, kv), backend())
    monkeypatch.setattr(lower_sparse, "_SCORE_BYTES", 1)  # 64 rows at a time
    parts = [run(case_of(((1, 64, first),), kv), backend()) for first in (576, 640)]
    assert np.array_equal(np.concatenate([p[0] for p in parts]), whole[64:])
    assert np.array_equal(np.concatenate([p[1] for p in parts]), chosen[64:])


@pytest.mark.parametrize("kind", ["zeros", "equal", "few"])
def test_equal_scores_go_to_lower_blocks(backend, kind):
    """More equal scores than the list holds, all of them zero, and some among others."""

    def plant(case, pool, index):
        keys = case.values[pool.index[0].pooled]
        keys[:] = {"zeros": 0, "equal": 1, "few": np.round(keys)}[kind]
        case.values[index] = (
            np.abs(np.round(case.values[index])) + 1 if kind == "equal" else np.round(case.values[index])
        )

    (_, chosen), (_, best) = (
        run(case_of(GROUPS, plant=plant), backend()),
        run(case_of(GROUPS, plant=plant), ReferenceBackend("contract")),
    )
    assert np.array_equal(chosen, best)


@pytest.mark.parametrize("block", [3, 130])
def test_a_planted_block_is_selected_and_answers(backend, block):
    """A key like the last row's query at some depth is chosen and read; what is not selected changes nothing."""

    def plant(case, pool, index):
        table, rows = case.values[case.steps.page_table], case.values[index]
        query = rows[-1].reshape(3, INDEX_DIM).sum(axis=0)
        case.values[pool.index[0].pooled][table[1, block // 16], block % 16] = query

    def changed(at):
        def fault(case, pool, index):
            plant(case, pool, index)
            page = case.values[case.steps.page_table][1, at // 16]
            case.values[pool.kv.layers[0].v][page, :, at % 16 * 4 : at % 16 * 4 + 4] += 2

        return run(case_of(GROUPS, plant=fault), backend())[0]

    got, chosen = run(case_of(GROUPS, plant=plant), backend())
    last = chosen[-1].tolist()
    assert block in last
    other = next(b for b in range(20, 176) if b not in last)
    assert not np.array_equal(changed(block)[-1], got[-1])
    assert np.array_equal(changed(other)[-1], got[-1])


def test_a_page_that_is_not_there(backend):
    def plant(case, pool, index):
        case.values[case.steps.page_table][1, 3] = 10_000

    with pytest.raises(FaultError):
        run(case_of(GROUPS, plant=plant), backend())
