"""Random weights of every block format, and the exact products that kernels must give."""

import numpy as np
from machines import Array, fma, lane_dot
from quant_blocks import random_blocks

from strata.quants import FORMATS, IntegerBlocks


def random_weight(kind: str, rows: int, k: int, seed: int) -> tuple[Array, int, Array]:
    """(raw bytes [rows, row bytes], type id, float values [rows, k])."""
    fmt = FORMATS[kind]
    raw = random_blocks(fmt, rows * k // fmt.block_values, seed).reshape(rows, -1)
    return raw, fmt.type_id, fmt.decode(raw)


def segments(blocks: int) -> list[range]:
    """Parts of a row of `blocks` blocks: a power of two of them up to 16, each of at least 4 blocks."""
    count = next(s for s in (16, 8, 4, 2, 1) if s == 1 or blocks // s >= 4)
    return [range(s * blocks // count, (s + 1) * blocks // count) for s in range(count)]


def block_terms(w: IntegerBlocks, codes: Array, sums: Array, d_a: Array) -> list[tuple[Array, Array]]:
    """Factors of each fma of one block: codes [rows, 32], d_a [rows], w one block of each of n weight rows.

    They are [rows, n] or [n]; the last pair may be the minimum's.
    """
    halves = [
        codes[:, 16 * h : 16 * h + 16].astype(np.int64) @ w.codes[:, 16 * h : 16 * h + 16].T for h in (0, 1)
    ]
    f32 = np.float32
    d_a = d_a[:, None]
    if w.scale16:
        terms = [(halves[h].astype(f32), (w.d[:, h] * w.scales[:, h].astype(f32)) * d_a) for h in (0, 1)]
    elif w.halves:
        terms = [((halves[0] * w.scales[:, 0] + halves[1] * w.scales[:, 1]).astype(f32), w.d[:, 0] * d_a)]
    else:
        terms = [((halves[0] + halves[1]).astype(f32), (w.d[:, 0] * w.scales[:, 0].astype(f32)) * d_a)]
    if w.mins is None or w.dmin is None:
        return terms
    low, high = sums[:, 0, None].astype(np.int64), sums[:, 1, None].astype(np.int64)
    if w.halves:
        return [*terms, ((low * w.mins[:, 0] + high * w.mins[:, 1]).astype(f32), w.dmin * d_a)]
    return [*terms, (w.dmin * w.mins[:, 0].astype(f32), (low + high).astype(f32) * d_a)]


def contract_product(
    kind: str, raw: Array, planes: tuple[Array, Array, Array], parts: list[range] | None = None
) -> Array:
    """[rows, n] float32: blocks ascending in each segment's chain, segments added in order, all from +0."""
    codes, scales, sums = planes
    n, k = len(raw), codes.shape[1]
    whole = FORMATS[kind].integer_form(raw.reshape(-1), n, k)
    total = np.zeros((len(codes), n), np.float32)
    for part in segments(k // 32) if parts is None else parts:
        y = np.zeros_like(total)
        for b in part:
            pick = slice(b, None, k // 32)
            block = IntegerBlocks(
                whole.codes[pick],
                whole.scales[pick],
                whole.d[pick],
                None if whole.mins is None else whole.mins[pick],
                None if whole.dmin is None else whole.dmin[pick],
                whole.halves,
                whole.scale16,
            )
            for left, right in block_terms(
                block, codes[:, 32 * b : 32 * b + 32], sums[:, 2 * b : 2 * b + 2], scales[:, b]
            ):
                y = fma(left, right, y)
        total = total + y
    return total


def float_product(x: Array, weight: Array, lanes: int = 32) -> Array:
    """[rows, n] float32 of x [rows, k] and weight [n, k], in lanes over k."""
    return lane_dot(weight.T[:, None, :], x.T[:, :, None], lanes)
