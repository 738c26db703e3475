"""Lowering rules of what a draft layer needs beside a trunk's ops."""

from collections.abc import Sequence

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, ints, launch, lower, pointer, type_macro
from strata.backends.cuda.lower_dense import THREADS, elements, rows_of
from strata.backends.cuda.lower_linear import shared_bytes
from strata.backends.cuda.segments import blocks_ahead, segment_count, segment_length
from strata.ops.linear_some import LinearSome
from strata.ops.pass_draft import PassDraft
from strata.ops.recent_rows import KeepRecent, RecallRecent

_ROWS = (1, 2, 4, 8)  # rows a kernel takes at once


@lower.register
def _(op: KeepRecent, at: Context) -> list[Launch]:
    sequences, depth, width = op.ring.shape
    args = [at.live(op.x), *at.at(op.positions, op.sequences, op.x, op.ring), pointer(at.faults)]
    grid = elements(min(rows_of(op.x, at), depth) * width)
    return [launch("drafts.cu", op.kind, grid, THREADS, [*args, *ints(width, depth, sequences)])]


@lower.register
def _(op: RecallRecent, at: Context) -> list[Launch]:
    sequences, depth, width = op.ring.shape
    args = [at.live(op.out), *at.at(op.positions, op.sequences, op.ring, op.out), pointer(at.faults)]
    grid = elements(rows_of(op.out, at) * width)
    return [launch("drafts.cu", op.kind, grid, THREADS, [*args, *ints(width, depth, sequences)])]


@lower.register
def _(op: PassDraft, at: Context) -> list[Launch]:
    args = [at.live(op.ids), *at.at(op.depth, op.ids, op.logprobs, op.tokens, op.drafts), pointer(at.faults)]
    most, _, rows = op.drafts.shape
    return [launch("drafts.cu", op.kind, 1, 32, [*args, *ints(most, rows)])]


@lower.register
def _(op: LinearSome, at: Context) -> list[Launch]:
    return [linear_some(op, at, at.q8(op.x))]


def linear_some(op: LinearSome, at: Context, q8: Sequence[Arg]) -> Launch:
    """The product of the q8 planes with listed rows."""
    (n, k), fmt, rows = op.weight.shape, op.weight.format, rows_of(op.out, at)
    room = [m for m in _ROWS if m == 1 or shared_bytes(fmt.name, k, m) <= at.properties.shared]
    m = next((m for m in room if m >= rows), room[-1])
    macros: list[tuple[str, str | int]] = [
        type_macro(fmt),
        ("STRATA_ROWS", m),
        ("STRATA_SEGMENTS", segment_count(k)),
        ("STRATA_AHEAD", blocks_ahead(k)),
        ("STRATA_LENGTH", segment_length(k)),
    ]
    each = THREADS // 32 * (32 // segment_count(k))
    grid = -(-op.ids.shape[0] // each), -(-rows // m)
    args = [at.live(op.out), *q8, at.packed(op.weight), at.live(op.ids)]
    args += [*at.at(op.ids, op.out), pointer(at.faults), *ints(n, k)]
    shared = shared_bytes(fmt.name, k, m)
    return launch("linear_some.cu", "linear_some", grid, THREADS, args, macros=macros, shared=shared)
