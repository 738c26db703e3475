"""Lowering rules of the mixture of experts: the router's choice, and the experts' products."""

from strata.backends.cuda import lower_wide, lower_wide_experts
from strata.backends.cuda.driver import Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import Context, ints, launch, lower, pointer, type_macro
from strata.backends.cuda.lower_heads import by_warp
from strata.ops.arithmetic import segment_bounds
from strata.ops.expert_groups import GroupByExpert
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.ops.router import Router
from strata.quants import Format

_MOST_ROWS = 8  # pairs of an expert that share a decoded block


@lower.register
def _(op: Router, at: Context) -> list[Launch]:
    rows, experts = op.logits.shape
    args = [at.live(op.logits), *at.at(op.logits, op.topk_ids, op.topk_weights)]
    args += [*ints(experts, op.topk_ids.shape[-1], int(op.renormalise)), pointer(at.faults)]
    (node,) = by_warp("router.cu", "router", rows, args)
    macros = [("STRATA_EXPERTS", experts)]
    return [launch("router.cu", "router", node.grid, node.block, args, macros=macros)]


@lower.register
def _(op: GroupByExpert, at: Context) -> list[Launch]:
    if lower_wide.applies(at):
        return lower_wide_experts.group(op, at)
    experts, k = op.offsets.shape[0] - 1, op.topk_ids.shape[-1]
    args = [at.live(op.topk_ids), *at.at(op.topk_ids, op.pairs, op.offsets), *ints(k, experts)]
    threads = min(1024, -(-experts // 32) * 32)
    shared = 4 * (experts + 1)
    return [launch("router.cu", "group_by_expert", 1, threads, [*args, pointer(at.faults)], shared=shared)]


class _Shape:
    """Geometry of a launch of moe.cu for products over k values of up to `pairs` pairs, `rows` at a time."""

    def __init__(self, k: int, n: int, pairs: int, bucket: int, experts: int, formats: list[Format]):
        quantised = any(f.quantised for f in formats)
        self.segments = len(segment_bounds(k // 32)) - 1 if quantised else 1
        longest = -(-(k // 32) // self.segments) if quantised else 1
        self.rows = next(m for m in (1, 2, 4, _MOST_ROWS) if m >= min(bucket, _MOST_ROWS))
        warps = max(self.segments, 4)
        features = warps * (32 // self.segments)
        self.threads = 32 * warps
        self.by_expert = experts < pairs
        self.grid = -(-n // features), experts if self.by_expert else pairs
        tables = sum({f.name: TABLE_WORDS.get(f.name, 0) for f in formats}.values())
        staged = self.rows * (k // 4 + 4 * self.segments + 2 * (k // 32)) if quantised else 0
        self.shared = 4 * (tables + self.threads * self.rows + 2 * self.rows * features + staged)
        self.macros: list[tuple[str, str | int]] = [
            ("STRATA_ROWS", self.rows),
            ("STRATA_SEGMENTS", self.segments),
            ("STRATA_AHEAD", longest if longest <= 6 else 4),
            ("STRATA_LENGTH", longest if quantised and k // 32 % self.segments == 0 else 0),
        ]


@lower.register
def _(op: ExpertGateUp, at: Context) -> list[Launch]:
    wide = lower_wide_experts.gate_up_applies(op, at)
    nodes = lower_wide_experts.gate_up(op, at) if wide else [_gate_up(op, at)]
    if at.tier is not None and at.tier.holds(op.gate):
        return [*at.tier.stage(at, op, None, renormalise=False), *nodes]
    return nodes


def _gate_up(op: ExpertGateUp, at: Context) -> Launch:
    """Gate and up for pairs of few rows."""
    experts, n, hidden = op.gate.shape
    pairs = op.out.shape[0]
    s = _Shape(hidden, n, pairs, at.bucket, experts, [op.gate.format, op.up.format])
    out = at.q8(op.out) if op.out.dtype == "q8" else [*at.at(op.out), pointer(0), pointer(0)]
    q8 = at.q8(op.q8) if op.q8 is not None else [pointer(0)] * 3
    args = [*at.at(op.pairs, op.offsets, op.x), *q8, pointer(at.experts(op.gate)), pointer(at.experts(op.up))]
    args += [*at.raw(op.gate_scale, op.up_scale), *out]
    args += [*ints(hidden, n, experts, op.k, int(s.by_expert)), pointer(at.faults)]
    macros = [type_macro(op.gate.format), type_macro(op.up.format, "STRATA_UP"), *s.macros]
    return launch("moe.cu", "expert_gate_up", s.grid, s.threads, args, macros=macros, shared=s.shared)


@lower.register
def _(op: ExpertDown, at: Context) -> list[Launch]:
    wide = lower_wide_experts.down_applies(op, at)
    nodes = lower_wide_experts.down(op, at) if wide else [_down(op, at)]
    held = at.tier is not None and at.tier.table(op.weight) is not None
    return [*nodes, *at.tier.take(at, op)] if at.tier is not None and held else nodes


def _down(op: ExpertDown, at: Context) -> Launch:
    """Down for pairs of few rows."""
    experts, n, k = op.weight.shape
    s = _Shape(k, n, op.out.shape[0], at.bucket, experts, [op.weight.format])
    rows = [pointer(0), *at.q8(op.x)] if op.x.dtype == "q8" else [*at.at(op.x), *[pointer(0)] * 3]
    args = [
        *at.at(op.pairs, op.offsets),
        *rows,
        pointer(at.experts(op.weight)),
        *at.raw(op.scale),
        *at.at(op.out),
    ]
    args += ints(k, n, experts, int(s.by_expert))
    macros = [type_macro(op.weight.format), *s.macros]
    return launch("moe.cu", "expert_down", s.grid, s.threads, args, macros=macros, shared=s.shared)
