"""The delta rule on arrays: row by row, and in blocks. State is [heads, value_dim, key_dim]."""

from typing import NamedTuple

import numpy as np

from strata.ops.arithmetic import Float32, exp32, fma, lane_dot


class DeltaRows(NamedTuple):
    """Rows of one sequence by value head: k, q [n, heads, key_dim], v [n, heads, value_dim], beta, g [n, heads]."""

    k: Float32
    v: Float32
    beta: Float32
    g: Float32
    q: Float32 | None


def advance_float(state: Float32, rows: DeltaRows) -> tuple[Float32, Float32]:
    """State after the rows, and their outputs [n, heads, value_dim]."""
    out = np.zeros_like(rows.v)
    for t in range(len(rows.v)):
        state = np.exp(rows.g[t])[:, None, None] * state
        delta = rows.beta[t, :, None] * (rows.v[t] - np.einsum("hvk,hk->hv", state, rows.k[t]))
        state = state + delta[:, :, None] * rows.k[t][:, None]
        if rows.q is not None:
            out[t] = np.einsum("hvk,hk->hv", state, rows.q[t])
    return state, out


def advance_contract(state: Float32, rows: DeltaRows) -> tuple[Float32, Float32]:
    """The same in the order of contract.h, "delta rule, step form"."""
    out, decay = np.zeros_like(rows.v), exp32(rows.g)
    for t in range(len(rows.v)):
        k = rows.k[t][:, None]
        state = decay[t][:, None, None] * state
        delta = rows.beta[t, :, None] * (rows.v[t] - lane_dot(state, k))
        state = fma(k, delta[:, :, None], state)
        if rows.q is not None:
            out[t] = lane_dot(state, rows.q[t][:, None])
    return state, out


def block_contract(state: Float32, rows: DeltaRows) -> tuple[Float32, Float32]:
    """A block at once (docs/contract.md): the corrections d by forward substitution, then outputs and state."""
    assert rows.q is not None
    n, k, q = len(rows.v), rows.k.swapaxes(0, 1), rows.q.swapaxes(0, 1)  # [heads, n, key_dim]
    log = np.zeros_like(rows.g)
    total = np.zeros_like(rows.g[0])
    for i in range(n):
        total = total + rows.g[i]
        log[i] = total
    log = log.T  # [heads, n]
    decay = exp32(
        np.minimum(log[:, :, None] - log[:, None, :], np.float32(0))
    )  # [heads, i, j], used for j <= i
    kk, qk = (_by_row(x, k) * decay for x in (k, q))
    since = exp32(log)[:, :, None]
    x = fma(-since, _by_row(k, state), rows.v.swapaxes(0, 1))  # [heads, n, value_dim]
    out = since * _by_row(q, state)
    left = exp32(log[:, -1:] - log)
    state = exp32(log[:, -1])[:, None, None] * state
    for j in range(n):
        d = rows.beta[j][:, None] * x[:, j]
        x[:, j + 1 :] = fma(-kk[:, j + 1 :, j, None], d[:, None], x[:, j + 1 :])
        out[:, j:] = fma(qk[:, j:, j, None], d[:, None], out[:, j:])
        state = fma((left[:, j, None] * d)[:, :, None], k[:, j][:, None], state)
    return state, out.swapaxes(0, 1)


def _by_row(x: Float32, y: Float32) -> Float32:
    """Lane dots [heads, n, m] of x [heads, n, dim] and y [heads, m, dim], a row of x at a time to bound memory."""
    return np.stack([lane_dot(y, x[:, i, None]) for i in range(x.shape[1])], axis=1)
