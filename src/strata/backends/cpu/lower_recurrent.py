"""Lowering rules of recurrent ops: convolutions, the delta rule, n-grams."""

from strata.backends.cpu.lower import Addresses, Record, lower
from strata.ops.conv import CausalConv
from strata.ops.delta_inputs import DeltaGates, UnitHeads
from strata.ops.delta_rule import DeltaChunk, DeltaRule, DeltaSettle
from strata.ops.ngram import NgramGate, NgramRows, TableRows


@lower.register
def _(op: CausalConv, at: Addresses) -> Record:
    channels, kernel = op.weight.shape
    step = map(at.buffer, (op.positions, op.sequences, op.tap_positions, op.tap_slots, op.x))
    ptrs = [at.live(op.x), *step, at.weight(op.weight), at.buffer(op.ring), at.buffer(op.out)]
    return Record(op.kind, ptrs, [channels, kernel, op.dilation, *op.ring.shape[:2], int(op.tapped)], [])


@lower.register
def _(op: UnitHeads, at: Addresses) -> Record:
    head_dim = op.out.shape[-1] // (2 * op.heads)
    ptrs = [at.live(op.out), at.buffer(op.x), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.heads, head_dim, op.x.shape[-1]], [op.scale])


@lower.register
def _(op: DeltaGates, at: Addresses) -> Record:
    weights = map(at.weight, (op.rate, op.bias))
    ptrs = [at.live(op.out), at.buffer(op.b), at.buffer(op.a), *weights, at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.rate.shape[0], op.packed], [])


@lower.register
def _(op: DeltaSettle, at: Addresses) -> Record:
    return Record(op.kind, _delta_ptrs(op, at), _delta_dims(op), [])


@lower.register
def _(op: DeltaRule, at: Addresses) -> Record:
    rows = map(at.buffer, (op.qk, op.mixed, op.gates, op.out))
    return Record(op.kind, [*_delta_ptrs(op, at), *rows], _delta_dims(op), [])


@lower.register
def _(op: DeltaChunk, at: Addresses) -> Record:
    rows = map(at.buffer, (op.qk, op.mixed, op.gates, op.out, op.tap_positions, op.tap_slots))
    return Record(op.kind, [*_delta_ptrs(op, at), *rows], _delta_dims(op), [])


def _delta_ptrs(op: DeltaSettle | DeltaRule, at: Addresses) -> list[int]:
    buffers = (op.positions, op.sequences, op.commits, op.state, op.pending)
    return [at.live(op.positions), *map(at.buffer, buffers)]


def _delta_dims(op: DeltaSettle | DeltaRule) -> list[int]:
    slots, heads, value_dim, key_dim = op.state.shape
    return [op.key_heads, heads, key_dim, value_dim, int(op.tiled), slots]


@lower.register
def _(op: NgramRows, at: Addresses) -> Record:
    step = (op.positions, op.sequences, op.tap_positions, op.tap_slots, op.tokens)
    hashed = (op.multipliers, op.sizes, op.offsets, op.history, op.out)
    dims = [op.multipliers.shape[0], op.sizes.shape[0], op.eos, op.history.shape[0], int(op.tapped)]
    return Record(op.kind, [at.live(op.out), *map(at.buffer, (*step, *hashed))], dims, [])


@lower.register
def _(op: TableRows, at: Addresses) -> Record:
    rows, width = op.weight.shape
    ptrs = [at.live(op.out), at.buffer(op.index), at.weight(op.weight), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.weight.format.type_id, width, rows, op.index.shape[-1]], [])


@lower.register
def _(op: NgramGate, at: Addresses) -> Record:
    width = op.value.shape[-1]
    ptrs = [at.live(op.out), *map(at.buffer, (op.key, op.query, op.value, op.out))]
    return Record(op.kind, ptrs, [width, op.key.shape[-1] // width], [width**-0.5])
