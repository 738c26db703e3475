"""Sublayers of architectures with residual streams: reading the streams, a mixer or the experts, writing them."""

from dataclasses import dataclass

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.fuse import MATCHERS, Mismatch, Pattern, Product, first_fitting, require
from strata.backends.cuda.fuse_experts import match_experts
from strata.backends.cuda.lower import floats, ints, launch, lower, pointer, type_macro
from strata.backends.cuda.lower_products import product_write, products
from strata.ops.buffers import Buffer
from strata.ops.conv import CausalConv
from strata.ops.delta_inputs import DeltaGates, UnitHeads
from strata.ops.delta_rule import DeltaRule
from strata.ops.elementwise import Add
from strata.ops.gates import GatedNorm
from strata.ops.grouped_norm import GroupedNorm
from strata.ops.linear import LinearF, LinearQ
from strata.ops.quantize import Quantize
from strata.ops.rms_norm import RmsNorm
from strata.ops.streams import ScaledSilu, StreamMix, StreamWrite

_LOW_THREADS = 256


@dataclass(frozen=True)
class StreamsRead:
    """x [rows, width] of the streams, and the logits of its injection where there are any."""

    norm: GroupedNorm
    down: LinearF
    up: LinearF
    mix: StreamMix
    inject: LinearF | None

    @property
    def x(self) -> Buffer:
        """The sublayer's input."""
        return self.mix.out

    def launches(self, p: Pattern) -> list[Launch]:
        """Two: the low-rank half, then the gates and the mean."""
        at, (rank, wide) = p.at, self.down.weight.shape
        streams, width = self.mix.streams, self.x.shape[-1]
        inject = self.down if self.inject is None else self.inject
        bytes_of = {w: w.nbytes // w.shape[0] for w in (self.down.weight, inject.weight)}

        def shared(rows: int) -> int:
            return 4 * wide + max(rows * bytes_of[self.down.weight], bytes_of[inject.weight])

        rows = first_fitting((4, 2, 1), lambda r: shared(r) + 64 <= at.properties.shared)
        each = max(1, rows * bytes_of[self.down.weight] // bytes_of[inject.weight])
        macros: list[tuple[str, str | int]] = [
            type_macro(self.down.weight.format), type_macro(inject.weight.format, "STRATA_INJECT"),
            ("STRATA_STREAMS", streams), ("STRATA_WIDTH", width), ("STRATA_RANK", rank),
            ("STRATA_ROWS_A_BLOCK", rows),
        ]  # fmt: skip
        residual, norm = at.at(self.norm.x), at.raw(self.norm.weight)
        live, scales = at.live(self.norm.x), pointer(p.outer.scratch(4 * at.bucket * streams))
        low = pointer(p.outer.scratch(4 * at.bucket * rank))
        logits = [pointer(0)] if self.inject is None else at.at(self.inject.out)
        blocks = -(-rank // rows) + (0 if self.inject is None else -(-streams // each))
        args = [live, *residual, *norm, *at.raw(self.down.weight, inject.weight), low, *logits, scales]
        first = launch(
            "read_streams.cu", "streams_low", (blocks, at.bucket), _LOW_THREADS, [*args, *floats(self.norm.eps)],
            macros=macros, shared=shared(rows),
        )  # fmt: skip
        args = [live, *residual, *norm, scales, *at.raw(self.up.weight), low, *at.at(self.x)]
        args += [*p.quantised(self.x), pointer(at.faults)]
        grid = width // 32, at.bucket
        second = launch("read_streams.cu", "streams_mix", grid, 128 * streams, args, macros=macros)
        return [first, second]


def match_read(p: Pattern) -> StreamsRead:
    """The ops of `HyperConnection.read` or `mix` (models/hyper.py), with float weights."""
    norm = p.need(GroupedNorm)
    down = p.need(LinearF, lambda op: op.x is norm.out)
    silu = p.need(ScaledSilu, lambda op: op.x is down.out)
    up = p.need(LinearF, lambda op: op.x is silu.out)
    mix = p.need(StreamMix, lambda op: op.x is norm.out and op.gate is up.out)
    inject = p.maybe(LinearF)
    if inject is not None and inject.x is not norm.out:
        p.end, inject = p.end - 1, None
    rank, width = down.weight.shape[0], mix.out.shape[-1]
    require(rank % 32 == 0 and width % 32 == 0 and mix.streams in (2, 4, 8))
    require(up.weight.format == down.weight.format and silu.divisor == mix.streams == norm.groups)
    return StreamsRead(norm, down, up, mix, inject)


@dataclass(frozen=True)
class NormRead:
    """A plain norm: one launch, and one that quantises it."""

    norm: RmsNorm

    @property
    def x(self) -> Buffer:
        """The sublayer's input."""
        return self.norm.out

    def launches(self, p: Pattern) -> list[Launch]:
        """As the ops say."""
        made = lower(self.norm, p.at)
        if self.x in p.q8:
            made = [*made, *lower(Quantize(self.x, p.q8[self.x]), p.at)]
        return made


def read(p: Pattern) -> StreamsRead | NormRead:
    """Either kind."""
    norm = p.maybe(RmsNorm)
    return match_read(p) if norm is None else NormRead(norm)


def write(p: Pattern, source: StreamsRead | NormRead, y: Buffer) -> tuple[Buffer, Buffer | None, Buffer]:
    """(residual, inject, out) of the op that ends the sublayer."""
    if isinstance(source, StreamsRead):
        op = p.need(StreamWrite, lambda op: op.y is y)
        require(source.inject is not None and op.inject is source.inject.out and op.residual is source.norm.x)
        result = op.residual, op.inject, op.out
    else:
        add = p.need(Add, lambda op: source.norm.x in (op.a, op.b) and y in (op.a, op.b))
        result = source.norm.x, None, add.out
    p.close(result[2])
    return result


def delta_sublayer(p: Pattern) -> list[Launch]:
    """The gated delta rule (models/delta_mixer.py), step form."""
    source = read(p)
    x = source.x
    qkv = p.product(x)
    conv = p.need(CausalConv, lambda op: op.x is qkv.out and not op.tapped and op.dilation == 1)
    heads = p.need(UnitHeads, lambda op: op.x is conv.out)
    b = p.product(x)
    gates = p.maybe(DeltaGates)
    a = None
    if gates is None:
        a = p.product(x)
        gates = p.need(DeltaGates)
    rule = p.need(DeltaRule, lambda op: op.qk is heads.out and op.mixed is conv.out and op.gates is gates.out)
    require(type(rule) is DeltaRule)
    z = p.product(x)
    norm = p.need(GatedNorm, lambda op: op.x is rule.out and op.z is z.out)
    quantize = p.need(Quantize, lambda op: op.x is norm.out)
    last = p.need(LinearQ, lambda op: op.x is quantize.out)
    residual, inject, out = write(p, source, last.out)
    matrices = [qkv, z, b, *([] if a is None else [a])]
    middle = _delta_mixer(p, conv, heads, gates, rule, z, norm, quantize)
    end = product_write(p.at, p.at.q8(quantize.out), Product(last.weight, last.out), residual, inject, out)
    return [*source.launches(p), *products(p.at, x, p.quantised(x), matrices), middle, end]


def _delta_mixer(
    p: Pattern, conv: CausalConv, heads: UnitHeads, gates: DeltaGates, rule: DeltaRule, z: Product, norm: GatedNorm,
    quantize: Quantize,
) -> Launch:  # fmt: skip
    at, (slots, value_heads, value_dim, key_dim) = p.at, rule.state.shape
    rows = at.bucket
    shared = 4 * rows * (2 * key_dim + 2 * value_dim + 2)
    require(value_dim % 32 == 0 and norm.weight.shape[0] == value_dim and shared <= at.properties.shared)
    args = [at.live(rule.positions), *at.at(rule.positions, rule.sequences, rule.commits, rule.state, rule.pending)]
    args += [*at.at(conv.x), *at.raw(conv.weight), *at.at(conv.ring, gates.b, gates.a)]
    args += [*at.raw(gates.rate, gates.bias), *at.at(z.out), *at.raw(norm.weight), *at.q8(quantize.out)]
    sizes = (rule.key_heads, value_heads, int(rule.tiled), slots, conv.ring.shape[1], gates.packed)
    args += [*ints(*sizes), *floats(heads.scale, norm.eps), pointer(at.faults)]
    macros: list[tuple[str, str | int]] = [
        ("STRATA_KEY_DIM", key_dim), ("STRATA_VALUE_DIM", value_dim), ("STRATA_KERNEL", conv.weight.shape[1]),
        ("STRATA_SILU", int(norm.silu)), ("STRATA_ROWS", rows),
    ]  # fmt: skip
    grid = value_heads, 1, at.bucket
    return launch("delta_mixer.cu", "delta_mixer", grid, 512, args, macros=macros, shared=shared)


def experts_sublayer(p: Pattern) -> list[Launch]:
    """The mixture of experts (models/moe.py)."""
    source = read(p)
    experts = match_experts(p, source.x)
    residual, inject, out = write(p, source, experts.out)
    first = [*source.launches(p), *products(p.at, source.x, p.quantised(source.x), experts.matrices)]
    try:
        experts.step_fits(p)
        return [*first, *experts.step(p, residual, inject, out)]
    except Mismatch:  # more than one row, or a geometry of its own: the rest op by op
        rest = range(p.ops.index(experts.router), p.end)
        return [*first, *(node for i in rest if i not in experts.covered for node in lower(p.ops[i], p.at))]


MATCHERS += [delta_sublayer, experts_sublayer]
