"""Launches of several products of the same rows, and of a product that ends in the residual streams."""

from collections.abc import Sequence

from strata.backends.cuda import segments as shapes
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import FILE, PACKED, Context, ints, launch, pointer, type_macro
from strata.backends.cuda.lower_dense import rows_of
from strata.backends.cuda.lower_stream import stream
from strata.backends.cuda.pattern import Product, require
from strata.backends.cuda.segments import (
    blocks_ahead,
    segment_count,
    segment_length,
    staged_bytes,
    staged_weight_bytes,
    table_bytes,
)
from strata.ops.buffers import Buffer

_MOST, _TYPES = 6, 3  # matrices, and types of matrices, of a launch
_THREADS = 256
_ROWS = (1, 2, 4, 8)
FLOAT_AHEAD = 20  # values of a float row that a lane has on their way
FLOAT_STAGED = True  # whether launches of few thread blocks take whole float rows through shared memory
_FLOAT_AHEAD_OF_MORE = 8
# Rows from which product_write has one thread block a multiprocessor where that brings all weights at once; two rows
# leave room for two, and for the next node's weights. Not measured.
ONE_WAVE_FROM = 4
_MOST_WARPS = 16  # of product_write
_NO_BLOCKS = "ROWS", "SEGMENTS", "AHEAD", "LENGTH"  # macros of launches without a quantised matrix


def rows_at_once(bucket: int) -> int:
    """Rows that share a decoded block."""
    return next((m for m in _ROWS if m >= bucket), _ROWS[-1])


def geometry(k: int, rows: int) -> list[tuple[str, str | int]]:
    """Macros of product.cuh for rows of k values."""
    return [("STRATA_ROWS", rows), *segments(k)]


def segments(k: int, prefix: str = "STRATA_") -> list[tuple[str, str | int]]:
    """Macros of a row's segments."""
    return [
        (f"{prefix}SEGMENTS", segment_count(k)),
        (f"{prefix}AHEAD", blocks_ahead(k)),
        (f"{prefix}LENGTH", segment_length(k)),
    ]


def _staged(at: Context, matrices: Sequence[Product], k: int, shared: int, threads: int = _THREADS) -> int:
    """Shared memory with the weights' part where all quantised matrices can use it; else `shared`."""
    formats = {m.weight.format for m in matrices if m.weight.format.quantised}
    sizes = {staged_weight_bytes(f, k) for f in formats}
    per_warp = 32 // segment_count(k)
    if 0 in sizes or not sizes or any(m.weight.shape[0] % per_warp for m in matrices):
        return shared
    total = -(-shared // 16) * 16 + threads // 32 * max(sizes)
    return total if total <= at.properties.shared else shared


def products(at: Context, x: Buffer, q8: list[Arg], matrices: Sequence[Product]) -> list[Launch]:
    """Launches of all products of x, whose quantised planes are `q8`, as few as types and number allow. Float matrices
    go first: their rows take longest."""
    launches, group = [], list[Product]()
    for matrix in sorted(matrices, key=lambda m: m.weight.format.quantised):
        types = {m.weight.format.name for m in (*group, matrix)}
        if len(types) > _TYPES or len(group) == _MOST:
            launches.append(_products(at, x, q8, group))
            group = []
        group.append(matrix)
    return [*launches, _products(at, x, q8, group)]


def _products(at: Context, x: Buffer, q8: list[Arg], matrices: Sequence[Product]) -> Launch:
    if streamed := stream(at, at.live(x), q8, at.at(x), rows_of(x, at), matrices):
        return streamed
    k, most = x.shape[-1], rows_of(x, at)
    rows = rows_at_once(most)
    formats = list(dict.fromkeys(m.weight.format for m in matrices))
    macros = [type_macro(f, f"STRATA_TYPE{i}") for i, f in enumerate(formats)]
    quantised = any(f.quantised for f in formats)
    count = segment_count(k) if quantised else 1
    args, end = [at.live(x), *q8, *at.at(x)], 0
    reads = []
    for i in range(_MOST):
        m = matrices[i] if i < len(matrices) else None
        kind = 0
        if m is None:
            args += [pointer(0), pointer(0), *ints(0, end)]
        else:
            kind, n = formats.index(m.weight.format), m.weight.shape[0]
            each = _THREADS // 32 * (32 // count if m.weight.format.quantised else 1)
            end += -(-n // each)
            weight = pointer(at.weight(m.weight, PACKED if m.weight.format.quantised else FILE))
            reads.append((weight, m.weight))
            args += [weight, *at.at(m.out), *ints(n, end)]
        macros.append((f"STRATA_KIND{i}", str(kind)))
    room = staged = 0
    if quantised:
        room = max(table_bytes(f) for f in formats) + 4 * _THREADS * rows + staged_bytes(k, rows)
        staged = _staged(at, matrices, k, room)
        require(k % 32 == 0 and room <= at.properties.shared)
        macros += [(name, str(value)) for name, value in geometry(k, rows)]
    else:
        macros += [(f"STRATA_{n}", str(v)) for n, v in zip(_NO_BLOCKS, (rows, 1, 1, 0), strict=True)]
    use_staged, ahead = staged > room, FLOAT_AHEAD if rows == 1 else _FLOAT_AHEAD_OF_MORE
    shared = max(room, staged)
    if exact := [f for f in formats if not f.quantised]:
        row = k * max(f.block_bytes // f.block_values for f in exact)
        whole = _THREADS // 32 * row + (4 * k if rows == 1 else 0)
        few = FLOAT_STAGED and end <= 2 * at.properties.multiprocessors and 2 * whole <= at.properties.shared
        if few and k % 8 == 0:
            shared, ahead = max(shared, whole), 0
        elif rows == 1:
            shared = max(shared, 4 * k)
    macros += [("STRATA_FLOAT_AHEAD", ahead), ("STRATA_STAGED", int(use_staged))]
    grid = end, -(-most // rows)
    args += ints(k)
    return launch("products.cu", "products", grid, _THREADS, args, macros=macros, shared=shared, reads=reads)


def _write_room(product: Product, rows: int, threads: int) -> int:
    """Shared memory of product_write without weights."""
    fmt, k = product.weight.format, product.weight.shape[1]
    return table_bytes(fmt) + 8 * threads * rows + staged_bytes(k, rows)


def _one_wave(at: Context, product: Product, most: int, rows: int) -> int:
    """Threads of product_write with a thread block a multiprocessor, weights in shared memory; else _THREADS."""
    n, k = product.weight.shape
    warps = -(-n // (32 // segment_count(k)) // at.properties.multiprocessors)
    room = _write_room(product, rows, 32 * warps)
    one = ONE_WAVE_FROM <= rows >= most and _THREADS // 64 <= warps <= _MOST_WARPS
    if not one or _staged(at, [product], k, room, 32 * warps) <= room:
        return _THREADS
    return 32 * warps


def product_write(
    at: Context, x: list[Arg], product: Product, residual: Buffer, inject: Buffer | None, out: Buffer
) -> Launch:
    """A quantised product of q8 planes `x` and what it writes: streams where `inject` is given, else a sum."""
    n, k = product.weight.shape
    require(product.weight.format.quantised)
    streams = 0 if inject is None else inject.shape[-1]
    most, fmt = rows_of(out, at), product.weight.format
    rows = rows_at_once(most)
    while rows > 1 and _write_room(product, rows, _THREADS) > at.properties.shared:
        rows //= 2
    threads = _one_wave(at, product, most, rows)
    room = _write_room(product, rows, threads)
    shared = _staged(at, [product], k, room, threads)
    weight = at.packed(product.weight)
    args = [at.live(out), *x, weight, *at.at(residual, inject, out), *ints(k, n)]
    macros = [
        type_macro(fmt),
        *geometry(k, rows),
        ("STRATA_STREAMS", streams),
        ("STRATA_STAGED", int(shared > room)),
        ("STRATA_THREADS", threads),
        ("STRATA_CHAIN_UNROLL", shapes.CHAIN_UNROLL),
    ]
    grid = -(-n // (threads // 32 * (32 // segment_count(k)))), -(-most // rows)
    reads = [(weight, product.weight)]
    return launch(
        "product_write.cu", "product_write", grid, threads, args, macros=macros, shared=shared, reads=reads
    )
