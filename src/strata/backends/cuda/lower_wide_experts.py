"""Launches of a prompt chunk's routed experts (kernels/group_pairs.cu, kernels/wide_experts.cu)."""

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import Context, ints, launch, pointer, type_macro
from strata.backends.cuda.lower_wide import Tile, WideRows, applies, needs_pairs, widen
from strata.ops.expert_groups import GroupByExpert
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.quants import Format

_PART = 1024  # kPart of group_pairs.cu
_THREADS = 512
_FEATURES = 32  # of a tile of gate and up
# Of pairs: many of an expert, and what is left of it where that is few. Each first one that fits the device.
_WIDE = (Tile(1, 2, 2, 3), Tile(1, 1, 2, 2), Tile(1, 1, 1, 2))
_NARROW = (Tile(1, 1, 1, 3), Tile(1, 1, 1, 2))


def group(op: GroupByExpert, at: Context) -> list[Launch]:
    """Counts by parts, offsets, pairs."""
    experts, k = op.offsets.shape[0] - 1, op.topk_ids.shape[-1]
    parts = -(-min(op.topk_ids.shape[0], at.bucket) * k // _PART)
    counts, live, ids = pointer(at.scratch(4 * parts * experts)), at.live(op.topk_ids), at.at(op.topk_ids)
    args: list[Arg] = [live, *ids, counts, *ints(k, experts), pointer(at.faults)]
    first = launch("group_pairs.cu", "count_pairs", parts, _THREADS, args)
    args = [counts, *at.at(op.offsets), *ints(parts, experts)]
    second = launch("group_pairs.cu", "place_pairs", 1, _THREADS, args)
    args = [live, *ids, counts, *at.at(op.pairs), *ints(k, experts)]
    return [first, second, launch("group_pairs.cu", "scatter_pairs", parts, _THREADS, args)]


def gate_up_applies(op: ExpertGateUp, at: Context) -> bool:
    """Both planes of one quantised format."""
    fmt = op.gate.format
    return applies(at) and fmt.quantised and op.up.format is fmt and fits(fmt, at)


def down_applies(op: ExpertDown, at: Context) -> bool:
    """A quantised plane."""
    return applies(at) and op.weight.format.quantised and fits(op.weight.format, at)


def fits(fmt: Format, at: Context) -> bool:
    """Whether a tile fits the device's shared memory."""
    return _shared(_WIDE[-1], fmt) <= at.properties.shared


def gate_up(op: ExpertGateUp, at: Context) -> list[Launch]:
    """Rows widened, tiles, products."""
    experts, n, hidden = op.gate.shape
    fmt = op.gate.format
    assert op.q8 is not None
    rows = min(op.q8.shape[0], at.bucket)
    x, node = widen(at, at.live(op.q8), at.q8(op.q8), rows, hidden, needs_pairs(fmt))
    out = at.q8(op.out) if op.out.dtype == "q8" else [*at.at(op.out), pointer(0), pointer(0)]
    tables = [pointer(at.experts(op.gate)), pointer(at.experts(op.up))]
    rest = [*tables, *at.raw(op.gate_scale, op.up_scale), *out, *ints(hidden, n, op.k)]
    features = -(-n // _FEATURES)
    pairs = rows * op.k
    return [
        node,
        *_tiles(at, op, fmt, experts, pairs, "wide_gate_up", features, x, [*rest, pointer(at.faults)]),
    ]


def down(op: ExpertDown, at: Context) -> list[Launch]:
    """Inner rows widened, tiles, products."""
    experts, n, k = op.weight.shape
    fmt = op.weight.format
    pairs = min(op.x.shape[0], at.bucket * op.k)
    live = pointer(at.buffer(op.offsets) + 4 * experts)  # the last offset: how many pairs there are
    x, node = widen(at, live, at.q8(op.x), pairs, k, needs_pairs(fmt))
    rest = [pointer(at.experts(op.weight)), *at.raw(op.scale), *at.at(op.out), *ints(k, n)]
    return [node, *_tiles(at, op, fmt, experts, pairs, "wide_down", -(-n // 64), x, rest)]


def _plane(fmt: Format) -> tuple[str, int]:
    """How a format is decoded, and its table's bytes."""
    if fmt.name == "IQ3_XXS":
        return "SignedIq3Xxs", 4 * 4096
    return f"Packed<QuantType::{fmt.name}>", 4 * TABLE_WORDS.get(fmt.name, 0)


def _shared(tile: Tile, fmt: Format) -> int:
    return tile.shared(fmt) + _plane(fmt)[1] + 8 * tile.tokens


def _tiles(
    at: Context, op: ExpertGateUp | ExpertDown, fmt: Format, experts: int, pairs: int, entry: str, across: int,
    x: WideRows, rest: list[Arg],
) -> list[Launch]:  # fmt: skip
    """Which tiles there are, then the wide and the narrow ones."""
    chosen = [next(t for t in tiles if _shared(t, fmt) <= at.properties.shared) for tiles in (_WIDE, _NARROW)]
    wide, narrow = (t.tokens for t in chosen)
    most = [pairs // wide + min(experts, pairs // (narrow + 1)), min(experts, pairs)]
    lists = [pointer(at.scratch(4 + 12 * max(m, 1))) for m in most]
    args: list[Arg] = [*at.at(op.offsets), *lists, *ints(experts, wide, narrow)]
    found = [launch("group_pairs.cu", "place_tiles", 1, _THREADS, args)]
    for tile, count, tiles in zip(chosen, most, lists, strict=True):
        if not count:
            continue
        macros = [type_macro(fmt), ("STRATA_PLANE", _plane(fmt)[0]), *tile.macros()]
        args = [tiles, *at.at(op.pairs), pointer(x.images), *rest]
        shared = _shared(tile, fmt)
        found.append(
            launch(
                "wide_experts.cu", entry, (across, count), tile.threads, args, macros=macros, shared=shared
            )
        )
    return found
