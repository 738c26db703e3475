"""Launches of a prompt chunk's routed experts (kernels/group_pairs.cu, kernels/wide_experts.cu)."""

from dataclasses import dataclass

from strata.backends.cuda import lower_int8
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import Context, ints, launch, pointer, type_macro
from strata.backends.cuda.lower_int8 import Int8Tile
from strata.backends.cuda.lower_wide import Tile, applies, needs_pairs, widen
from strata.ops.buffers import Buffer, Weight
from strata.ops.expert_groups import GroupByExpert
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.quants import Format

_PART = 1024  # kPart of group_pairs.cu
_THREADS = 512
_FEATURES = 32  # of a tile of gate and up
_LEAST_PAIRS = 14  # of an expert on average: with 10 moe.cu is faster, with 40 slower (docs/measurements.md)
# Of pairs: many of an expert, and what is left of it where that is few. Each first one that fits the device.
_WIDE = (Tile(1, 2, 2, 3), Tile(1, 1, 2, 2), Tile(1, 1, 1, 2))
_NARROW = (Tile(1, 1, 1, 3), Tile(1, 1, 1, 2))
_INT8 = (Int8Tile(2, 4, 4), Int8Tile(2, 2, 4)), (Int8Tile(2, 2, 4), Int8Tile(2, 1, 4))


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
    return fmt.quantised and op.up.format is fmt and _applies(op.out, op.gate, at)


def down_applies(op: ExpertDown, at: Context) -> bool:
    """A quantised plane."""
    return op.weight.format.quantised and _applies(op.out, op.weight, at)


def _applies(out: Buffer, weight: Weight, at: Context) -> bool:
    """Whether experts have enough pairs, and tiles fit the device's shared memory."""
    many = out.shape[0] >= _LEAST_PAIRS * weight.shape[0]
    return applies(at) and many and _chosen(weight.format, weight.shape[-1], at) is not None


def gate_up(op: ExpertGateUp, at: Context) -> list[Launch]:
    """Rows widened where tiles are f16, tiles, products."""
    n, hidden = op.gate.shape[1:]
    fmt = op.gate.format
    assert op.q8 is not None
    rows = min(op.q8.shape[0], at.bucket)
    x, nodes = _rows(at, at.live(op.q8), op.q8, rows, hidden, fmt)
    out = at.q8(op.out) if op.out.dtype == "q8" else [*at.at(op.out), pointer(0), pointer(0)]
    tables = [pointer(at.experts(op.gate)), pointer(at.experts(op.up))]
    rest = [*tables, *at.raw(op.gate_scale, op.up_scale), *out, *ints(hidden, n, op.k), pointer(at.faults)]
    return [*nodes, *_tiles(at, op, op.gate, rows * op.k, "wide_gate_up", -(-n // _FEATURES), [*x, *rest])]


def down(op: ExpertDown, at: Context) -> list[Launch]:
    """Inner rows widened where tiles are f16, tiles, products."""
    experts, n, k = op.weight.shape
    pairs = min(op.x.shape[0], at.bucket * op.k)
    live = pointer(at.buffer(op.offsets) + 4 * experts)  # the last offset: how many pairs there are
    x, nodes = _rows(at, live, op.x, pairs, k, op.weight.format)
    rest = [pointer(at.experts(op.weight)), *at.raw(op.scale), *at.at(op.out), *ints(k, n)]
    return [*nodes, *_tiles(at, op, op.weight, pairs, "wide_down", -(-n // 64), [*x, *rest])]


def _rows(
    at: Context, live: Arg, x: Buffer, rows: int, k: int, fmt: Format
) -> tuple[list[Arg], list[Launch]]:
    """q8 rows as the tiles take them: three planes, or images and what makes them."""
    if lower_int8.applies(at):
        return at.q8(x), []
    wide, node = widen(at, live, at.q8(x), rows, k, needs_pairs(fmt))
    return [pointer(wide.images), pointer(0), pointer(0)], [node]


@dataclass(frozen=True)
class _Chosen:
    """A tile with what its launch needs."""

    tokens: int
    threads: int
    shared: int
    macros: list[tuple[str, str | int]]


def _chosen(fmt: Format, k: int, at: Context) -> tuple[_Chosen, _Chosen] | None:
    """The wide and the narrow tile; None where the device has no room for one."""
    pick = _int8 if lower_int8.applies(at) else _f16
    wide, narrow = (pick(which, fmt, k, at.properties.shared) for which in (0, 1))
    return None if wide is None or narrow is None else (wide, narrow)


def _int8(which: int, fmt: Format, k: int, room: int) -> _Chosen | None:
    tile = lower_int8.fitting(_INT8[which], fmt, room - 8 * 128)
    if tile is None:
        return None
    macros = [("STRATA_INT8", 1), *tile.macros(fmt, k)]
    return _Chosen(tile.tokens, tile.threads, tile.shared(fmt) + 8 * tile.tokens, macros)


def _f16(which: int, fmt: Format, k: int, room: int) -> _Chosen | None:
    plane, table = _plane(fmt)
    for tile in (_WIDE, _NARROW)[which]:
        shared = tile.shared(fmt) + table + 8 * tile.tokens
        if shared <= room:
            macros = [type_macro(fmt), ("STRATA_PLANE", plane), *tile.macros()]
            return _Chosen(tile.tokens, tile.threads, shared, macros)
    return None


def _plane(fmt: Format) -> tuple[str, int]:
    """How a format is decoded, and its table's bytes."""
    if fmt.name == "IQ3_XXS":
        return "SignedIq3Xxs", 4 * 4096
    return f"Packed<QuantType::{fmt.name}>", 4 * TABLE_WORDS.get(fmt.name, 0)


def _tiles(
    at: Context,
    op: ExpertGateUp | ExpertDown,
    weight: Weight,
    pairs: int,
    entry: str,
    across: int,
    rest: list[Arg],
) -> list[Launch]:
    """Which tiles there are, then the wide and the narrow ones."""
    experts, chosen = weight.shape[0], _chosen(weight.format, weight.shape[-1], at)
    assert chosen is not None
    wide, narrow = (t.tokens for t in chosen)
    most = [pairs // wide + min(experts, pairs // (narrow + 1)), min(experts, pairs)]
    lists = [pointer(at.scratch(4 + 12 * max(m, 1))) for m in most]
    args: list[Arg] = [*at.at(op.offsets), *lists, *ints(experts, wide, narrow)]
    found = [launch("group_pairs.cu", "place_tiles", 1, _THREADS, args)]
    for tile, count, tiles in zip(chosen, most, lists, strict=True):
        if count:
            args, grid = [tiles, *at.at(op.pairs), *rest], (across, count)
            found.append(
                launch(
                    "wide_experts.cu", entry, grid, tile.threads, args, macros=tile.macros, shared=tile.shared
                )
            )
    return found
