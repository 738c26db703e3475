"""The delta rule's chunk form on tensor cores: near the contract's, the same bits however rows are cut into chunks."""

import numpy as np
import pytest

from backends.harness import Case, nrmse
from strata.backends import ReferenceBackend
from strata.backends.cuda import lower_state
from strata.ops import Buffer, Builder, DeltaState, copy_rows, delta_rule

KEY_HEADS, HEADS, DIM, SLOTS = 2, 4, 128, 5
BOUND = 2e-6  # as float32 sums in another order


def inputs(rows, seed=0):
    """Unit queries (scaled) and keys, values, step sizes and log decays of `rows` positions."""
    g = np.random.default_rng(seed)
    qk = g.standard_normal((rows, 2 * KEY_HEADS, DIM))
    qk /= np.linalg.norm(qk, axis=-1, keepdims=True)
    qk[:, KEY_HEADS:] = (qk[:, KEY_HEADS:] + 0.7 * qk[:1, KEY_HEADS:]) / 1.3  # keys that resemble one another
    qk[:, :KEY_HEADS] *= DIM**-0.5
    mixed = 3 * g.standard_normal((rows, 2 * KEY_HEADS * DIM + HEADS * DIM))
    beta, decay = 1 / (1 + np.exp(-g.standard_normal((rows, HEADS)))), -g.exponential(0.1, (rows, HEADS))
    found = qk.reshape(rows, -1), mixed, np.concatenate([beta, decay], axis=1)
    return [x.astype(np.float32) for x in found]


def case_of(groups, tiled=True, taps=(), before=None):
    """One step of (sequence, rows, first position); `before`: the state, where it is not random."""
    rows = sum(n for _, n, _ in groups)
    case = Case(rows, sequences=3, max_len=2048)
    case.builder = Builder(case.steps, rows, "chunk")
    case.set(case.steps.sequences, np.repeat([g[0] for g in groups], [g[1] for g in groups]).astype(np.int32))
    case.set(
        case.steps.positions, np.concatenate([np.arange(p, p + n) for _, n, p in groups]).astype(np.int32)
    )
    case.set(case.steps.commits, np.array([2, 3, 0], np.int32))
    for name, at in (("tap_positions", 0), ("tap_slots", 1)):
        case.set(getattr(case.steps, name), np.array([*(t[at] for t in taps), 0, 0, 0, 0][:4], np.int32))
    g = np.random.default_rng(5)
    state = Buffer("state", (SLOTS, HEADS, DIM, DIM), "f32", "state")
    case.set(state, 0.1 * g.standard_normal(state.shape).astype(np.float32) if before is None else before)
    width = DeltaState.pending_width(KEY_HEADS, HEADS, DIM, DIM)
    pending = Buffer("pending", (SLOTS, 64, width), "f32", "state")
    case.set(pending, 0.05 * g.standard_normal(pending.shape).astype(np.float32))
    parts = [[x[p : p + n] for x in inputs(1024, s)] for s, n, p in groups]
    buffers = [case.input(np.concatenate(x)) for x in zip(*parts, strict=True)]
    y = delta_rule(case.builder, *buffers, DeltaState(state, pending, KEY_HEADS, tiled))
    out = Buffer("out", y.shape, "f32", "output", live=case.steps.num_rows)
    copy_rows(case.builder, y, out)
    return case, out, state


def run(made, backend):
    case, out, state = made
    case.run(backend, out)
    return np.array(backend.array(out)[: case.live_rows]), np.array(backend.array(state))


@pytest.mark.parametrize("tiled", [True, False])
def test_near_the_contract(backend, tiled):
    """Two sequences, of which one goes on after committed rows, with taps."""
    groups = ((0, 128, 64), (2, 64, 0))
    made = lambda: case_of(groups, tiled, [(128, 3), (192, 4)])  # noqa: E731
    got, want = run(made(), backend()), run(made(), ReferenceBackend("contract"))
    for g, w in zip(got, want, strict=True):
        assert nrmse(g, w) < BOUND
        assert np.abs(g - w).max() < 100 * BOUND * np.abs(w).max()
    other = run(case_of(groups, tiled, [(128, 3), (192, 4)], np.roll(want[1], 1, axis=2)), backend())
    assert nrmse(other[0], want[0]) > 10 * BOUND


def test_chunks_do_not_change_a_bit(backend, monkeypatch):
    """Segments of a launch, rows of another sequence before, chunks apart: the state goes through memory."""
    monkeypatch.setattr(lower_state, "_SEGMENT", 128)
    whole, state = run(case_of(((1, 64, 0), (0, 256, 64))), backend())
    out, before = [], None
    for first, rows in ((64, 64), (128, 192)):
        case, buffer, kept = case_of(((0, rows, first),), before=before)
        if first > 64:
            case.set(case.steps.commits, np.zeros(3, np.int32))
        part, before = run((case, buffer, kept), backend())
        out.append(part)
    assert np.array_equal(np.concatenate(out), whole[64:])
    assert np.array_equal(before[0], state[0])
    assert not np.array_equal(before[1], state[1])
