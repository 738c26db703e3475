"""Launches of a prompt chunk's routed experts (kernels/group_pairs.cu, wide_experts.cu, int8_experts.cu)."""

from strata.backends.cuda import lower_int8, lower_wide
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import Context, ints, launch, pointer, type_macro
from strata.backends.cuda.lower_int8 import Int8Tile
from strata.backends.cuda.lower_wide import Tile, applies, in_turn, needs_pairs, widen
from strata.ops.buffers import Buffer, Weight
from strata.ops.expert_groups import GroupByExpert
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.quants import Format

_PART = 1024  # kPart of group_pairs.cu
_THREADS = 512
# Of an expert on average, from which moe.cu is slower: with 10 it was faster than the first tiles, with 40 slower. Of
# f16 tiles as they are it is reckoned, not measured (docs/cuda-prompt-products.md).
_LEAST_PAIRS, _LEAST_OF_INT8 = 8, 14
_PITCH = 37  # kPitch of wide_experts.cu
# Int8 tiles of pairs: many of an expert, and what is left of it where that is few. Each first one that fits the device.
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
    least = _LEAST_OF_INT8 if lower_int8.applies(at) else _LEAST_PAIRS
    many = out.shape[0] >= least * weight.shape[0]
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
    before = [*x, *tables, *at.raw(op.gate_scale, op.up_scale), *out, *ints(hidden, n, op.k)]
    return [*nodes, *_tiles(at, op, op.gate, rows * op.k, "gate_up", before, [pointer(at.faults)])]


def down(op: ExpertDown, at: Context) -> list[Launch]:
    """Inner rows widened where tiles are f16, tiles, products."""
    experts, n, k = op.weight.shape
    pairs = min(op.x.shape[0], at.bucket * op.k)
    live = pointer(at.buffer(op.offsets) + 4 * experts)  # the last offset: how many pairs there are
    x, nodes = _rows(at, live, op.x, pairs, k, op.weight.format)
    before = [*x, pointer(at.experts(op.weight)), *at.raw(op.scale), *at.at(op.out), *ints(k, n)]
    return [*nodes, *_tiles(at, op, op.weight, pairs, "down", before, [])]


def _rows(
    at: Context, live: Arg, x: Buffer, rows: int, k: int, fmt: Format
) -> tuple[list[Arg], list[Launch]]:
    """q8 rows as the tiles take them: three planes, or images with what makes them."""
    if lower_int8.applies(at):
        return at.q8(x), []
    wide, node = widen(at, live, at.q8(x), rows, k, needs_pairs(fmt))
    return [pointer(wide.images)], [node]


def _chosen(fmt: Format, k: int, at: Context) -> tuple[Int8Tile, Int8Tile] | Tile | None:
    """Int8 tiles of many and of few pairs, or the f16 tile; None where the device has no room."""
    if not lower_int8.applies(at):
        return lower_wide.fitting(lower_wide.DECODING_TILES, lambda tile: _shared(tile, fmt), at)
    room = at.properties.shared - 8 * 128
    wide, narrow = (lower_int8.fitting(tiles, fmt, room) for tiles in _INT8)
    return None if wide is None or narrow is None else (wide, narrow)


def _shared(tile: Tile, fmt: Format) -> int:
    """Dynamic shared memory of wide_experts.cu: the grid's table, barriers, stages, values of both consumers."""
    table = -(-_plane(fmt)[1] // 128) * 128
    return table + 128 + tile.shared(fmt) + 2 * 4 * tile.tokens * _PITCH


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
    before: list[Arg],
    after: list[Arg],
) -> list[Launch]:
    """Which tiles there are, then the products. Between `before` and `after` comes how many a thread block takes."""
    chosen = _chosen(weight.format, weight.shape[-1], at)
    assert chosen is not None
    if isinstance(chosen, Tile):
        return _f16(at, op, weight, pairs, entry, before, after, chosen)
    return _int8(at, op, weight, pairs, entry, [*before, *after], chosen)


def _rows_of(op: ExpertGateUp | ExpertDown, weight: Weight) -> int:
    """Weight rows of an expert in a launch."""
    return weight.shape[1] * (2 if isinstance(op, ExpertGateUp) else 1)


def _f16(
    at: Context,
    op: ExpertGateUp | ExpertDown,
    weight: Weight,
    pairs: int,
    entry: str,
    before: list[Arg],
    after: list[Arg],
    tile: Tile,
) -> list[Launch]:
    fmt, experts = weight.format, weight.shape[0]
    most = pairs // tile.tokens + min(experts, pairs)
    across = -(-_rows_of(op, weight) // tile.rows)
    each = in_turn(across, max(pairs // tile.tokens, min(experts, pairs)), at)
    tiles = pointer(at.scratch(4 + 12 * most))
    args: list[Arg] = [*at.at(op.offsets), tiles, *ints(experts, tile.tokens)]
    place = launch("group_pairs.cu", "place_even_tiles", 1, _THREADS, args)
    args = [tiles, *at.at(op.pairs), *before, *ints(each), *after]
    macros = [type_macro(fmt), ("STRATA_PLANE", _plane(fmt)[0]), ("STRATA_STAGES", tile.stages)]
    grid, shared = (-(-across // each), most), _shared(tile, fmt)
    file = "wide_experts.cu"
    threads = tile.decoding_threads
    return [place, launch(file, f"wide_{entry}", grid, threads, args, macros=macros, shared=shared)]


def _int8(
    at: Context,
    op: ExpertGateUp | ExpertDown,
    weight: Weight,
    pairs: int,
    entry: str,
    rest: list[Arg],
    chosen: tuple[Int8Tile, Int8Tile],
) -> list[Launch]:
    fmt, experts, k = weight.format, weight.shape[0], weight.shape[-1]
    wide, narrow = (t.tokens for t in chosen)
    most = [pairs // wide + min(experts, pairs // (narrow + 1)), min(experts, pairs)]
    lists = [pointer(at.scratch(4 + 12 * max(m, 1))) for m in most]
    args: list[Arg] = [*at.at(op.offsets), *lists, *ints(experts, wide, narrow)]
    found = [launch("group_pairs.cu", "place_tiles", 1, _THREADS, args)]
    across = -(-_rows_of(op, weight) // 64)
    for tile, count, tiles in zip(chosen, most, lists, strict=True):
        if count:
            args, macros = [tiles, *at.at(op.pairs), *rest], tile.macros(fmt, k)
            shared = tile.shared(fmt) + -(-8 * tile.tokens // 128) * 128
            name, grid = f"int8_{entry}", (across, count)
            found.append(
                launch("int8_experts.cu", name, grid, tile.threads, args, macros=macros, shared=shared)
            )
    return found
