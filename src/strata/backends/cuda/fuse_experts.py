"""The experts' half of a sublayer: what the ops say, and the two launches that serve steps of few rows."""

from dataclasses import dataclass

import numpy as np

from strata.backends.cuda import lower_experts
from strata.backends.cuda import segments as shapes
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, launch, pointer, type_macro
from strata.backends.cuda.lower_products import segments
from strata.backends.cuda.pattern import Mismatch, Pattern, Product, require
from strata.backends.cuda.segments import segment_count, table_bytes
from strata.ops.buffers import Buffer
from strata.ops.combine import Combine, GatedAdd
from strata.ops.elementwise import SiluMul
from strata.ops.expert_groups import GroupByExpert
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.ops.linear import LinearF, LinearQ
from strata.ops.quantize import Quantize
from strata.ops.router import Router

JOINT = True  # whether gate and up are computed together
LATE = True  # whether gate and up ask for what is read later when their own weights have come
UNROLL = 5  # blocks of gate and up that a turn takes
FETCH_DOWN = True  # whether gate and up ask for the chosen experts' down
ROWS = 8  # of a step, up to which rows choose and read their experts apart: of many experts few are shared
_STAGED_MACROS = "STRATA_STAGED", "STRATA_INNER_STAGED"
_MOST_EXPERTS = 31  # of a row: each has a warp of experts_down


@dataclass(frozen=True)
class SharedExpert:
    """Products of the shared expert and its gate."""

    gate: Product
    up: Product
    silu: SiluMul
    down: LinearQ | LinearF
    scalar: Product
    add: GatedAdd


@dataclass(frozen=True)
class Experts:
    """The ops; `x` is the sublayer's input."""

    x: Buffer
    logits: Product
    router: Router
    gate_up: ExpertGateUp
    down: ExpertDown
    combine: Combine
    shared: SharedExpert | None
    covered: frozenset[int]  # places in the pattern of ops whose results the products of x leave

    @property
    def out(self) -> Buffer:
        """Rows of the experts together."""
        return self.combine.out if self.shared is None else self.shared.add.out

    @property
    def matrices(self) -> list[Product]:
        """Products of x."""
        s = self.shared
        return [self.logits] if s is None else [self.logits, s.scalar, s.gate, s.up]

    def guessed(self, at: Context) -> list[Product]:
        """A product of x for what `step` fetches ahead, where it does."""
        return [] if at.tier is None else at.tier.guessed(self.router, self.gate_up.gate)

    def _check(self, at: Context) -> None:
        """Mismatch where the launches of few rows do not know the geometry."""
        _, inner, hidden = self.gate_up.gate.shape
        quantised = [self.gate_up.gate, self.gate_up.up, self.down.weight]
        if self.shared is not None:
            quantised.append(self.shared.down.weight)
            require(not table_bytes(self.shared.down.weight.format))
            require(self.shared.down.weight.shape == (hidden, inner))
        require(all(w.format.quantised for w in quantised) and self.gate_up.k <= _MOST_EXPERTS)
        require(inner % 32 == 0 and hidden % 32 == 0 and at.bucket <= ROWS)

    def step(
        self, p: Pattern, at: Context, residual: Buffer, inject: Buffer | None, out: Buffer
    ) -> list[Launch]:
        """Two launches after the products of x: gate and up, then down and everything up to the residual."""
        self._check(at)
        (experts, _, hidden), top = self.gate_up.gate.shape, self.gate_up.k
        gate, up, down = self.gate_up.gate, self.gate_up.up, self.down.weight
        geometry = lower_experts.Experts(gate, up, down, top, self.shared is not None)
        form = lower_experts.form(at, geometry)
        require(max(form.shared) <= at.properties.shared)
        macros = [*self._macros(geometry, inject), *zip(_STAGED_MACROS, map(int, form.staged), strict=True)]
        macros.append(("STRATA_COPIES", form.copies))
        if form.ending:
            macros.append(("STRATA_ROWS", at.bucket))
        tier = at.tier if at.tier is not None and at.tier.holds(gate) else None
        late = tier is not None and tier.shares
        live, logits, q8 = at.live(self.x), at.at(self.logits.out), at.q8(self.gate_up.out)
        scales = at.raw(self.gate_up.gate_scale, self.gate_up.up_scale)
        tables = [pointer(at.experts(w)) for w in (gate, up, down)]
        args = [live, *logits, *p.planes(self.x, at), *tables[:2], *scales, *q8, tables[2]]
        args += [np.uint32(down.nbytes // experts if FETCH_DOWN else 0), pointer(at.faults)]
        first = launch(
            form.file, f"experts_gate_up{form.ending}", form.grids[0], 32 * segment_count(hidden), args,
            macros=macros, shared=form.shared[0], ahead=True,
        )  # fmt: skip
        args = [live, *logits, *q8, tables[2], *at.raw(self.down.scale), *self._shared_args(at)]
        args += [*at.at(residual, inject, out), pointer(at.faults)]
        if tier is not None and late:
            args.append(tier.address)
            macros.append(("STRATA_TAKE_LATE", 1))
            tier.workers.bind(tier.layer(gate), self.gate_up, self.down)
        second = launch(
            form.file, f"experts_down{form.ending}", form.grids[1], 32 * geometry.planes, args,
            macros=macros, shared=form.shared[1], ahead=True,
        )  # fmt: skip
        if tier is None:
            return [first, second]
        stage = tier.stage(at, self.gate_up, self.logits.out, self.router.renormalise)
        return [*stage, *tier.fetch_ahead(at, self.x, self.router, gate), first, second]

    def _macros(self, e: lower_experts.Experts, inject: Buffer | None) -> list[tuple[str, str | int]]:
        """Of both launches, in any form."""
        experts, inner, hidden = e.gate.shape
        macros: list[tuple[str, str | int]] = [
            type_macro(e.gate.format), type_macro(e.up.format, "STRATA_UP"),
            type_macro(e.down.format, "STRATA_DOWN"), ("STRATA_EXPERTS", experts), ("STRATA_TOP", e.top),
            ("STRATA_HIDDEN", hidden), ("STRATA_INNER", inner), *segments(hidden),
            *segments(inner, "STRATA_INNER_"), ("STRATA_STREAMS", 0 if inject is None else inject.shape[-1]),
            ("STRATA_FEATURES", e.features), ("STRATA_RENORMALISE", int(self.router.renormalise)),
        ]  # fmt: skip
        if self.shared is not None:
            macros.append(type_macro(self.shared.down.weight.format, "STRATA_SHARED"))
        return [
            *macros, ("STRATA_FETCH_DOWN", int(FETCH_DOWN)),
            ("STRATA_JOINT", int(JOINT)), ("STRATA_LATE", int(LATE)),
            ("STRATA_CHAIN_UNROLL", shapes.CHAIN_UNROLL), ("STRATA_UNROLL", UNROLL),
        ]  # fmt: skip

    def _shared_args(self, at: Context) -> list[Arg]:
        if self.shared is None:
            return [pointer(0)] * 4
        s = self.shared
        return [*at.at(s.gate.out, s.up.out, s.scalar.out), at.packed(s.down.weight)]


def match_experts(p: Pattern, x: Buffer) -> Experts:
    """The ops of `MoeWeights.forward` (models/moe.py)."""
    begin = len(p.ops)
    logits = p.product(x)
    covered = set(range(begin, len(p.ops)))
    router = p.need(Router, lambda op: op.logits is logits.out)
    groups = p.need(GroupByExpert, lambda op: op.topk_ids is router.topk_ids)
    begin = len(p.ops)
    p.quantised_form(x)
    covered |= set(range(begin, len(p.ops)))
    gate_up = p.need(ExpertGateUp, lambda op: op.pairs is groups.pairs)
    down = p.need(ExpertDown, lambda op: op.x is gate_up.out)
    combine = p.need(Combine, lambda op: op.expert_rows is down.out)
    shared = _match_shared(p, x, combine, covered)
    return Experts(x, logits, router, gate_up, down, combine, shared, frozenset(covered))


def _match_shared(p: Pattern, x: Buffer, combine: Combine, covered: set[int]) -> SharedExpert | None:
    """The shared expert, where there is one."""
    start, known = len(p.ops), dict(p.q8)
    try:
        gate = p.product(x)
        up = p.product(x)
        products = set(range(start, len(p.ops)))
        silu = p.need(SiluMul, lambda op: op.gate is gate.out and op.up is up.out)
        inner = p.maybe(Quantize)
        down = p.need(LinearF) if inner is None else p.need(LinearQ)
        begin = len(p.ops)
        scalar = p.product(x)
        products |= set(range(begin, len(p.ops)))
        add = p.need(GatedAdd, lambda op: op.x is combine.out and op.y is down.out and op.gate is scalar.out)
    except Mismatch:
        p.back(start)
        p.q8 = known
        return None
    covered |= products
    return SharedExpert(gate, up, silu, down, scalar, add)
