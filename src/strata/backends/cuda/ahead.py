"""Weights on their way to the device's cache before the kernels that read them begin.

Most nodes of a step wait longer than they read. Those that can take, at the end of `args`, an address and a number of
bytes that they ask for while they wait (kernels/ahead.cuh); what these are is decided here, when a program is complete.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from strata.backends.cuda.driver import Launch

_BORDER = 16  # bytes
_GAP = 1 << 18  # bytes between neighbours: small weights of kernels that do not stream


@dataclass(frozen=True)
class Plan:
    """`window`: bytes of weights that may be in the cache before they are used; `each`: most bytes a node asks for."""

    window: int = 16 << 20
    each: int = 8 << 20


PLAN: Plan | None = Plan()  # None: nothing is asked for


def ask_ahead(nodes: Sequence[Launch], plan: Plan | None) -> list[Launch]:
    """The nodes, each that can with the next bytes of weights that no node has asked for and later ones read."""
    if plan is None:
        return list(nodes)
    runs = [run for node in nodes for run in node.reads]
    ends = np.cumsum(
        [0, *(nbytes for _, nbytes in runs)]
    ).tolist()  # offsets in the stream of all that is read
    after, found, asked = 0, [], 0
    for node in nodes:
        after += sum(nbytes for _, nbytes in node.reads)
        begin = max(asked, after)
        room = min(plan.each, after + plan.window - begin)
        if node.ahead and room > 0 and begin < ends[-1]:
            address, nbytes, asked = _piece(runs, ends, begin, room)
            found.append(replace(node, args=(*node.args[:-2], np.uint64(address), np.uint32(nbytes))))
        else:
            found.append(node)
    return found


def _piece(runs: Sequence[tuple[int, int]], ends: list[int], begin: int, most: int) -> tuple[int, int, int]:
    """Address and bytes of about `most` bytes of the stream from `begin` on, as far as its runs are neighbours in
    memory; and the place in the stream that comes next."""
    i = bisect.bisect_right(ends, begin) - 1
    first = runs[i][0] + begin - ends[i]
    last, at = first, begin
    while i < len(runs) and at - begin < most and 0 <= runs[i][0] + at - ends[i] - last <= _GAP:
        part = min(ends[i + 1] - at, most - (at - begin))
        last = runs[i][0] + at - ends[i] + part
        at += part
        i += 1
    first = first // _BORDER * _BORDER
    return first, (last - first) // _BORDER * _BORDER, at
