"""What should pay is held back while it does not (`Trial` of strata/tiers_gpu.h)."""

import numpy as np
import pytest

from strata import _native

STEPS = 3000


def steps(mean, noise, seed):
    return (mean * (1 + noise * np.random.default_rng(seed).standard_normal(STEPS))).astype(int).tolist()


@pytest.mark.parametrize("which", [0, 1])
def test_what_pays_is_done(which):
    held = _native.try_out(which, steps(4e6, 0.02, 1), steps(4.4e6, 0.02, 2))
    assert sum(held) == pytest.approx(STEPS / 64, abs=2)


@pytest.mark.parametrize("which", [0, 1])
def test_what_is_slower_is_held_back_and_tried_again(which):
    held = _native.try_out(which, steps(4.4e6, 0.02, 1), steps(4e6, 0.02, 2))
    late = held[1500:]
    assert sum(not h for h in late) == pytest.approx(len(late) / 64, abs=2)


def test_it_comes_back_when_it_pays_again():
    slow, fast = steps(4.6e6, 0.01, 1), steps(4e6, 0.01, 2)
    half = STEPS // 2
    held = _native.try_out(0, slow[:half] + fast[half:], fast[:half] + slow[half:])
    assert sum(held[1200:half]) > 250
    assert sum(held[-600:]) < 20


def test_pauses_say_nothing():
    with_ns = [10**9 if i % 64 == 1 else 4_000_000 for i in range(STEPS)]
    assert sum(_native.try_out(0, with_ns, [3_000_000] * STEPS)) < STEPS / 32


@pytest.mark.parametrize("seed", range(8))
def test_steps_that_differ_much_hold_nothing_back(seed):
    """What a step misses moves its time by a third either way; what pays a tenth is done all the same."""
    with_it, without = (np.abs(steps(mean, 0.33, seed + s)).tolist() for mean, s in ((4e6, 0), (4.4e6, 100)))
    assert sum(_native.try_out(1, with_it, without)) < 2 * STEPS / 64
