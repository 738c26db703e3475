"""Quantised cells: what they hold, the turn before 4-bit codes, and the kernels against the contract."""

import numpy as np
import pytest

from backends.harness import Case, nrmse, same_bits
from backends.test_recurrent_ops import check, out_of, rows_input
from strata import _native
from strata.backends import ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.errors import UnsupportedError
from strata.memory import KVPool
from strata.ops import attention, hadamard, kv_store
from strata.ops.buffers import NUMPY_DTYPES
from strata.ops.hadamard import turn
from strata.ops.kv_store import gather_cells, quantize_nibbles
from strata.ops.op import Arrays

HEADS, KV_HEADS, ROWS = 4, 2, 70
BYTES = {
    "f32": 2 * 4,
    "f16": 2 * 2,
    "int8": 2 * (1 + 2 / 64),
    "k8v4": 1.5 + 2 * 2 / 64,
    "q4": 2 * (0.5 + 2 / 64),
}


def stored(kv, dim, spread=None):
    """A sequence of ROWS cells through kv_store, and attention over it."""
    case = Case(ROWS, sequences=1, max_len=128)
    pool = KVPool.create(1, KV_HEADS, dim, 3, kv)
    case.set(case.steps.page_table, np.array([[2, 0]], np.int32))
    case.set(case.steps.positions, np.arange(ROWS, dtype=np.int32))
    case.set(case.steps.sequences, np.zeros(ROWS, np.int32))
    for buffer in pool.buffers():
        case.set(buffer, np.zeros(buffer.shape, NUMPY_DTYPES[buffer.dtype]))
    k, v = (rows_input(case, ROWS, KV_HEADS * dim, seed) for seed in (1, 2))
    for x in (k, v) if spread is not None else ():
        case.values[x] *= spread
    kv_store(case.builder, k, v, pool.layers[0])
    y = attention(case.builder, rows_input(case, ROWS, HEADS * dim, 3), pool.layers[0], HEADS, dim**-0.5)
    return case, pool, [out_of(case, y), *pool.buffers()]


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("kv", ["int8", "k8v4", "q4"])
def test_cells_and_attention_are_the_contract_to_the_bit(kv, dim):
    def run(backend, fault=False):
        case, _, buffers = stored(kv, dim)
        if fault:
            rows = next(
                v for b, v in case.values.items() if b.dtype == "f32" and v.shape == (ROWS, KV_HEADS * dim)
            )
            rows[5, 3] += np.float32(0.5)
        case.run(backend, buffers[0])
        return [np.asarray(backend.array(b)).tobytes() for b in buffers]

    want = run(ReferenceBackend("contract"))
    for level in _native.isa_levels():
        assert run(CpuBackend(2, level)) == want, level
    assert run(CpuBackend(1)) == want
    faulty = run(CpuBackend(1), fault=True)
    assert faulty[0] != want[0] and faulty[1] != want[1]


@pytest.mark.parametrize("group", [2, 16, 64])
def test_hadamard_is_the_matrix_and_its_own_inverse(group):
    matrix = np.array([[1.0]])
    while len(matrix) < group:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    x = np.random.default_rng(4).standard_normal((7, 3 * group)).astype(np.float32)
    exact = (x.reshape(-1, group).astype(np.float64) @ matrix / np.sqrt(group)).reshape(x.shape)
    assert nrmse(turn(x, group), exact) < 2e-7
    assert nrmse(turn(turn(x, group), group), x) < 2e-7
    assert nrmse(turn(np.roll(x, 1, axis=1), group), exact) > 0.5


@pytest.mark.parametrize("group", [2, 16, 64])
def test_hadamard_kernel(group):
    def make():
        case = Case(5)
        return case, [out_of(case, hadamard(case.builder, rows_input(case, 5, 192, 6), group))]

    check(make, lambda case: _first(case).__setitem__((2, 9), 3.0), 1e-6)


def _first(case):
    return next(v for v in case.values.values() if v.shape == (5, 192))


def test_nibbles_round_to_half_a_step():
    rows = np.random.default_rng(5).standard_normal((40, 128)).astype(np.float32)
    rows[3, :64] = 0
    packed, scales = quantize_nibbles(rows, 2)
    values = decoded(packed, scales)
    step = 2 * np.repeat(scales.astype(np.float32), 64, axis=1)
    assert (np.abs(values - rows) <= step * 0.5005).all()
    assert (values[3, :64] == 0).all()
    assert {0, 15} <= set((packed & 15).reshape(-1).tolist()) and packed.shape == (40, 64)
    assert not (np.abs(decoded(packed[:, ::-1], scales) - rows) <= step * 0.5005).all()


def decoded(packed, scales):
    pool, plane = (
        KVPool.create(1, 1, 128, 1, "q4").layers[0].k,
        KVPool.create(1, 1, 128, 1, "q4").layers[0].k_scales,
    )
    codes, halves = np.zeros(pool.shape, np.uint8), np.zeros(plane.shape, np.float16)
    codes[0, 0, : len(packed)], halves[0, 0, : len(scales)] = packed, scales
    return gather_cells(Arrays({pool: codes, plane: halves}), pool, plane, np.array([0]), len(packed))[0]


def test_turning_saves_heads_with_outliers():
    """What the turn is for: a few large dimensions, as keys of real models have, do not drown the others."""
    spread = np.ones(KV_HEADS * 64, np.float32)
    spread[[3, 70]] = 12
    case, _, buffers = stored("f32", 64, spread)
    want = case.run(ReferenceBackend("contract"), buffers[0])

    def error(kv):
        case, _, buffers = stored(kv, 64, spread)
        return nrmse(case.run(CpuBackend(2), buffers[0]), want)

    plain = np.random.default_rng(6).standard_normal((200, 64)).astype(np.float32) * spread[:64]
    straight = nrmse(decoded(*quantize_nibbles(np.tile(plain, 2)[:60], 2))[:, :64], plain[:60])
    turned = turn(decoded(*quantize_nibbles(turn(np.tile(plain, 2)[:60], 64), 2)), 64)[:, :64]
    assert nrmse(turned, plain[:60]) < straight
    assert error("int8") < error("k8v4") < error("q4") < 0.25


@pytest.mark.parametrize("kv", BYTES)
def test_bytes_of_a_cell(kv):
    pool = KVPool.create(3, KV_HEADS, 256, 2, kv)
    assert pool.nbytes == 3 * 2 * 64 * KV_HEADS * 256 * BYTES[kv]


@pytest.mark.parametrize("kv, dim", [("int8", 80), ("k8v4", 80), ("q4", 24)])
def test_heads_that_cannot_be_cut_are_refused(kv, dim):
    with pytest.raises(UnsupportedError, match=f"--kv {kv} needs heads .* have {dim}"):
        KVPool.create(1, 1, dim, 1, kv)


def test_the_bits_do_not_depend_on_neighbours():
    """One row of attention over 4-bit cells, alone and among others."""
    case, _, buffers = stored("q4", 64)
    together = case.run(CpuBackend(2), buffers[0])
    case, _, buffers = stored("q4", 64)
    alone = case.run(CpuBackend(1, "generic"), buffers[0])
    assert same_bits(together, alone)
