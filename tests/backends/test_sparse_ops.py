"""Index keys, block selection and attention over selected blocks: kernels against the contract."""

from importlib import import_module

import numpy as np
import pytest

from backends.harness import Case, same_bits
from backends.test_recurrent_ops import bump, check, out_of, rows_input, vector
from strata.backends import ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.memory import IndexShape, StatePool, StateShape
from strata.ops import (
    Buffer,
    RopeScaling,
    Rotary,
    attention,
    cell_positions,
    copy_rows,
    index_keys,
    kv_store,
    rope_table,
    rotary_axes,
    select_blocks,
    sparse_attention,
)
from strata.ops.buffers import NUMPY_DTYPES
from strata.ops.kv_store import quantize_cells

HEADS, KV_HEADS, DIM, INDEX_DIM, RATIO = 6, 2, 64, 40, 4
PAGES, MAX_LEN = 40, 1024


def setup(positions, sequences, kv="f32"):
    """Pools full of random cells, shuffled pages."""
    rows = len(positions)
    case = Case(rows, sequences=2, max_len=MAX_LEN)
    pool = StatePool.create(StateShape(1, KV_HEADS, DIM, IndexShape(1, INDEX_DIM, RATIO)), PAGES, 2, kv)
    g = np.random.default_rng(3)
    for buffer in (*pool.paged(), *pool.recurrent()):
        if buffer.dtype == "i32":
            value = g.integers(0, MAX_LEN, buffer.shape)
        elif buffer.dtype == "i8":
            value = g.integers(-127, 128, buffer.shape)
        elif buffer.dtype == "u8":
            value = g.integers(0, 256, buffer.shape)
        else:
            value = g.standard_normal(buffer.shape) * (0.02 if "scales" in buffer.name else 1)
        case.set(
            buffer,
            value.astype(NUMPY_DTYPES[buffer.dtype]),
        )
    case.set(case.steps.page_table, g.permutation(PAGES)[:32].reshape(2, 16).astype(np.int32))
    case.set(case.steps.positions, np.array(positions, np.int32))
    case.set(case.steps.rope_positions, np.repeat(np.array(positions, np.int32)[:, None], 3, axis=1))
    case.set(case.steps.sequences, np.array(sequences, np.int32))
    return case, pool


def rotary():
    return Rotary(rope_table(MAX_LEN, 16, 1e4, RopeScaling()), rotary_axes(8, (2, 1, 1)))


def index_case():
    """Blocks that begin before the step, lie inside it, and stay incomplete."""
    positions = (3, 61, 62, 63, 64, 65, 66, 67, 68, 200, 201)
    case, pool = setup(positions, (1, *(0,) * 8, 1, 1))
    index = pool.index[0]
    cell_positions(case.builder, index.cells)
    x = rows_input(case, len(positions), INDEX_DIM, 5)
    index_keys(case.builder, x, vector(INDEX_DIM, 6), index, rotary(), 1e-6)
    out = Buffer("out", (len(positions), INDEX_DIM), role="output", live=case.steps.num_rows)
    copy_rows(case.builder, x, out)
    return case, [out, index.raw, index.pooled, index.cells]


def test_index_keys():
    case, (_, _, pooled, _) = index_case()
    before = case.values[pooled].view(np.int32)
    _, _, after, _ = check(index_case, bump("x", 3, 5), float_bound=1e-6)
    table = case.values[case.steps.page_table]
    changed = {tuple(x) for x in np.argwhere((after != before).any(axis=-1))}
    assert changed == {(table[1, 0], 0), (table[0, 0], 15), (table[0, 1], 0)}
    check(index_case, bump("index.0", 1, 1, 2), 1e-6)
    check(index_case, bump("cell_positions", 1, 0, 0), 1e-6)


def index_buffer(case, name):
    return next(b for b in case.values if b.name == name)


def selection_case(positions=(700, 701, 30, 31, 35, 1000), budget=9):
    def make():
        sequences = (0, 0, *(1,) * (len(positions) - 2)) if len(positions) < 10 else (0,) * len(positions)
        case, pool = setup(positions, sequences)
        q = rows_input(case, len(positions), 3 * INDEX_DIM, 7)
        pooled = case.values[pool.index[0].pooled]
        page = case.values[case.steps.page_table][0, 2]
        pooled[page, 3] = pooled[page, 9]  # two blocks with one score
        selected = select_blocks(case.builder, q, pool.index[0], budget)
        y = sparse_attention(
            case.builder, rows_input(case, len(positions), HEADS * DIM, 8), selected, pool.kv.layers[0], HEADS, RATIO,
            DIM**-0.5,
        )  # fmt: skip
        return case, [out_of(case, y)]

    return make


@pytest.mark.parametrize("budget", [1, 9, 100])
def test_selection_and_sparse_attention(budget):
    make = selection_case(budget=budget)
    check(make, lambda c: c.values[index_buffer(c, "v.0")].__imul__(np.float32(1.01)))


def test_many_rows_are_ranked_as_few_are(monkeypatch):
    """Rows of a chunk are scored and selected by one kernel; the bits are those of the two for few rows."""
    positions = tuple(range(690, 730))
    make = selection_case(positions)
    want = check(make, bump("pooled.0", slice(None), 3, 5))
    monkeypatch.setattr(import_module("strata.ops.select_blocks"), "_FEW_ROWS", 64)
    case, (out,) = make()
    assert (case.run(CpuBackend(2), out).view(np.int32) == want[0]).all()


def test_equal_scores_take_the_lower_block():
    """All keys equal: the first blocks win, whatever the query."""
    case, pool = setup((100,), (0,))
    case.values[pool.index[0].pooled][:] = 1
    selected = select_blocks(case.builder, rows_input(case, 1, 2 * INDEX_DIM, 7), pool.index[0], 5)
    case.finish()
    for backend in (ReferenceBackend("contract"), ReferenceBackend("float")):
        case.run(backend, selected)
        assert backend.array(selected)[0].tolist() == [0, 1, 2, 3, 4]
    make = equal_score_attention
    want = make(ReferenceBackend("contract"))
    assert same_bits(make(CpuBackend(2)), want)


def equal_score_attention(backend):
    case, pool = setup((100,), (0,))
    case.values[pool.index[0].pooled][:] = 1
    selected = select_blocks(case.builder, rows_input(case, 1, 2 * INDEX_DIM, 7), pool.index[0], 5)
    q = rows_input(case, 1, HEADS * DIM, 8)
    y = sparse_attention(case.builder, q, selected, pool.kv.layers[0], HEADS, RATIO, 0.125)
    return case.run(backend, out_of(case, y))


@pytest.mark.parametrize("kv", ["f32", "f16", "int8", "k8v4", "q4"])
def test_everything_selected_is_dense_attention(kv):
    def run(dense, budget=256):
        case, pool = setup((0, 3, 254, 255, 256, 700), (0, 0, 1, 1, 1, 0), kv)
        q, layer = rows_input(case, 6, HEADS * DIM, 8), pool.kv.layers[0]
        if dense:
            y = attention(case.builder, q, layer, HEADS, 0.125)
        else:
            index = rows_input(case, 6, 2 * INDEX_DIM, 7)
            selected = select_blocks(case.builder, index, pool.index[0], budget)
            y = sparse_attention(case.builder, q, selected, layer, HEADS, RATIO, 0.125)
        return case.run(CpuBackend(2), out_of(case, y))

    assert same_bits(run(True), run(False))
    assert not same_bits(run(True), run(False, budget=170))


@pytest.mark.parametrize("kv", ["f16", "int8", "k8v4", "q4"])
def test_stored_keys_and_values(kv):
    def make():
        case, pool = setup((0, 63, 64, 5), (0, 0, 0, 1), kv)
        k, v = (rows_input(case, 4, KV_HEADS * DIM, seed) for seed in (1, 2))
        case.values[k][1, :64] = 0  # a group of zeros
        kv_store(case.builder, k, v, pool.kv.layers[0])
        q = rows_input(case, 4, HEADS * DIM, 8)
        y = attention(case.builder, q, pool.kv.layers[0], HEADS, 0.125)
        return case, [out_of(case, y)]

    check(make, bump("k.0", slice(None), 1, 0, 3))


def test_int8_cells_round_to_half_a_step():
    case, pool = setup((7,), (0,), "int8")
    layer, x = pool.kv.layers[0], rows_input(case, 1, KV_HEADS * DIM, 1)
    kv_store(case.builder, x, x, layer)
    backend = CpuBackend(1)
    out = Buffer("out", x.shape, role="output", live=case.steps.num_rows)
    copy_rows(case.builder, x, out)
    case.run(backend, out)
    page = case.values[case.steps.page_table][0, 0]
    scale = backend.array(layer.k_scales)[page, :, 7].astype(np.float32)
    codes = backend.array(layer.k)[page, :, 7].astype(np.float32)
    error = np.abs(codes * scale - case.values[x].reshape(KV_HEADS, DIM))
    assert (error <= scale * 0.51).all()
    assert np.abs(codes).max() >= 126


def test_int8_codes_are_held_where_a_scale_is_rounded_down():
    """Scales below 2^-14 have few bits: amax / scale passes 127, and a code would wrap."""
    case, pool = setup((7,), (0,), "int8")
    layer, x = pool.kv.layers[0], rows_input(case, 1, KV_HEADS * DIM, 1)
    case.values[x] *= np.float32(1.05e-5) / np.abs(case.values[x]).max()
    kv_store(case.builder, x, x, layer)
    backend = CpuBackend(1)
    out = Buffer("out", x.shape, role="output", live=case.steps.num_rows)
    copy_rows(case.builder, x, out)
    case.run(backend, out)
    page = case.values[case.steps.page_table][0, 0]
    rows = case.values[x].reshape(KV_HEADS, DIM)
    codes, scales = quantize_cells(rows, layer.k_scales.shape[3])
    assert (np.abs(rows).max() / scales.astype(np.float32)).max() > 128
    assert np.array_equal(backend.array(layer.k)[page, :, 7], codes)
    assert np.array_equal(backend.array(layer.k_scales)[page, :, 7], scales)
    assert (np.sign(codes) * np.sign(rows) >= 0).all()
