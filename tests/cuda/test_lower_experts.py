"""Shared memory of a step's experts on devices of several sizes: counts of what kernels/experts_*.cu declare."""

from types import SimpleNamespace

import pytest

from strata.backends.cuda import lower_experts
from strata.quants import FORMATS


def form(rows, shared):
    def stack(name, *shape):
        return SimpleNamespace(format=FORMATS[name], shape=shape)

    gate = stack("IQ3_XXS", 512, 640, 2560)
    experts = lower_experts.Experts(gate, gate, stack("Q2_0", 512, 2560, 640), 10, True)
    properties = SimpleNamespace(shared=shared, multiprocessors=132)
    at = SimpleNamespace(bucket=rows, properties=properties, staying=lambda each: 132 * each)
    return lower_experts.form(at, experts)


@pytest.mark.parametrize(("rows", "copies"), [(1, 32), (2, 32), (4, 32), (8, 16)])
def test_copies_of_the_grid_cost_no_thread_block(rows, copies):
    """Of 228 KB two thread blocks of gate and up; their static shared memory is below 7.5 KB."""
    found = form(rows, 227 << 10)
    assert found.copies == copies
    assert found.staged == (True, True)
    assert 2 * (found.shared[0] + (7500 if rows == 8 else 6000) + 1024) <= 228 << 10
    if rows > 1:
        assert found.grids[0] == (264, 1, 1)


def test_fewer_copies_where_one_thread_block_fits_only_with_them():
    assert form(1, 99 << 10).copies == 16
    assert form(1, 101 << 10).copies == 32
    assert form(1, 99 << 10).shared[0] <= 99 << 10
