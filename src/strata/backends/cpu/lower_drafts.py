"""Lowering rules of what a draft layer needs beside a trunk's ops."""

from strata.backends.cpu.lower import Addresses, Record, lower
from strata.ops.linear_some import LinearSome
from strata.ops.pass_draft import PassDraft
from strata.ops.recent_rows import KeepRecent, RecallRecent


@lower.register
def _(op: KeepRecent, at: Addresses) -> Record:
    sequences, depth, width = op.ring.shape
    ptrs = [at.live(op.x), *map(at.buffer, (op.positions, op.sequences, op.x, op.ring))]
    return Record(op.kind, ptrs, [width, depth, sequences], [])


@lower.register
def _(op: RecallRecent, at: Addresses) -> Record:
    sequences, depth, width = op.ring.shape
    ptrs = [at.live(op.out), *map(at.buffer, (op.positions, op.sequences, op.ring, op.out))]
    return Record(op.kind, ptrs, [width, depth, sequences], [])


@lower.register
def _(op: LinearSome, at: Addresses) -> Record:
    n, k = op.weight.shape
    ptrs = [at.live(op.out), *at.planes(op.x), at.weight(op.weight), at.live(op.ids)]
    return Record(
        op.kind, [*ptrs, at.buffer(op.ids), at.buffer(op.out)], [op.weight.format.type_id, k, n], []
    )


@lower.register
def _(op: PassDraft, at: Addresses) -> Record:
    ptrs = [at.live(op.ids), *map(at.buffer, (op.depth, op.ids, op.logprobs, op.tokens, op.drafts))]
    return Record(op.kind, ptrs, [op.drafts.shape[0], op.drafts.shape[2]], [])
