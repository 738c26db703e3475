"""Lowering rules of what a draft layer needs beside a trunk's ops."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda import segments as geometry
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, ints, launch, lower, pointer, type_macro
from strata.backends.cuda.lower_dense import THREADS, elements, rows_of
from strata.backends.cuda.lower_linear import shared_bytes
from strata.backends.cuda.segments import (
    blocks_ahead,
    segment_count,
    segment_length,
    staged_bytes,
    staged_weight_bytes,
    table_bytes,
)
from strata.ops.linear_some import LinearSome
from strata.ops.pass_draft import PassDraft
from strata.ops.recent_rows import KeepRecent, RecallRecent
from strata.quants import Format

_ROWS = (1, 2, 4, 8)  # rows a kernel takes at once
# Threads and stages of linear_some_staged.cu: the first that fit with _STAY threads a multiprocessor; none: not used.
RINGS: Sequence[tuple[int, int]] = ((256, 3), (256, 2), (512, 2))
_STAY = 512


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


@dataclass(frozen=True)
class _Ring:
    """Of linear_some_staged.cu: threads, stages, thread blocks a multiprocessor, dynamic shared memory."""

    threads: int
    stages: int
    blocks: int
    shared: int


def _ring(fmt: Format, k: int, m: int, at: Context) -> _Ring | None:
    """For m rows; None where there is no room, or listed rows are no whole copies (staged_weights.cuh)."""
    stage = -(-staged_weight_bytes(fmt, k) // 16) * 16
    if stage < 128 * m or k // 32 % 16:
        return None
    before = -(-(table_bytes(fmt) + staged_bytes(k, m)) // 16) * 16
    for threads, stages in RINGS:
        shared, blocks = before + threads // 32 * stages * stage, _STAY // threads
        if blocks * (shared + 1024) <= at.properties.shared + 1024:
            return _Ring(threads, stages, blocks, shared)
    return None


def _staged(op: LinearSome, at: Context, q8: Sequence[Arg]) -> Launch | None:
    """By thread blocks that stay, each row whole; None where that is not known."""
    (n, k), fmt, rows = op.weight.shape, op.weight.format, rows_of(op.out, at)
    m = next((m for m in _ROWS if m >= rows), _ROWS[-1])
    ring = _ring(fmt, k, m, at)
    if ring is None:
        return None
    macros: list[tuple[str, str | int]] = [
        type_macro(fmt), ("STRATA_ROWS", m), ("STRATA_SEGMENTS", segment_count(k)),
        ("STRATA_LENGTH", segment_length(k)), ("STRATA_THREADS", ring.threads), ("STRATA_STAGES", ring.stages),
        ("STRATA_BLOCKS", ring.blocks), ("STRATA_CHAIN_UNROLL", geometry.CHAIN_UNROLL),
    ]  # fmt: skip
    most = -(-op.ids.shape[0] // (ring.threads // 32 * (32 // segment_count(k))))
    grid = min(at.properties.multiprocessors * ring.blocks, most), -(-rows // m)
    args = [at.live(op.out), *q8, at.packed(op.weight), at.live(op.ids)]
    args += [*at.at(op.ids, op.out), pointer(at.faults), *ints(n)]
    name, shared = "linear_some_staged", ring.shared
    return launch(f"{name}.cu", name, grid, ring.threads, args, macros=macros, shared=shared)


def linear_some(op: LinearSome, at: Context, q8: Sequence[Arg]) -> Launch:
    """The product of the q8 planes with listed rows."""
    if (staged := _staged(op, at, q8)) is not None:
        return staged
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
