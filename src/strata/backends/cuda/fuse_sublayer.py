"""Sublayers in few launches: reading the residual, a mixer of the delta rule or the experts, writing the residual."""

from dataclasses import dataclass

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.fuse import Lowering
from strata.backends.cuda.fuse_experts import match_experts
from strata.backends.cuda.lower import FILE, Context, floats, ints, launch, lower, pointer, type_macro
from strata.backends.cuda.lower_dense import norm_row, rows_of
from strata.backends.cuda.lower_products import product_write, products
from strata.backends.cuda.pattern import Mismatch, Pattern, Product, first_fitting, require, sublayer
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

_LOW_THREADS = 256  # a row
# By the most rows of a step, rows that a thread block of streams_low norms side by side, and rows of one of
# streams_mix. Beyond the last, and where shared memory has no room, one. Two rows fit side by side as thread blocks
# of their own, beside the node before; two, four and eight rows are 3, 2 and 0 % faster together on an H200.
TOGETHER: dict[int, tuple[int, int]] = {1: (1, 1), 8: (2, 8)}
_LONGEST_ROW = 8192  # of a plain norm by one thread block
_MIXER_THREADS = 512


def _low_blocks(rank: int, rows: int) -> int:
    """Thread blocks of streams_low, the injection's aside."""
    return -(-rank // rows)


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

    def launches(self, p: Pattern, at: Context) -> list[Launch]:
        """Two: the low-rank half, then the gates and the mean."""
        rank, wide = self.down.weight.shape
        streams, width, most = self.mix.streams, self.x.shape[-1], rows_of(self.x, at)
        inject = self.down if self.inject is None else self.inject
        row_bytes, inject_bytes = (op.weight.nbytes // op.weight.shape[0] for op in (self.down, inject))

        def shared(rows: int, together: int = 1) -> int:
            return 4 * wide * together + max(rows * row_bytes, inject_bytes)

        rows = first_fitting((4, 3, 2, 1), lambda r: shared(r) + 64 <= at.properties.shared)
        while rows > 1 and _low_blocks(rank, rows - 1) <= at.staying():
            rows -= 1
        together, mixed = next((t for up_to, t in sorted(TOGETHER.items()) if up_to >= most), (1, 1))
        if shared(rows, together) + 128 > at.properties.shared:
            together = 1
        each = max(1, rows * row_bytes // inject_bytes)
        macros: list[tuple[str, str | int]] = [
            type_macro(self.down.weight.format), type_macro(inject.weight.format, "STRATA_INJECT"),
            ("STRATA_STREAMS", streams), ("STRATA_WIDTH", width), ("STRATA_RANK", rank),
            ("STRATA_ROWS_A_BLOCK", rows), ("STRATA_TOGETHER", together), ("STRATA_MIX_ROWS", mixed),
        ]  # fmt: skip
        residual, norm, live = at.at(self.norm.x), at.raw(self.norm.weight), at.live(self.norm.x)
        low, scales = (pointer(at.scratch(4 * most * n)) for n in (rank, streams))
        logits = [pointer(0)] if self.inject is None else at.at(self.inject.out)
        blocks = -(-rank // rows) + (0 if self.inject is None else -(-streams // each))
        down, injected = (pointer(at.weight(op.weight, FILE)) for op in (self.down, inject))
        args = [live, *residual, *norm, down, injected, low, *logits, scales]
        first = launch(
            "read_streams.cu", "streams_low", (blocks, most if together == 1 else 1), together * _LOW_THREADS,
            [*args, *floats(self.norm.eps)], macros=macros, shared=shared(rows, together), ahead=True,
            reads=[(down, self.down.weight), (injected, inject.weight)][: 1 if self.inject is None else 2],
        )  # fmt: skip
        up = pointer(at.weight(self.up.weight, FILE))
        args = [live, *residual, *norm, scales, up, low, *at.at(self.x)]
        args += [*p.planes(self.x, at), pointer(at.faults)]
        grid = width // 32, -(-most // mixed)
        second = launch(
            "read_streams.cu", "streams_mix", grid, 128 * streams, args, macros=macros, ahead=True,
            reads=[(up, self.up.weight)],
        )  # fmt: skip
        return [first, second]


def match_streams(p: Pattern) -> StreamsRead:
    """The ops of `HyperConnection.read` or `mix` (models/hyper.py), with float weights."""
    norm = p.need(GroupedNorm)
    down = p.need(LinearF, lambda op: op.x is norm.out)
    silu = p.need(ScaledSilu, lambda op: op.x is down.out)
    up = p.need(LinearF, lambda op: op.x is silu.out)
    mix = p.need(StreamMix, lambda op: op.x is norm.out and op.gate is up.out)
    inject = p.maybe(LinearF)
    if inject is not None and inject.x is not norm.out:
        p.back(len(p.ops) - 1)
        inject = None
    rank, width = down.weight.shape[0], mix.out.shape[-1]
    require(rank % 32 == 0 and width % 128 == 0 and mix.streams in (2, 4, 8))
    require(up.weight.format is down.weight.format and silu.divisor == mix.streams == norm.groups)
    return StreamsRead(norm, down, up, mix, inject)


@dataclass(frozen=True)
class NormRead:
    """A plain norm, as int8 blocks too where they are wanted."""

    norm: RmsNorm

    @property
    def x(self) -> Buffer:
        """The sublayer's input."""
        return self.norm.out

    def launches(self, p: Pattern, at: Context) -> list[Launch]:
        """One."""
        after = Quantize(self.x, p.q8[self.x]) if self.x in p.q8 else None
        return norm_row(self.norm, at, before=None, after=after, out=True)


def read(p: Pattern) -> StreamsRead | NormRead:
    """Either kind."""
    norm = p.maybe(RmsNorm)
    if norm is None:
        return match_streams(p)
    width = norm.x.shape[-1]
    require(norm.weight.shape[-1] == width <= _LONGEST_ROW and width % 32 == 0)
    return NormRead(norm)


@dataclass(frozen=True)
class Write:
    """The op that ends a sublayer; without `inject` a sum."""

    residual: Buffer
    inject: Buffer | None
    out: Buffer


def write(p: Pattern, source: StreamsRead | NormRead, y: Buffer) -> Write:
    """What follows y, and that nothing else of the pattern is read outside."""
    if isinstance(source, StreamsRead):
        op = p.need(StreamWrite, lambda op: op.y is y)
        require(source.inject is not None and op.inject is source.inject.out and op.residual is source.norm.x)
        result = Write(op.residual, op.inject, op.out)
    else:
        add = p.need(Add, lambda op: source.norm.x in (op.a, op.b) and y in (op.a, op.b))
        result = Write(source.norm.x, None, add.out)
    p.close(result.out)
    return result


@dataclass(frozen=True)
class _Mixer:
    """The ops between the products of x and the last product."""

    conv: CausalConv
    heads: UnitHeads
    gates: DeltaGates
    rule: DeltaRule
    z: Product
    norm: GatedNorm
    quantize: Quantize

    def launch(self, at: Context) -> Launch:
        """A thread block a value head."""
        rule, (slots, value_heads, value_dim, key_dim) = self.rule, self.rule.state.shape
        shared = 4 * at.bucket * (2 * key_dim + 2 * value_dim + 3)
        require(shared <= at.properties.shared)
        step = (rule.positions, rule.sequences, rule.commits, rule.state, rule.pending)
        args = [at.live(rule.positions), *at.at(*step, self.conv.x), *at.raw(self.conv.weight)]
        args += [
            *at.at(self.conv.ring, self.gates.b, self.gates.a),
            *at.raw(self.gates.rate, self.gates.bias),
        ]
        args += [*at.at(self.z.out), *at.raw(self.norm.weight), *at.q8(self.quantize.out)]
        sizes = (
            rule.key_heads,
            value_heads,
            int(rule.tiled),
            slots,
            self.conv.ring.shape[1],
            self.gates.packed,
        )
        args += [*ints(*sizes), *floats(self.heads.scale, self.norm.eps), pointer(at.faults)]
        macros: list[tuple[str, str | int]] = [
            ("STRATA_KEY_DIM", key_dim), ("STRATA_VALUE_DIM", value_dim), ("STRATA_ROWS", at.bucket),
            ("STRATA_KERNEL", self.conv.weight.shape[1]), ("STRATA_SILU", int(self.norm.silu)),
        ]  # fmt: skip
        grid = value_heads, 1, at.bucket
        return launch(
            "delta_mixer.cu",
            "delta_mixer",
            grid,
            _MIXER_THREADS,
            args,
            macros=macros,
            shared=shared,
            ahead=True,
        )


@sublayer
def delta_sublayer(p: Pattern) -> Lowering:
    """The gated delta rule (models/delta_mixer.py), step form."""
    source = read(p)
    x = source.x
    qkv = p.product(x)
    conv = p.need(CausalConv, lambda op: op.x is qkv.out and not op.tapped and op.dilation == 1)
    heads = p.need(UnitHeads, lambda op: op.x is conv.out)
    matrices = [qkv, p.product(x)]
    gates = p.maybe(DeltaGates)
    if gates is None:
        matrices.append(p.product(x))
        gates = p.need(DeltaGates)
    rule = p.need(DeltaRule, lambda op: op.qk is heads.out and op.mixed is conv.out and op.gates is gates.out)
    require(type(rule) is DeltaRule)
    matrices.append(z := p.product(x))
    norm = p.need(GatedNorm, lambda op: op.x is rule.out and op.z is z.out)
    quantize = p.need(Quantize, lambda op: op.x is norm.out)
    last = p.need(LinearQ, lambda op: op.x is quantize.out)
    end = write(p, source, last.out)
    value_dim = rule.state.shape[2]
    require(value_dim % 32 == 0 and norm.weight.shape[0] == value_dim)
    mixer = _Mixer(conv, heads, gates, rule, z, norm, quantize)

    def launches(at: Context) -> list[Launch]:
        y = Product(last.weight, last.out)
        return [
            *source.launches(p, at),
            *products(at, x, p.planes(x, at), matrices),
            mixer.launch(at),
            product_write(at, at.q8(quantize.out), y, end.residual, end.inject, end.out),
        ]

    return launches


@sublayer
def experts_sublayer(p: Pattern) -> Lowering:
    """The mixture of experts (models/moe.py)."""
    source = read(p)
    experts = match_experts(p, source.x)
    end = write(p, source, experts.out)
    ops = list(p.ops)

    def launches(at: Context) -> list[Launch]:
        def first(*guessed: Product) -> list[Launch]:
            planes, matrices = p.planes(source.x, at), [*experts.matrices, *guessed]
            return [*source.launches(p, at), *products(at, source.x, planes, matrices)]

        try:
            then = experts.step(p, at, end.residual, end.inject, end.out)
            return [*first(*experts.guessed(at)), *then]
        except Mismatch:  # many rows, or a geometry of its own: the rest op by op
            rest = range(ops.index(experts.router), len(ops))
            return [*first(), *(node for i in rest if i not in experts.covered for node in lower(ops[i], at))]

    return launches
