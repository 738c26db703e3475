"""Products of few rows by thread blocks that stay (kernels/products_stream.cu)."""

from collections.abc import Sequence

import numpy as np

from strata.backends.cuda import segments as geometry
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import FILE, PACKED, Context, ints, launch, pointer, type_macro
from strata.backends.cuda.pattern import Product
from strata.backends.cuda.segments import (
    segment_count,
    segment_length,
    staged_bytes,
    staged_weight_bytes,
    table_bytes,
)
from strata.ops.buffers import Weight

MOST = 6  # matrices of a launch
# By the most rows that it takes, threads and stages of products_stream.cu: the first with _ENOUGH threads a
# multiprocessor; without any, and beyond the last, it is not used. Steps of four and eight rows are 2 and 3 % faster on
# an H200 with these than with three stages of 16 warps.
STREAM: dict[int, Sequence[tuple[int, int]]] = {
    2: ((256, 3), (128, 3)),
    8: ((256, 3), (512, 2), (128, 3), (256, 2)),
}
_ENOUGH = 512
_RESIDENT = 1024  # threads a multiprocessor that thread blocks which stay may have


def _ring(
    at: Context, k: int, rows: int, matrices: Sequence[Product], choices: Sequence[tuple[int, int]]
) -> tuple[int, int, int, int, int] | None:
    """Of products_stream.cu: threads, stages, bytes of a stage, dynamic shared memory, thread blocks a multiprocessor;
    None where there is no room or a format is not staged."""
    exact = [f for f in (m.weight.format for m in matrices) if not f.quantised]
    coded = [f for f in (m.weight.format for m in matrices) if f.quantised]
    per_warp = 32 // segment_count(k)
    sizes = {staged_weight_bytes(f, k) for f in coded}
    if (
        not coded
        or 0 in sizes
        or max(sizes) < 128 * rows  # an item's segments of all rows take the place of its weights
        or any(m.weight.shape[0] % per_warp for m in matrices if m.weight.format.quantised)
    ):
        return None
    row = max((k * f.block_bytes // f.block_values for f in exact), default=0)
    stage = -(-max(sizes) // 16) * 16
    if row and (k // 32 % 2 or row % 16):
        return None
    for threads, stages in choices:
        room = (
            max(table_bytes(f) for f in coded) + staged_bytes(k, rows) + (4 * k if row and rows == 1 else 0)
        )
        room = -(-room // 16) * 16 + threads // 32 * stages * stage
        blocks = min((at.properties.shared + 1024) // (room + 1024), _RESIDENT // threads)
        if room <= at.properties.shared and blocks * threads >= _ENOUGH and row <= stages * stage:
            return threads, stages, stage, room, blocks
    return None


def stream(
    at: Context,
    live: Arg,
    q8: Sequence[Arg],
    x: Sequence[Arg],
    rows: int,
    matrices: Sequence[Product],
    choices: Sequence[tuple[int, int]] | None = None,
    each: int = 1,
) -> Launch | None:
    """The launch of products of `rows` rows, int8 blocks `q8` and floats `x`, by thread blocks that stay; None where a
    format does not come through shared memory or there is no room. `choices`: threads and stages in
    place of STREAM's; `each`: of the rows, how many each live one stands for."""
    k = matrices[0].weight.shape[1]
    if choices is None:
        choices = next((found for most, found in sorted(STREAM.items()) if most >= rows), ())
    ring = _ring(at, k, rows, matrices, choices)
    if ring is None:
        return None
    threads, stages, stage, shared, blocks = ring
    formats = list(dict.fromkeys(m.weight.format for m in matrices))
    args: list[Arg] = [live, *q8, *x]
    end, floats, reads, per_warp = 0, 0, list[tuple[np.uint64, Weight]](), 32 // segment_count(k)
    for m in matrices:
        n, coded = m.weight.shape[0], m.weight.format.quantised
        end += n // per_warp if coded else n
        floats += 0 if coded else n
        reads.append((pointer(at.weight(m.weight, PACKED if coded else FILE)), m.weight))
        args += [reads[-1][0], *at.at(m.out), *ints(n, end)]
    args += [pointer(0), pointer(0), *ints(0, end)] * (MOST - len(matrices))
    grid = at.staying(blocks)
    if floats > grid * threads // 32:
        return None
    kinds = [formats.index(m.weight.format) for m in matrices] + [0] * (MOST - len(matrices))
    row = max((k * f.block_bytes // f.block_values for f in formats if not f.quantised), default=0)
    macros = [
        ("STRATA_ROWS", rows),
        *(type_macro(f, f"STRATA_TYPE{i}") for i, f in enumerate(formats)),
        *((f"STRATA_KIND{i}", str(kind)) for i, kind in enumerate(kinds)),
        ("STRATA_SEGMENTS", segment_count(k)), ("STRATA_LENGTH", segment_length(k)), ("STRATA_THREADS", threads),
        ("STRATA_STAGES", stages), ("STRATA_STAGE_BYTES", stage), ("STRATA_BLOCKS", blocks), ("STRATA_FLOAT_ROOM", row),
        ("STRATA_CHAIN_UNROLL", geometry.CHAIN_UNROLL),
        ("STRATA_TABLE_WORDS", max(table_bytes(f) for f in formats) // 4),
        *([] if each == 1 else [("STRATA_EACH", each)]),
    ]  # fmt: skip
    return launch(
        "products_stream.cu", "products_stream", grid, threads, [*args, *ints(floats)], macros=macros,
        shared=shared, reads=reads,
    )  # fmt: skip
