"""Kernels on rows: exact results, live rows alone written, faults, and a planted fault seen in each."""

import numpy as np
import pytest
from machines import Array, apply, count, fma, lane_dot, nudge, random_rows, run_everywhere, same_bits
from weights import random_weight

from strata import _native

WIDTHS = [32, 96, 100, 576]  # whole lanes and not
BUCKET, LIVE = 5, 3
UNTOUCHED = np.float32(-77.0)


def blank(width: int) -> Array:
    return np.full((BUCKET, width), UNTOUCHED, np.float32)


def check_live(out: Array, expected: Array) -> None:
    """Live rows as expected to the bit, the others as they were."""
    assert same_bits(out[:LIVE], expected[:LIVE])
    assert (out[LIVE:] == UNTOUCHED).all()


def rms_norm(x: Array, weight: Array, eps: float, lanes: int = 32) -> Array:
    mean = lane_dot(x.T, x.T, lanes) / np.float32(x.shape[1])
    inverse = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return (x * inverse[:, None]) * weight


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(width: int) -> None:
    x, weight = random_rows(BUCKET, width, 1), random_rows(1, width, 2)[0]
    [out] = run_everywhere("rms_norm", [count(LIVE), x, weight, blank(width)], [width, 1], [1e-5])
    check_live(out, rms_norm(x, weight, 1e-5))
    assert not same_bits(out[:LIVE], rms_norm(nudge(x[:LIVE]), weight, 1e-5))
    exact = x.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out[:LIVE], exact[:LIVE], rtol=1e-6)


def test_rms_norm_sums_in_32_lanes() -> None:
    x, weight = random_rows(64, 576, 5), np.ones(576, np.float32)
    [out] = run_everywhere("rms_norm", [count(64), x, weight, np.zeros_like(x)], [576, 1], [1e-5])
    assert same_bits(out, rms_norm(x, weight, 1e-5))
    assert not same_bits(out, rms_norm(x, weight, 1e-5, lanes=16))


def quantize(x: Array) -> tuple[Array, Array, Array]:
    blocks = x.reshape(len(x), -1, 32)
    amax = np.abs(blocks).max(axis=-1)
    with np.errstate(divide="ignore"):
        inverse = np.where(amax < np.float32(1e-30), np.float32(0), np.float32(127) / amax)
    scales = np.where(amax < np.float32(1e-30), np.float32(0), amax / np.float32(127)).astype(np.float32)
    codes = np.rint(blocks * inverse[..., None].astype(np.float32)).astype(np.int8)
    sums = codes.reshape(len(x), -1, 16).sum(axis=-1).astype(np.int16)
    return codes.reshape(x.shape), scales, sums


@pytest.mark.parametrize("k", [32, 160, 640])
def test_quantize(k: int) -> None:
    x = random_rows(BUCKET, k, 3) * np.float32(10) ** np.arange(-2, 3, dtype=np.float32)[:, None]
    x[0, :32], x[1, :32], x[2, 5] = 0.0, 1e-31, -0.0
    x[2, :3] = [127.0, 0.5, 1.5]  # ties to even once 127 is the largest
    x[2, 3:32] = np.clip(x[2, 3:32], -126, 126)
    planes = [
        np.full(s, 99, t)
        for s, t in (((BUCKET, k), "i1"), ((BUCKET, k // 32), "f4"), ((BUCKET, k // 16), "i2"))
    ]
    outs = run_everywhere("quantize", [count(LIVE), x, *planes], [k], outputs=(2, 3, 4))
    expected = quantize(x)
    for out, want in zip(outs, expected, strict=True):
        assert same_bits(out[:LIVE], want[:LIVE])
        assert (out[LIVE:] == 99).all()
    assert outs[0][2, 1] == 0
    assert outs[0][2, 2] == 2
    changed = x.copy()
    changed[2, k - 1] = 100.0
    assert not same_bits(outs[0][:LIVE], quantize(changed)[0][:LIVE])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantize_faults_on_non_finite_values_of_live_rows(bad: float) -> None:
    x = random_rows(BUCKET, 64, 4)
    planes = [np.zeros((BUCKET, 64), "i1"), np.zeros((BUCKET, 2), "f4"), np.zeros((BUCKET, 4), "i2")]
    x[LIVE, 40] = bad
    run_everywhere("quantize", [count(LIVE), x, *planes], [64], outputs=(2, 3, 4))
    x[LIVE - 1, 40] = bad
    outs = run_everywhere(
        "quantize", [count(LIVE), x, *planes], [64], outputs=(2, 3, 4), fault=_native.FAULT_NON_FINITE
    )
    assert not outs[0][LIVE - 1, 32:].any()
    assert outs[0][LIVE - 1, :32].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_elementwise(width: int) -> None:
    a, b, bias = random_rows(BUCKET, width, 6), random_rows(BUCKET, width, 7), random_rows(1, width, 8)[0]
    a[0, 0] = -100.0  # silu below exp32's range
    live = count(LIVE)
    cases = {
        "add": ([live, a, b, blank(width)], [], lambda x: x + b),
        "add_bias": ([live, a, bias, blank(width)], [], lambda x: x + bias),
        "silu_mul": ([live, a, b, blank(width)], [], lambda x: apply("silu32", x) * b),
        "scale": ([live, a, blank(width)], [0.3], lambda x: x * np.float32(0.3)),
    }
    for kind, (arrays, scalars, expected) in cases.items():
        [out] = run_everywhere(kind, arrays, [width], scalars)
        check_live(out, expected(a))
        changed = a.copy()
        changed[1] += np.float32(0.5)
        assert not same_bits(out[:LIVE], expected(changed)[:LIVE]), kind


def test_outputs_may_be_inputs() -> None:
    a, b = random_rows(BUCKET, 96, 9), random_rows(BUCKET, 96, 10)
    in_place = a.copy()
    program = _native.Program(_native.ThreadPool(2))
    live = count(LIVE)
    program.add(
        "add", [live.ctypes.data, in_place.ctypes.data, b.ctypes.data, in_place.ctypes.data], [96], []
    )
    program.run(0, 1)
    assert same_bits(in_place[:LIVE], (a + b)[:LIVE])
    assert same_bits(in_place[LIVE:], a[LIVE:])


def test_gather_rows() -> None:
    x, index = random_rows(9, 48, 11), np.array([8, 0, 4, 1, 1], np.int32)
    [out] = run_everywhere("gather_rows", [count(LIVE), index, x, blank(48)], [48])
    check_live(out, x[index])
    assert not same_bits(out[:LIVE], x[index[::-1]][:LIVE])
    index[1] = -1
    run_everywhere("gather_rows", [count(LIVE), index, x, blank(48)], [48], fault=_native.FAULT_RANGE)


def rope(x: Array, angles: Array, rotary: int, style: int) -> Array:
    """x [rows, heads, dim], angles [rows, rotary / 2, 2]."""
    out = x.copy()
    half = rotary // 2
    first, second = (
        (slice(0, rotary, 2), slice(1, rotary, 2)) if style == 0 else (slice(0, half), slice(half, rotary))
    )
    a, b, cos, sin = x[..., first], x[..., second], angles[:, None, :, 0], angles[:, None, :, 1]
    out[..., first] = fma(a, cos, -(b * sin))
    out[..., second] = fma(b, cos, a * sin)
    return out


@pytest.mark.parametrize("style", [0, 1])
@pytest.mark.parametrize("rotary", [64, 24])
def test_rope(style: int, rotary: int) -> None:
    heads, dim, max_positions = 3, 64, 50
    angle = np.arange(max_positions)[:, None] * 0.1 ** np.arange(rotary // 2)
    table = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
    x, positions = random_rows(BUCKET, heads * dim, 12), np.array([49, 0, 7, 3, 99], np.int32)
    dims = [heads, dim, rotary, style, max_positions]
    [out] = run_everywhere("rope", [count(LIVE), positions, table, x, blank(heads * dim)], dims)

    def expected(at: Array, kind: int) -> Array:
        return rope(x[:LIVE].reshape(LIVE, heads, dim), table[at[:LIVE]], rotary, kind).reshape(LIVE, -1)

    check_live(out, expected(positions, style))
    assert not same_bits(out[:LIVE], expected(positions[::-1] % 50, style))
    assert not same_bits(out[:LIVE], expected(positions, 1 - style))
    positions[2] = 50
    run_everywhere(
        "rope", [count(LIVE), positions, table, x, blank(heads * dim)], dims, fault=_native.FAULT_RANGE
    )


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_1", "Q8_0", "Q6_K", "Q2_0", "NVFP4"])
def test_embed_is_the_decoded_row(kind: str) -> None:

    vocab, hidden = 7, 512
    raw, type_id, decoded = random_weight(kind, vocab, hidden, 13)
    tokens = np.array([6, 0, 3, 1, 2], np.int32)
    [out] = run_everywhere("embed", [tokens, count(LIVE), raw, blank(hidden)], [type_id, hidden, vocab])
    check_live(out, decoded[tokens])
    assert not same_bits(out[:LIVE], decoded[tokens[::-1]][:LIVE])
    for bad in (-1, vocab):
        tokens[1] = bad
        run_everywhere(
            "embed",
            [tokens, count(LIVE), raw, blank(hidden)],
            [type_id, hidden, vocab],
            fault=_native.FAULT_RANGE,
        )
