"""Lowering rules of norms, gates and residual streams."""

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer
from strata.backends.cuda.lower_dense import rows_of
from strata.ops.combine import Combine, GatedAdd
from strata.ops.delta_inputs import DeltaGates, UnitHeads
from strata.ops.gates import GatedNorm, SigmoidGate
from strata.ops.grouped_norm import GroupedNorm
from strata.ops.head_norm import HeadNormRope
from strata.ops.streams import ScaledSilu, StreamMix, StreamTile, StreamWrite

THREADS = 256
WARPS = 4
_SLICE_THREADS = 512


def by_value(file: str, entry: str, values: int, args: list[Arg]) -> list[Launch]:
    """A thread a value."""
    return [launch(file, entry, -(-values // THREADS), THREADS, args)]


def by_warp(file: str, entry: str, units: int, args: list[Arg]) -> list[Launch]:
    """A warp a unit."""
    return [launch(file, entry, -(-units // WARPS), 32 * WARPS, args)]


def by_slice(file: str, entry: str, slices: int, args: list[Arg], shared: int) -> list[Launch]:
    """A thread block a slice, with so many bytes of shared memory."""
    return [launch(file, entry, slices, _SLICE_THREADS, args, shared=shared)]


@lower.register
def _(op: GroupedNorm, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.x), *at.raw(op.weight), *at.at(op.out)]
    args += [*ints(op.x.shape[-1], op.groups), *floats(op.eps)]
    shared = op.x.shape[-1] // op.groups * 4
    return by_slice("streams.cu", "grouped_norm", rows_of(op.out, at) * op.groups, args, shared)


@lower.register
def _(op: StreamTile, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.x, op.out), *ints(op.x.shape[-1], op.streams)]
    return by_value("streams.cu", "stream_tile", op.x.shape[0] * op.x.shape[-1], args)


@lower.register
def _(op: ScaledSilu, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.x, op.out), *ints(op.x.shape[-1], op.divisor)]
    return by_value("streams.cu", "scaled_silu", op.x.shape[0] * op.x.shape[-1], args)


@lower.register
def _(op: StreamMix, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.x, op.gate, op.out), *ints(op.out.shape[-1], op.streams)]
    return by_value("streams.cu", "stream_mix", op.out.shape[0] * op.out.shape[-1], args)


@lower.register
def _(op: StreamWrite, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.residual, op.y, op.inject, op.out)]
    args += ints(op.y.shape[-1], op.inject.shape[-1])
    assert op.y.shape[-1] % 4 == 0, "a thread takes four values of a row"
    return by_value("streams.cu", "stream_write", op.y.shape[0] * op.y.shape[-1] // 4, args)


@lower.register
def _(op: Combine, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.expert_rows, op.topk_weights, op.out)]
    args += ints(op.out.shape[-1], op.topk_weights.shape[-1])
    return by_value("streams.cu", "combine", op.out.shape[0] * op.out.shape[-1], args)


@lower.register
def _(op: GatedAdd, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.x, op.y, op.gate, op.out), *ints(op.out.shape[-1])]
    assert op.out.shape[-1] % 4 == 0, "a thread takes four values of a row"
    return by_value("streams.cu", "gated_add", op.out.shape[0] * op.out.shape[-1] // 4, args)


@lower.register
def _(op: HeadNormRope, at: Context) -> list[Launch]:
    head_dim, (positions, pairs, _) = op.weight.shape[0], op.table.shape
    heads = op.x.shape[-1] // op.stride
    args = [
        at.live(op.out),
        *at.at(op.positions, op.table, op.axes, op.x),
        *at.raw(op.weight),
        *at.at(op.out),
    ]
    args += [*ints(heads, head_dim, op.stride, 2 * pairs, positions), *floats(op.eps), pointer(at.faults)]
    return by_warp("heads.cu", "head_norm_rope", op.out.shape[0] * heads, args)


@lower.register
def _(op: SigmoidGate, at: Context) -> list[Launch]:
    heads = op.x.shape[-1] // op.head_dim
    args = [at.live(op.out), *at.at(op.x, op.gate, op.out), *ints(heads, op.head_dim, op.stride, op.offset)]
    return by_warp("heads.cu", "sigmoid_gate", op.out.shape[0] * heads, args)


@lower.register
def _(op: GatedNorm, at: Context) -> list[Launch]:
    head_dim = op.weight.shape[0]
    heads = op.x.shape[-1] // head_dim
    args = [at.live(op.out), *at.at(op.x, op.z), *at.raw(op.weight), *at.at(op.out)]
    args += [*ints(heads, head_dim, int(op.silu)), *floats(op.eps)]
    return by_warp("heads.cu", "gated_norm", op.out.shape[0] * heads, args)


@lower.register
def _(op: UnitHeads, at: Context) -> list[Launch]:
    head_dim = op.out.shape[-1] // (2 * op.heads)
    args = [
        at.live(op.out),
        *at.at(op.x, op.out),
        *ints(op.heads, head_dim, op.x.shape[-1]),
        *floats(op.scale),
    ]
    return by_warp("heads.cu", "unit_heads", op.out.shape[0] * 2 * op.heads, args)


@lower.register
def _(op: DeltaGates, at: Context) -> list[Launch]:
    args = [at.live(op.out), *at.at(op.b, op.a), *at.raw(op.rate, op.bias), *at.at(op.out)]
    args += ints(op.rate.shape[0], op.packed)
    return by_value("heads.cu", "delta_gates", op.out.shape[0] * op.rate.shape[0], args)
