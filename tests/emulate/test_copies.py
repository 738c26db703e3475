"""Asynchronous copies on the emulated device: a wait that is missing, a place that is used too early."""

import ctypes

import numpy as np
import pytest
from emulator import EmulatedFault, Memory, Module, launch

# Two groups of copies to s; `left` groups may be on their way when s[read] is read. `again`: s[0] is filled a second
# time before that.
SOURCE = r"""
#include "device.cuh"
using namespace strata;
extern "C" __global__ void copied(const float* x, float* y, int left, int read, int again, int end) {
  __shared__ __align__(16) float s[2][32];
  const int t = threadIdx.x;
  for (int i = 0; i < 2; ++i) copy_async<4>(s[i] + t, x + 32 * i + t), copies_group();
  if (left == 0) copies_wait();
  if (left == 1) copies_wait_for_groups<1>();
  if (again) copy_async<4>(s[0] + t, x + 64 + t), copies_group();
  y[t] = s[read][t];
  if (end) copies_wait();
}
"""


@pytest.fixture(scope="module")
def module():
    return Module(SOURCE)


def run(module, seed, left, read, again=0, end=1):
    x, y = Memory(4 * 96).put(np.arange(96, dtype=np.float32)), Memory(4 * 32)
    args = [x.arg, y.arg, *map(ctypes.c_int, (left, read, again, end))]
    launch(module.kernel("copied"), (1,), (32,), args, seed=seed)
    return y.get((32,), np.float32) - np.arange(32)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_waited_for_is_there(module, seed):
    assert (run(module, seed, 1, 0) == 0).all()
    assert (run(module, seed, 0, 1) == 32).all()


def test_a_missing_wait_is_seen_with_odd_seeds(module):
    for seed, late in enumerate((False, True, False, True)):
        for left, read in ((1, 1), (2, 0)):
            assert np.isnan(run(module, seed, left, read)).all() == late


def test_a_place_that_is_filled_too_early_is_seen_with_even_seeds(module):
    assert [bool((run(module, seed, 0, 0, again=1) == 0).all()) for seed in range(4)] == [False, True] * 2


def test_threads_do_not_end_before_their_copies(module):
    with pytest.raises(EmulatedFault, match="ends with 2 copies"):
        run(module, 1, 2, 0, end=0)
