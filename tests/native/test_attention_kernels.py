"""kv_store and attention against an exact emulation of the contract's step form."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from machines import Array, apply, count, fma, lane_dot, nudge, random_rows, run_everywhere, same_bits, tree

from strata import _native

SPLIT, PAGE = 256, 64
UNTOUCHED = np.float32(-77.0)

NO_SCALES = np.zeros(1, np.float16)  # only int8 pools have them


@dataclass
class Pool:
    """Two sequences over shuffled pages."""

    dtype: type
    kv_heads: int
    dim: int
    pages: int = 9  # a sequence
    k: Array = field(init=False)
    v: Array = field(init=False)
    table: Array = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(41)
        shape = (2 * self.pages + 1, self.kv_heads, PAGE, self.dim)
        self.k, self.v = (rng.standard_normal(shape).astype(self.dtype) for _ in range(2))
        self.table = rng.permutation(2 * self.pages).reshape(2, -1).astype(np.int32)

    @property
    def num_pages(self) -> int:
        return len(self.k)

    def cells(self, pool: Array, sequence: int, kv_head: int) -> Array:
        """[cells, dim] float32 of one sequence and head."""
        return pool[self.table[sequence], kv_head].reshape(-1, self.dim).astype(np.float32)


def lanes_by_cell(weights: Array, values: Array, first: int) -> Array:
    """Sum over cells of weights [cells] * values [cells, n], in lanes by cell mod 32, then the tree."""
    acc = np.zeros((32, values.shape[1]), np.float32)
    for t, (weight, value) in enumerate(zip(weights, values, strict=True)):
        lane = (first + t) % 32
        acc[lane] = fma(weight, value, acc[lane])
    return tree(acc)


def attend(
    q: Array, k: Array, v: Array, position: int, *, window: int, scale: float, split: int = SPLIT
) -> Array:
    """One row and head: [dim] from q [dim], k and v [cells, dim]."""
    begin = max(0, position - window + 1) if window else 0
    parts = []
    for at in range(begin // split * split, position + 1, split):
        lo, hi = max(at, begin), min(at + split, position + 1)
        scores = lane_dot(q[:, None], k[lo:hi].T) * np.float32(scale)
        p = apply("exp32", scores - scores.max())
        sums = lanes_by_cell(p, np.ones((hi - lo, 1), np.float32), lo)[0]
        parts.append((scores.max(), sums, lanes_by_cell(p, v[lo:hi], lo)))
    largest = np.array(max(m for m, _, _ in parts))
    total, out = np.zeros(1, np.float32), np.zeros_like(q)
    for m, sums, values in parts:
        factor = apply("exp32", np.array([m - largest]))
        total, out = fma(sums, factor, total), fma(values, factor, out)
    return out / total


@dataclass
class Case:
    """Rows: (sequence, position) each."""

    rows: list[tuple[int, int]]
    heads: int
    pool: Pool
    window: int = 0
    scale: float = 0.2

    def run(self, live: int | None = None, fault: int = 0) -> Array:
        pool, n = self.pool, len(self.rows)
        sequences, positions = (np.array([r[i] for r in self.rows], np.int32) for i in (0, 1))
        out = np.full((n, self.heads * pool.dim), UNTOUCHED, np.float32)
        arrays = [
            count(n if live is None else live),
            positions,
            sequences,
            pool.table,
            self.q,
            pool.k,
            pool.v,
            out,
            NO_SCALES,
            NO_SCALES,
        ]
        kv_types = [int(pool.dtype is np.float16)] * 2
        dims = [self.heads, pool.kv_heads, pool.dim, pool.pages, *kv_types, self.window, pool.num_pages]
        [out] = run_everywhere("attention", arrays, dims, [self.scale], outputs=(7,), fault=fault)
        return out

    @property
    def q(self) -> Array:
        return random_rows(len(self.rows), self.heads * self.pool.dim, 42)

    def expected(self, q: Array | None = None, split: int = SPLIT, offset: int = 0) -> Array:
        q, pool = self.q if q is None else q, self.pool
        out = np.empty_like(q)
        for r, (sequence, position) in enumerate(self.rows):
            for h in range(self.heads):
                kv_head, at = h // (self.heads // pool.kv_heads), slice(h * pool.dim, (h + 1) * pool.dim)
                k, v = (pool.cells(p, sequence, kv_head) for p in (pool.k, pool.v))
                out[r, at] = attend(
                    q[r, at], k, v, position + offset, window=self.window, scale=self.scale, split=split
                )
        return out


CASES = {
    "first cells": Case([(0, 0), (0, 1), (1, 31), (1, 33)], 2, Pool(np.float32, 1, 64)),
    "two sequences, three splits": Case([(0, 575), (1, 300), (1, 301)], 6, Pool(np.float16, 2, 64)),
    "split borders": Case([(0, 255), (0, 256), (0, 257), (1, 511), (1, 512)], 3, Pool(np.float32, 3, 32)),
    "consecutive rows": Case([(0, 250 + i) for i in range(11)], 4, Pool(np.float16, 1, 32)),
    "window": Case([(0, 9), (0, 99), (0, 257), (0, 258), (1, 575)], 2, Pool(np.float16, 1, 32), window=100),
    "narrow window": Case([(0, 256 + i) for i in range(3)], 2, Pool(np.float32, 2, 32), window=1),
    "odd head": Case([(0, 300), (1, 70)], 2, Pool(np.float32, 1, 80)),
    "wide head": Case([(0, 300)], 2, Pool(np.float16, 1, 256)),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_the_contract_to_the_bit(name: str) -> None:
    case = CASES[name]
    assert same_bits(case.run(), case.expected())


def test_attention_is_near_float64() -> None:
    case = CASES["two sequences, three splits"]
    pool, out = case.pool, case.run()
    for r, (sequence, position) in enumerate(case.rows):
        for h in range(case.heads):
            at = slice(h * pool.dim, (h + 1) * pool.dim)
            k, v = (
                pool.cells(p, sequence, h // 3)[: position + 1].astype(np.float64) for p in (pool.k, pool.v)
            )
            p = np.exp(k @ case.q[r, at] * case.scale)
            np.testing.assert_allclose(out[r, at], p @ v / p.sum(), rtol=0, atol=2e-6)


def test_planted_attention_faults_are_seen() -> None:
    case = CASES["two sequences, three splits"]
    out = case.run()
    assert not same_bits(out, case.expected(nudge(case.q)))
    assert not same_bits(out, case.expected(split=128))
    assert not same_bits(out, case.expected(offset=-1))


def test_rows_do_not_depend_on_their_neighbours() -> None:
    """Many rows share loads, few rows split heads over threads: the bits are the same."""
    pool = Pool(np.float16, 2, 32)
    rows = [(0, 240 + i) for i in range(20)] + [(1, 100 + i) for i in range(20)]
    case = Case(rows, 4, pool)
    together = case.run()
    for r in (0, 7, 8, 19, 20, 39):
        alone = Case([rows[r]], 4, pool)
        q = case.q[r : r + 1]
        assert same_bits(together[r : r + 1], alone.expected(q))


def test_idle_rows_are_left() -> None:
    case = CASES["first cells"]
    out = case.run(live=2)
    assert same_bits(out[:2], case.expected()[:2])
    assert (out[2:] == UNTOUCHED).all()


@pytest.mark.parametrize("page", [-1, 19])
def test_a_page_out_of_range_is_a_fault(page: int) -> None:
    pool = Pool(np.float32, 1, 32)
    case = Case([(0, 200), (1, 200)], 1, pool)
    pool.table[1, 3] = page
    sound = case.run(live=1)
    assert same_bits(case.run(fault=_native.FAULT_RANGE)[:1], sound[:1])
    Case([(0, 9 * PAGE)], 1, pool).run(fault=_native.FAULT_RANGE)
    Case([(0, -1)], 1, pool).run(fault=_native.FAULT_RANGE)


def store(
    pool: Pool, rows: list[tuple[int, int]], live: int, k: Array, v: Array, *, fault: int = 0
) -> list[Array]:
    sequences, positions = (np.array([r[i] for r in rows], np.int32) for i in (0, 1))
    arrays = [count(live), positions, sequences, pool.table, k, v, pool.k, pool.v, NO_SCALES, NO_SCALES]
    kv_types = [int(pool.dtype is np.float16)] * 2
    dims = [pool.kv_heads, pool.dim, pool.pages, *kv_types, pool.num_pages]
    return run_everywhere("kv_store", arrays, dims, outputs=(6, 7), fault=fault)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_kv_store_writes_the_cells_of_live_rows(dtype: type) -> None:
    pool, rows = Pool(dtype, 2, 48), [(0, 0), (1, 63), (1, 64), (0, 575), (0, 7)]
    k, v = random_rows(5, 96, 43), random_rows(5, 96, 44)
    outs = store(pool, rows, 4, k, v)
    for out, before, x in zip(outs, (pool.k, pool.v), (k, v), strict=True):
        expected = before.copy()
        for r, (sequence, position) in enumerate(rows[:4]):
            cell = expected[pool.table[sequence, position // PAGE], :, position % PAGE]
            cell[:] = x[r].reshape(2, 48).astype(dtype)
        assert same_bits(out, expected)
        assert not same_bits(out, before)


def test_kv_store_faults_write_nothing() -> None:
    pool = Pool(np.float16, 1, 32)
    k, v = random_rows(1, 32, 45), random_rows(1, 32, 46)
    for row in [(0, 9 * PAGE), (0, -1), (-1, 0)]:
        outs = store(pool, [row], 1, k, v, fault=_native.FAULT_RANGE)
        assert same_bits(outs[0], pool.k)
        assert same_bits(outs[1], pool.v)
    pool.table[0, 0] = pool.num_pages
    assert same_bits(store(pool, [(0, 5)], 1, k, v, fault=_native.FAULT_RANGE)[0], pool.k)


@pytest.mark.parametrize("bad", [1e5, np.nan, -np.inf])
def test_kv_store_faults_on_what_a_half_cannot_hold(bad: float) -> None:
    k, v = random_rows(1, 32, 47), random_rows(1, 32, 48)
    k[0, 9] = bad
    store(Pool(np.float16, 1, 32), [(0, 5)], 1, k, v, fault=_native.FAULT_NON_FINITE)
    store(Pool(np.float16, 1, 32), [(0, 5)], 1, v, k, fault=_native.FAULT_NON_FINITE)
