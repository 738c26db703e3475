"""The NumPy arithmetic of the contract against C's libm and float64."""

import ctypes
import ctypes.util

import numpy as np
import pytest

from strata.ops import arithmetic as ar


def c_fmaf(a, b, c):
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    libm.fmaf.restype = ctypes.c_float
    libm.fmaf.argtypes = [ctypes.c_float] * 3
    return np.array(
        [libm.fmaf(float(x), float(y), float(z)) for x, y, z in zip(a, b, c, strict=True)], np.float32
    )


def adversarial(n, seed):
    """Triples whose exact sum lies on or beside float32 midpoints, cancels, is subnormal, or overflows."""
    g = np.random.default_rng(seed)
    bits = g.integers(0, 2**32, (3, n), dtype=np.uint32)
    raw = bits.view(np.float32)
    raw = np.where(np.isfinite(raw), raw, np.float32(1))
    near = (1 + g.integers(0, 2**23, (2, n)) * 2.0**-23).astype(np.float32)
    # c so that a * b + c is a midpoint of float32 plus or minus a sliver far below it
    sliver = np.ldexp(g.choice([-1.0, 1.0], n), -g.integers(25, 120, n)).astype(np.float32)
    power = np.ldexp(1.0, g.integers(0, 24, n)).astype(np.float32)
    midpoint = (np.float32(1) + np.float32(2) ** -12, np.float32(1) + np.float32(2) ** -12)
    return [
        (raw[0], raw[1], raw[2]),
        (near[0], near[1], -(near[0] * near[1])),
        (np.full(n, midpoint[0]), np.full(n, midpoint[1]), sliver),
        (power, np.full(n, np.float32(1 + 2**-23)), sliver),
        (raw[0] * np.float32(1e-20), raw[1] * np.float32(1e-20), raw[2] * np.float32(1e-38)),
        (np.full(n, np.float32(2**-75)), np.ldexp(near[1], -74), np.ldexp(sliver, -20)),
    ]


def same_bits(a, b):
    nan = np.isnan(a) & np.isnan(b)
    return bool(
        ((np.asarray(a, np.float32).view(np.uint32) == np.asarray(b, np.float32).view(np.uint32)) | nan).all()
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fma_is_c_fmaf_on_adversarial_values():
    for triple in adversarial(20_000, 1):
        a, b, c = (np.asarray(x, np.float32) for x in triple)
        assert same_bits(ar.fma(a, b, c), c_fmaf(a, b, c))


def test_twice_rounded_fma_would_be_caught():
    wrong = 0
    for triple in adversarial(20_000, 1)[1:]:
        a, b, c = (np.asarray(x, np.float32) for x in triple)
        twice = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
        wrong += not same_bits(twice, c_fmaf(a, b, c))
    assert wrong > 0


def ulps(got, exact):
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(got.astype(np.float64) - exact) / spacing).max())


def test_exp_log_silu_softplus_accuracy():
    x = np.linspace(-86.9, 87.9, 400_001).astype(np.float32)
    wide = x.astype(np.float64)
    assert ulps(ar.exp32(x), np.exp(wide)) <= 2.0
    positive = np.exp(np.linspace(-80, 80, 400_001)).astype(np.float32)
    assert ulps(ar.log32(positive), np.log(positive.astype(np.float64))) <= 2.5
    assert ulps(ar.silu32(x[x > -80]), (wide / (1 + np.exp(-wide)))[x > -80]) <= 4.0
    assert ulps(ar.softplus32(x[x > -80]), np.log1p(np.exp(wide))[x > -80]) <= 6.0


def test_exp_edges():
    x = np.array([-np.inf, -1e30, -87.1, 0.0, -0.0, 100.0, np.nan], np.float32)
    got = ar.exp32(x)
    assert (got[:3] == 0).all() and (got[3:5] == 1).all() and np.isfinite(got[5]) and np.isnan(got[6])


def test_tree_and_lanes_keep_their_order():
    g = np.random.default_rng(2)
    x = g.standard_normal((3, 77)).astype(np.float32)
    lanes = [np.float32(0)] * 32
    for i, v in enumerate(x[1]):
        lanes[i % 32] = np.float32(lanes[i % 32] + v)
    for half in (16, 8, 4, 2, 1):
        lanes = [np.float32(lanes[i] + lanes[i + half]) for i in range(half)]
    assert ar.lane_sum(x)[1] == lanes[0]
    assert ar.lane_sum(x)[1] != np.float32(sum(x[1], np.float32(0))), (
        "an ordinary order would give other bits here"
    )


def test_segments_cover_every_block_once():
    for blocks in range(1, 200):
        bounds = ar.segment_bounds(blocks)
        assert bounds[0] == 0 and bounds[-1] == blocks and bounds == sorted(bounds)
