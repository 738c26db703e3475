"""What nodes ask for early: each byte of weights once, in order, never what has been read, never past its run."""

from itertools import pairwise

import numpy as np
import pytest

from strata.backends.cuda.ahead import Plan, ask_ahead
from strata.backends.cuda.lower import launch, pointer


class Bytes:
    def __init__(self, nbytes):
        self.nbytes = nbytes


def node(*reads, ahead=True):
    return launch("a.cu", "a", 1, 32, [], reads=[(pointer(a), Bytes(n)) for a, n in reads], ahead=ahead)


def asked(nodes, plan):
    return [(int(n.args[-2]), int(n.args[-1])) for n in ask_ahead(nodes, plan) if n.ahead]


NODES = [
    node((0x10000, 4096)),
    node((0x11000, 8192), (0x13000, 4096)),
    node((0x9000000, 32000)),
    node((0x9008000, 64)),
]


def test_neighbours_are_one_piece():
    """The first node asks for what the second reads; the third's lie elsewhere."""
    assert asked(NODES[:3], Plan(1 << 20, 1 << 20)) == [(0x11000, 12288), (0x9000000, 32000), (0, 0)]


@pytest.mark.parametrize("plan", [Plan(1 << 20, 4096), Plan(8192, 8192), Plan(10000, 3000)])
def test_bounds(plan):
    pieces = [(a, n) for a, n in asked(NODES, plan) if n]
    assert pieces
    assert all(n <= plan.each and a % 16 == n % 16 == 0 for a, n in pieces)
    assert all(a + n <= b + 15 for (a, n), (b, _) in pairwise(pieces) if a >> 20 == b >> 20)
    for a, n in pieces:
        assert any(first <= a and a + n <= end for first, end in ((0x11000, 0x14000), (0x9000000, 0x9008040)))


def test_nothing_is_asked_without_a_plan():
    assert asked(NODES, None) == [(0, 0)] * 4
    assert np.array(asked(NODES, Plan())).sum() > 0


def test_what_asks_ahead_runs_in_turn():
    """A node that may ask for later weights is a node like others: it does not leave the chain."""
    node = launch("copy.cu", "copy_columns", 1, 32, [], ahead=True)
    assert node.ahead and not node.beside and not node.joins
