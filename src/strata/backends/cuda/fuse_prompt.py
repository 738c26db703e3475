"""Launches of a prompt's rows, of which there are whole blocks of 64: row by row work of several ops in one launch.

The bits are those of the ops one by one."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.fuse import Match, Window, fusion
from strata.backends.cuda.fuse_dense import alike
from strata.backends.cuda.lower import Context, floats, ints, launch, pointer
from strata.backends.cuda.lower_dense import rows_of
from strata.backends.cuda.lower_linear import MOST_MATRICES, floating
from strata.backends.cuda.lower_state import convolve
from strata.backends.cuda.lower_wide_float import takes_scales
from strata.ops.conv import CausalConv
from strata.ops.delta_inputs import UnitHeads
from strata.ops.gates import GatedNorm, SigmoidGate
from strata.ops.grouped_norm import GroupedNorm
from strata.ops.linear import LinearF
from strata.ops.op import Op
from strata.ops.quantize import Quantize
from strata.ops.step import CHUNK_BLOCK
from strata.ops.streams import StreamMix, StreamWrite

_NORM_WARPS, _WARPS = 4, 8
_BLOCKS = (
    16  # thread blocks a multiprocessor that take units in turn: small ones cost more to start than to run
)
_WIDEST = 32 * 128  # values of a stream, of which a lane holds its part
O = TypeVar("O", bound=Op)


def _prompt(w: Window, i: int, kind: type[O]) -> O | None:
    """Op i where it is of that kind and has whole blocks of rows."""
    op = w.at(i, kind)
    return op if op is not None and op.outputs[-1].shape[0] % CHUNK_BLOCK == 0 else None


def _quantised(w: Window, i: int, of: Op) -> Quantize | None:
    """Op i where it makes int8 blocks of what `of` makes."""
    op = w.at(i, Quantize)
    return op if op is not None and op.x is of.outputs[0] else None


def _planes(after: Quantize | None, at: Context) -> list[Arg]:
    return at.q8(after.out) if after is not None else [pointer(0)] * 3


def _by_warp(
    at: Context, file: str, entry: str, units: int, args: list[Arg], macros: dict[str, int]
) -> list[Launch]:
    grid = min(-(-units // _WARPS), _BLOCKS * at.properties.multiprocessors)
    return [launch(file, entry, grid, 32 * _WARPS, args, macros=list(macros.items()))]


@fusion
def _convolution(w: Window) -> Match | None:
    """A convolution, and unit queries and keys from its front."""
    conv, heads = _prompt(w, 0, CausalConv), w.at(1, UnitHeads)
    if conv is None or heads is None or heads.x is not conv.out or not conv.tapped:
        return None
    head = heads.out.shape[-1] // (2 * heads.heads)
    if head % 32 or head > 256 or conv.weight.shape[0] % head:
        return None
    return Match(2, lambda at: convolve(conv, at, head, heads))


@fusion
def _norm(w: Window) -> Match | None:
    """[The streams after a sublayer, then] their norm [, float products of it, which finds their rows' scales]."""
    write, norm = _prompt(w, 0, StreamWrite), _prompt(w, 0, GroupedNorm)
    if write is not None:
        norm = w.at(1, GroupedNorm)
        if norm is None or norm.x is not write.out or norm.groups != write.inject.shape[-1]:
            return None
    if norm is None or norm.x.shape[-1] // norm.groups % 128 or norm.x.shape[-1] // norm.groups > _WIDEST:
        return None
    count = 1 + (write is not None)
    reads = _products(w, count, norm)
    return Match(count + len(reads), partial(_normed, write, norm, reads))


def _products(w: Window, i: int, norm: GroupedNorm) -> list[LinearF]:
    """Products from op i on that take the norm's rows, where a thread block of stream_norm has one row."""
    found = alike(w.run(i, LinearF, MOST_MATRICES))
    taken = all(op.x is norm.out and op.out.live is norm.out.live for op in found)
    return found if taken and norm.groups == _NORM_WARPS else []


def _normed(
    write: StreamWrite | None, norm: GroupedNorm, reads: Sequence[LinearF], at: Context
) -> list[Launch]:
    scales = pointer(at.scratch(4 * rows_of(norm.out, at))) if takes_scales(reads, at) else None
    given = at.at(write.residual, write.y, write.inject) if write else [*at.at(norm.x), *[pointer(0)] * 2]
    args = [at.live(norm.out), *given, *at.raw(norm.weight), *at.at(write.out if write else None, norm.out)]
    args += [pointer(0) if scales is None else scales, *floats(norm.eps), pointer(at.faults)]
    macros = [("STRATA_WIDTH", norm.x.shape[-1] // norm.groups), ("STRATA_STREAMS", norm.groups)]
    grid = -(-rows_of(norm.out, at) * norm.groups // _NORM_WARPS)
    node = launch("streams_prompt.cu", "stream_norm", grid, 32 * _NORM_WARPS, args, macros=macros)
    return [node, *(floating(reads, at, scales) if reads else [])]


@fusion
def _mean(w: Window) -> Match | None:
    """Streams mixed by their gates [, int8 blocks]."""
    mix = _prompt(w, 0, StreamMix)
    if mix is None or mix.out.shape[-1] % 128:
        return None
    after, width, streams = _quantised(w, 1, mix), mix.out.shape[-1], mix.streams
    count = 1 + (after is not None)
    kept = mix.out if after is None or not w.unread_after(count, mix.out) else None

    def launches(at: Context) -> list[Launch]:
        args = [at.live(mix.out), *at.at(mix.x, mix.gate, kept), *_planes(after, at), pointer(at.faults)]
        units = rows_of(mix.out, at) * width // 128
        macros = {"STRATA_WIDTH": width, "STRATA_STREAMS": streams}
        return _by_warp(at, "streams_prompt.cu", "stream_mean", units, args, macros)

    return Match(count, launches)


@fusion
def _gated_heads(w: Window) -> Match | None:
    """Heads normed and gated [, int8 blocks]."""
    norm = _prompt(w, 0, GatedNorm)
    if norm is None or norm.weight.shape[-1] % 32 or norm.weight.shape[-1] > 256:
        return None
    head, after = norm.weight.shape[-1], _quantised(w, 1, norm)
    count, heads = 1 + (after is not None), norm.x.shape[-1] // head
    kept = norm.out if after is None or not w.unread_after(count, norm.out) else None

    def launches(at: Context) -> list[Launch]:
        args = [
            at.live(norm.out),
            *at.at(norm.x, norm.z),
            *at.raw(norm.weight),
            *at.at(kept),
            *_planes(after, at),
        ]
        args += [*ints(heads, int(norm.silu)), *floats(norm.eps), pointer(at.faults)]
        units = rows_of(norm.out, at) * heads
        return _by_warp(at, "heads_prompt.cu", "gated_norm_prompt", units, args, {"STRATA_HEAD": head})

    return Match(count, launches)


@fusion
def _gate(w: Window) -> Match | None:
    """Attention's heads gated [, int8 blocks]."""
    gate = _prompt(w, 0, SigmoidGate)
    if gate is None or gate.head_dim % 32 or gate.head_dim > 256:
        return None
    after, heads = _quantised(w, 1, gate), gate.x.shape[-1] // gate.head_dim
    count = 1 + (after is not None)
    kept = gate.out if after is None or not w.unread_after(count, gate.out) else None

    def launches(at: Context) -> list[Launch]:
        args = [at.live(gate.out), *at.at(gate.x, gate.gate, kept), *_planes(after, at)]
        args += [*ints(heads, gate.stride, gate.offset), pointer(at.faults)]
        units = rows_of(gate.out, at) * heads
        return _by_warp(
            at, "heads_prompt.cu", "sigmoid_gate_prompt", units, args, {"STRATA_HEAD": gate.head_dim}
        )

    return Match(count, launches)
