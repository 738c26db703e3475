"""Norms, gates and residual streams: every CPU kernel against the contract, bit for bit, and a planted fault each."""

import numpy as np
import pytest

from backends.harness import Case, contract, float_reference, nrmse, on_every_level, output, same_bits, weight
from strata.backends.cpu import CpuBackend
from strata.errors import FaultError
from strata.ops import (
    RopeScaling,
    Rotary,
    concat,
    copy_rows,
    delta_gates,
    gated_norm,
    grouped_norm,
    head_norm_rope,
    packed_delta_gates,
    rope_table,
    rotary_axes,
    scaled_silu,
    sigmoid_gate,
    stream_mix,
    stream_tile,
    stream_write,
    unit_heads,
)

ROWS = 5


def rows_of(width, seed=1, rows=ROWS, fault=False):
    x = np.random.default_rng([seed, width]).standard_normal((rows, width)).astype(np.float32)
    x[:, ::29] *= 30
    x[1, : width // 3] *= np.float32(-40)
    if fault:
        x[rows // 2, width // 2] += np.float32(0.25)
    return x


def vector(width, seed):
    w = weight("F32", 1, width, seed)
    return type(w)(w.name, w.format, (width,), w.data)


def case_of(emit, *widths):
    """emit(builder, inputs...) -> buffer; `fault` changes one value of the first input."""

    def make(rows=ROWS, live=None, fault=False):
        case = Case(rows, live)
        inputs = [case.input(rows_of(w, i, rows, fault and i == 0), f"x{i}") for i, w in enumerate(widths)]
        y = emit(case.builder, *inputs)
        out = output(rows, y.shape[-1], case.steps)
        copy_rows(case.builder, y, out)
        return case, out

    return make


def rotary(sections=(2, 1, 1), dim=8):
    return Rotary(rope_table(300, dim, 1e4, RopeScaling()), rotary_axes(dim // 2, sections))


def joined(b, x, y):
    return concat(b, x, y, 3, 20)


OPS = {
    "grouped_norm": case_of(lambda b, x: grouped_norm(b, x, vector(132, 3), 4, 1e-6), 132),
    "stream_tile": case_of(lambda b, x: stream_tile(b, x, 3), 300),
    "scaled_silu": case_of(lambda b, x: scaled_silu(b, x, 4), 321),
    "stream_mix 4": case_of(lambda b, x, g: stream_mix(b, x, g, 4), 1200, 1200),
    "stream_mix 3": case_of(lambda b, x, g: stream_mix(b, x, g, 3), 99, 99),
    "stream_write": case_of(stream_write, 1200, 300, 4),
    "sigmoid_gate": case_of(lambda b, x, g: sigmoid_gate(b, x, g, 24, 48, 24), 96, 192),
    "gated_norm sigmoid": case_of(
        lambda b, x, z: gated_norm(b, x, z, vector(24, 5), 1e-6, silu=False), 96, 96
    ),
    "gated_norm silu": case_of(lambda b, x, z: gated_norm(b, x, z, vector(24, 5), 1e-6, silu=True), 96, 96),
    "unit_heads": case_of(lambda b, x: unit_heads(b, x, 3, 16), 150),
    "delta_gates": case_of(lambda b, x, a: delta_gates(b, x, a, vector(6, 7), vector(6, 8)), 6, 6),
    "packed gates": case_of(lambda b, x: packed_delta_gates(b, x, 3, vector(6, 7), vector(6, 8)), 12),
    "concat": case_of(joined, 30, 40),
}


@pytest.mark.parametrize("name", OPS)
def test_kernels_are_the_contract(name):
    make = OPS[name]
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), f"{name}, {label}"
    assert nrmse(want, float_reference(make)) < 1e-6
    assert not same_bits(want, contract(lambda: make(fault=True))), "one changed value must show"


@pytest.mark.parametrize("name", OPS)
def test_live_rows_alone_are_written(name):
    want = contract(OPS[name])
    for live in (1, 2, 4):
        case, out = OPS[name](live=live)
        got = case.run(CpuBackend(2), out, whole=True)
        assert same_bits(got[:live], want[:live])
        assert np.isnan(got[live:]).all()


POSITIONS = np.array([[0, 0, 0], [5, 9, 2], [70, 71, 72], [299, 3, 0], [8, 8, 8]], np.int32)


def rope_case(stride, sections=(2, 1, 1), positions=POSITIONS):
    def make(fault=False):
        case = Case(ROWS)
        case.set(case.steps.rope_positions, positions)
        x = case.input(rows_of(3 * stride, 1, fault=fault))
        y = head_norm_rope(case.builder, x, vector(20, 4), rotary(sections), 1e-6, stride)
        out = output(ROWS, 60, case.steps)
        copy_rows(case.builder, y, out)
        return case, out

    return make


@pytest.mark.parametrize("stride", [20, 40])
def test_head_norm_rope(stride):
    make = rope_case(stride)
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(make)) < 1e-6
    assert not same_bits(
        want, contract(lambda: make(fault=False) if False else rope_case(stride, (4, 0, 0))())
    )
    text = np.repeat(POSITIONS[:, :1], 3, axis=1)
    plain, sectioned = (contract(rope_case(stride, s, text)) for s in ((), (2, 1, 1)))
    assert same_bits(plain, sectioned), "equal positions on all axes make sections vanish"


def test_axes_interleave():
    """Frequencies of [11, 11, 10]: height at 1, 4, .. 31, width at 2, 5, .. 29, time elsewhere (Qwen3-VL)."""
    axes = rotary_axes(32, (11, 11, 10, 0)).data
    assert [i for i in range(32) if axes[i] == 1] == list(range(1, 33, 3))
    assert [i for i in range(32) if axes[i] == 2] == list(range(2, 30, 3))
    assert not rotary_axes(32, ()).data.any()


def test_a_position_outside_the_table_is_a_fault():
    case, out = rope_case(20, positions=np.full((ROWS, 3), 300, np.int32))()
    with pytest.raises(FaultError, match="outside its table"):
        case.run(CpuBackend(2), out)
