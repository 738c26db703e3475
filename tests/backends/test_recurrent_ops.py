"""Convolutions, the delta rule and n-grams: kernels against the contract, with sequences, rings, commits and taps."""

import numpy as np
import pytest

from backends.harness import Case, nrmse, same_bits, weight
from strata import _native
from strata.backends import ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.errors import FaultError
from strata.ops import (
    Buffer,
    Builder,
    DeltaState,
    NgramHash,
    causal_conv,
    copy_rows,
    delta_rule,
    delta_settle,
    ngram_gate,
    ngram_rows,
    table_rows,
)

SLOTS = 5
MIXED = ((0, 3, 5), (2, 1, 0), (1, 4, 62))  # sequence, rows, first position: one fresh, one past a ring's end


def setup(groups, form="step"):
    rows = sum(n for _, n, _ in groups)
    case = Case(rows, sequences=3, max_len=512)
    case.builder = Builder(case.steps, rows, form)
    case.set(case.steps.sequences, np.repeat([g[0] for g in groups], [g[1] for g in groups]).astype(np.int32))
    at = [np.arange(p, p + n) for _, n, p in groups]
    case.set(case.steps.positions, np.concatenate(at).astype(np.int32))
    case.set(case.steps.commits, np.array([2, 3, 4], np.int32))
    return case, rows


def state(case, name, *shape, dtype="f32", seed=1):
    """A state buffer with random contents."""
    buffer = Buffer(name, (SLOTS, *shape), dtype, "state")
    g = np.random.default_rng([seed, *shape])
    value = g.integers(0, 90, buffer.shape) if dtype == "i32" else g.standard_normal(buffer.shape)
    case.set(buffer, value.astype(np.int32 if dtype == "i32" else np.float32))
    return buffer


def rows_input(case, rows, width, seed):
    return case.input(np.random.default_rng([seed, width]).standard_normal((rows, width)).astype(np.float32))


def out_of(case, y, dtype="f32"):
    out = Buffer("out", y.shape, dtype, "output", live=case.steps.num_rows)
    if dtype == "f32":
        copy_rows(case.builder, y, out)
    return out


def results(case, backend, buffers):
    """All of `buffers` after one run."""
    case.run(backend, buffers[0])
    return [np.asarray(backend.array(b)).copy().view(np.int32) for b in buffers]


def check(make, fault, float_bound=1e-5):
    """Bits of every level and thread count; closeness to float; the planted fault seen."""
    case, buffers = make()
    want = results(case, ReferenceBackend("contract"), buffers)
    for level in _native.isa_levels():
        for threads in (1, 2):
            case, buffers = make()
            got = results(case, CpuBackend(threads, level), buffers)
            for i, (g, w) in enumerate(zip(got, want, strict=True)):
                assert (g == w).all(), f"buffer {i}, {level}, {threads} threads"
    case, buffers = make()
    exact = results(case, ReferenceBackend("float"), buffers)
    for w, e, b in zip(want, exact, buffers, strict=True):
        if b.dtype == "f32":
            assert nrmse(w.view(np.float32), e.view(np.float32)) < float_bound
        else:
            assert (w == e).all()
    case, buffers = make()
    fault(case)
    assert not all(
        (g == w).all()
        for g, w in zip(results(case, ReferenceBackend("contract"), buffers), want, strict=True)
    )
    return want


def bump(buffer_name, *index):
    def fault(case):
        buffer = next(b for b in case.values if b.name == buffer_name)
        case.values[buffer] = case.values[buffer].copy()
        case.values[buffer][index] += 1

    return fault


def vector(width, seed, *shape):
    w = weight("F32", 1, width, seed)
    return type(w)(w.name, w.format, shape or (width,), w.data)


def set_taps(case, *taps):
    positions, slots = np.zeros(4, np.int32), np.zeros(4, np.int32)
    for i, (position, slot) in enumerate(taps):
        positions[i], slots[i] = position, slot
    case.set(case.steps.tap_positions, positions)
    case.set(case.steps.tap_slots, slots)


@pytest.mark.parametrize("dilation", [1, 3])
def test_causal_conv(dilation):
    held = 32 + 3 * dilation

    def make():
        case, rows = setup([*MIXED[:2], (1, 4, 2 * held - 2)])
        ring = state(case, "ring", held, 300)
        y = causal_conv(case.builder, rows_input(case, rows, 300, 2), vector(1200, 3, 300, 4), ring, dilation)
        return case, [out_of(case, y), ring]

    check(make, bump("ring", 1, held - 3, 7))


@pytest.mark.parametrize("dilation", [1, 3])
def test_causal_conv_of_a_chunk_with_taps(dilation):
    held = 32 + 3 * dilation

    def make():
        case, rows = setup([(1, 192, 64)], "chunk")
        set_taps(case, (128, 3), (256, 4), (320, 2), (64, 0))  # the last two are outside the chunk
        ring = state(case, "ring", held, 70)
        y = causal_conv(case.builder, rows_input(case, rows, 70, 2), vector(280, 3, 70, 4), ring, dilation)
        return case, [out_of(case, y), ring]

    case, (_, ring) = make()
    before = case.values[ring].view(np.int32)
    _, after = check(make, bump("ring", 1, 63 % held, 7))
    x = next(v for b, v in case.values.items() if b.name == "x").view(np.int32)
    for slot, end in ((3, 128), (4, 256)):
        last = np.arange(end - 3 * dilation, end)
        assert (after[slot, last % held] == x[last - 64]).all()
        assert (np.delete(after[slot], last % held, 0) == np.delete(before[slot], last % held, 0)).all()
    assert (after[[0, 2]] == before[[0, 2]]).all()


KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM = 2, 6, 40, 24


def delta_layer(case, tiled=True):
    width = DeltaState.pending_width(KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM)
    pending = state(case, "pending", 64, width, seed=4)
    value = case.values[pending]
    value[..., : KEY_HEADS * KEY_DIM] *= np.float32(KEY_DIM**-0.5)
    value[..., -2 * HEADS : -HEADS] = 1 / (1 + np.exp(-value[..., -2 * HEADS : -HEADS]))
    value[..., -HEADS:] = -np.abs(value[..., -HEADS:])
    return DeltaState(state(case, "state", HEADS, VALUE_DIM, KEY_DIM), pending, KEY_HEADS, tiled)


def delta_rows(case, rows):
    g = np.random.default_rng(6)
    qk = g.standard_normal((rows, 2 * KEY_HEADS, KEY_DIM))
    qk /= np.linalg.norm(qk, axis=-1, keepdims=True)
    gates = np.concatenate([g.uniform(0, 1, (rows, HEADS)), -g.exponential(0.3, (rows, HEADS))], axis=1)
    mixed = g.standard_normal((rows, 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM))
    values = {"qk": qk.reshape(rows, -1), "mixed": mixed, "gates": gates}
    return [case.input(v.astype(np.float32), name) for name, v in values.items()]


def delta_case(groups, form="step", tiled=True, taps=()):
    def make():
        case, rows = setup(groups, form)
        set_taps(case, *taps)
        layer = delta_layer(case, tiled)
        y = delta_rule(case.builder, *delta_rows(case, rows), layer)
        return case, [out_of(case, y), layer.state, layer.pending]

    return make


@pytest.mark.parametrize("tiled", [True, False])
def test_delta_step(tiled):
    check(delta_case(MIXED, tiled=tiled), bump("pending", 0, 4, 3))


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 32])
def test_delta_step_rows_follow_each_other(rows):
    """One step of many rows equals many of one, commits in between."""
    make = delta_case([(0, rows, 9)])
    case, (out, *_) = make()
    together, held = case.run(CpuBackend(2), out, whole=True), {}
    for r in range(rows):
        single, buffers = delta_case([(0, 1, 9 + r)])()
        for buffer in list(single.values):
            single.values[buffer] = held.get(buffer.name, single.values[buffer])
        for name in ("qk", "mixed", "gates"):
            buffer = next(b for b in single.values if b.name == name)
            single.values[buffer] = next(v for b, v in case.values.items() if b.name == name)[r : r + 1]
        single.set(single.steps.commits, np.array([1 if r else 2, 0, 0], np.int32))
        backend = CpuBackend(1)
        got = single.run(backend, buffers[0])
        held = {b.name: backend.array(b).copy() for b in buffers[1:]}
        assert same_bits(got[0], together[r])


def test_delta_settle():
    def make():
        case, _ = setup([(0, 1, 5), (2, 1, 0), (1, 1, 66)])
        layer = delta_layer(case)
        delta_settle(case.builder, layer)
        return case, [layer.state]

    (after,) = check(make, bump("pending", 1, 1, 3))
    assert not after[2].any(), "position 0 begins with nothing"


@pytest.mark.parametrize("tiled", [True, False])
def test_delta_chunk_with_taps(tiled):
    make = delta_case([(1, 128, 64)], "chunk", tiled, taps=[(128, 3), (192, 4), (64, 0)])
    _, after, pending = check(make, bump("pending", 1, 63, 3), float_bound=1e-5)
    assert (after[4] == after[1]).all(), "a tap at the end is the state itself"
    assert not (after[3] == after[1]).all()
    case, (_, state_buffer, pending_buffer) = make()
    assert (after[[0, 2]] == case.values[state_buffer].view(np.int32)[[0, 2]]).all()
    assert (pending == case.values[pending_buffer].view(np.int32)).all(), "a chunk leaves nothing pending"


def test_chunks_of_64_and_128_agree_to_the_bit():
    case, (out, *_) = delta_case([(1, 128, 0)], "chunk")()
    together = case.run(CpuBackend(2), out)
    first, (out, state_buffer, _) = delta_case([(1, 64, 0)], "chunk")()
    backend = CpuBackend(2)
    for name in ("qk", "mixed", "gates"):
        buffer = next(b for b in first.values if b.name == name)
        first.values[buffer] = next(v for b, v in case.values.items() if b.name == name)[:64]
    assert same_bits(first.run(backend, out), together[:64])
    second, (out, other, _) = delta_case([(1, 64, 64)], "chunk")()
    for name in ("qk", "mixed", "gates"):
        buffer = next(b for b in second.values if b.name == name)
        second.values[buffer] = next(v for b, v in case.values.items() if b.name == name)[64:]
    second.values[other] = backend.array(state_buffer).copy()
    second.set(second.steps.commits, np.zeros(3, np.int32))
    assert same_bits(second.run(CpuBackend(2), out), together[64:])


@pytest.mark.parametrize(
    "groups, form", [([(0, 3, 60)], "step"), ([(1, 64, 32)], "chunk"), ([(3, 1, 4)], "step")]
)
def test_faults_of_the_delta_rule(groups, form):
    """More commits than positions, a chunk off its border, a sequence that has no slot."""
    case, buffers = delta_case(groups, form)()
    commits = np.array([65, 0, 0], np.int32)
    case.set(case.steps.commits, commits)
    sequences = case.values[case.steps.sequences]
    sequences[sequences == 3] = SLOTS
    with pytest.raises(FaultError, match="outside its table"):
        case.run(CpuBackend(2), buffers[0])


MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)
HASH = NgramHash.create(MULTIPLIERS, [97, 101, 103, 107], [0, 97, 198, 301], eos=7)


def ngram_case(groups=MIXED, form="step", hashed=HASH, taps=()):
    def make():
        case, rows = setup(groups, form)
        set_taps(case, *taps)
        tokens = np.random.default_rng(9).integers(0, 90, rows).astype(np.int32)
        tokens[1::4] = 7
        case.set(case.steps.tokens, tokens)
        history = state(case, "history", 64, dtype="i32")
        case.values[history][1, 60] = 7
        index = ngram_rows(case.builder, hashed, history)
        y = table_rows(case.builder, index, weight("IQ4_NL", 408, 96, 11))
        return case, [out_of(case, y), history]

    return make


def test_ngrams():
    check(ngram_case(), bump("history", 1, 61))
    check(ngram_case(), bump("tokens", 2))


def test_ngrams_of_a_chunk_with_taps():
    _, history = check(
        ngram_case([(1, 128, 128)], "chunk", taps=[(192, 3), (256, 4)]), bump("history", 1, 63)
    )
    case, _ = ngram_case([(1, 128, 128)], "chunk")()
    tokens = case.values[case.steps.tokens]
    assert (history[3, [62, 63]] == tokens[62:64]).all()
    assert (history[4, [62, 63]] == tokens[126:128]).all()


def test_ngram_hash_needs_all_bits():
    """Whole numbers by hand: 45-bit multipliers, exclusive or, remainders."""
    case, (out, _) = ngram_case([(0, 3, 0)])()
    case.set(case.steps.tokens, np.array([5, 7, 9], np.int32))
    table = weight("IQ4_NL", 408, 96, 11)
    rows = table.format.decode(table.data.reshape(408, -1))
    got = case.run(CpuBackend(1), out).reshape(3, 4, 96)
    for r, context in enumerate([(5, 7, 7), (7, 5, 7), (9, 7, 7)]):
        two = (context[0] * MULTIPLIERS[0]) ^ (context[1] * MULTIPLIERS[1])
        three = two ^ (context[2] * MULTIPLIERS[2])
        want = [two % 97, two % 101 + 97, three % 103 + 198, three % 107 + 301]
        assert same_bits(got[r], rows[want])
    rounded = NgramHash.create(
        [int(np.float32(m)) for m in MULTIPLIERS], [97, 101, 103, 107], [0, 97, 198, 301], eos=7
    )
    lossy, (out, _) = ngram_case([(0, 3, 0)], hashed=rounded)()
    lossy.set(lossy.steps.tokens, np.array([5, 7, 9], np.int32))
    assert not same_bits(lossy.run(CpuBackend(1), out).reshape(3, 4, 96), got)


def test_ngram_gate():
    def make():
        case, rows = setup(MIXED)
        key, query = (rows_input(case, rows, 396, seed) for seed in (1, 2))
        case.values[key][0] = 0  # the score 0 gates by a half
        y = ngram_gate(case.builder, key, query, rows_input(case, rows, 99, 3))
        return case, [out_of(case, y)]

    check(make, bump("x", 2, 5))
