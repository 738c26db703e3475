"""Launches of a prompt chunk's products with float weights on tensor cores (kernels/wide_float.cu)."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import FILE, Context, ints, launch, pointer, tensor_cores, type_macro
from strata.backends.cuda.lower_wide import WIDE_ROWS
from strata.ops.buffers import Weight
from strata.ops.linear import LinearF
from strata.quants import FORMATS, Format

_TOKENS = 128  # that planes are padded to
_THREADS = 256
_LINE_BYTES = 128  # of 64 values
_SPLIT_BYTES = 96 << 20  # of split rows at a time
_FEW = 8  # weight rows that linear_few.cu takes
_MANY_ROWS = 2048  # from which a warp of it takes four


@dataclass(frozen=True)
class FloatTile:
    """Geometry of wide_float.cu: warpgroups of 64 rows, 64 tokens a part, stages of 64 values."""

    row_groups: int
    parts: int
    stages: int

    def shared(self, terms: int) -> int:
        """Dynamic shared memory."""
        return 1024 + self.stages * (terms * 64 * self.row_groups + 2 * 64 * self.parts) * _LINE_BYTES


_WIDE = (FloatTile(2, 2, 4), FloatTile(2, 2, 3), FloatTile(2, 1, 3), FloatTile(1, 1, 2))
_NARROW = (
    FloatTile(1, 2, 2),
    FloatTile(1, 1, 2),
)  # where rows of thread blocks are few: two a multiprocessor


@dataclass(frozen=True)
class SplitRows:
    """Rows as f16, or sums of two: addresses of high, low (0: none) and scales, and their padded number."""

    high: int
    low: int
    scales: int
    rows: int


def padded(k: int) -> int:
    """Values of a line of the planes."""
    return -(-k // 64) * 64


def applies(op: LinearF, at: Context) -> bool:
    """Products of a chunk's rows, where lines of weights are whole parts of 16 bytes."""
    return op.chunk and at.bucket >= WIDE_ROWS and tensor_cores(at) and op.x.shape[-1] % 8 == 0


def room(at: Context, rows: int, k: int, terms: int = 2) -> SplitRows:
    """Scratch for rows of k values."""
    count = -(-rows // _TOKENS) * _TOKENS
    planes = [at.scratch(2 * count * padded(k)) for _ in range(terms)]
    return SplitRows(planes[0], planes[1] if terms == 2 else 0, at.scratch(4 * count), count)


def split(at: Context, live: Arg, first: int, x: int, k: int, fmt: Format, to: SplitRows) -> Launch:
    """Rows at x as f16 parts; `first`: rows of the step before them, or all there are where `live` is null."""
    args = [live, *ints(first), *(pointer(p) for p in (x, to.high, to.low, to.scales)), *ints(k)]
    macros = [type_macro(fmt)]
    return launch(
        "split_rows.cu", "split_rows", to.rows, _THREADS, [*args, pointer(at.faults)], macros=macros
    )


@dataclass(frozen=True)
class _Matrix:
    """A weight as the kernel reads it: planes of `terms` f16, lines `pitch` values apart, scales of rows (0: none)."""

    high: int
    low: int
    scales: int
    pitch: int
    terms: int


def products(ops: Sequence[LinearF], at: Context) -> list[Launch]:
    """Products of the same float rows, some rows at a time; weights that are no f16 are made so first."""
    x, live = ops[0].x, at.live(ops[0].out)
    rows, k = min(x.shape[0], at.bucket), x.shape[-1]
    found, matrices = [_few(op, at, rows) for op in ops if op.weight.shape[0] <= _FEW], list[_Matrix]()
    ops = [op for op in ops if op.weight.shape[0] > _FEW]
    if not ops:
        return found
    for op in ops:
        matrix, nodes = _matrix(at, op.weight)
        matrices.append(matrix)
        found += nodes
    each = min(rows, max(_TOKENS, _SPLIT_BYTES // (4 * padded(k)) // _TOKENS * _TOKENS))
    planes = room(at, each, k)
    for first in range(0, rows, each):
        found.append(split(at, live, first, at.buffer(x) + 4 * k * first, k, FORMATS["F32"], planes))
        found += [_product(at, m, op, planes, live, first) for m, op in zip(matrices, ops, strict=True)]
    return found


def _few(op: LinearF, at: Context, rows: int) -> Launch:
    """A product with so few weight rows that a tile would be nearly empty: what counts is to read x once."""
    n, k = op.weight.shape
    each = 4 if rows >= _MANY_ROWS else 1
    args = [at.live(op.out), *at.at(op.x), pointer(at.weight(op.weight, FILE)), *at.at(op.out), *ints(k)]
    macros = [type_macro(op.weight.format), ("STRATA_OUTPUTS", n), ("STRATA_ROWS", each)]
    grid = -(-rows // (_THREADS // 32 * each))
    return launch("linear_few.cu", "linear_few", grid, _THREADS, args, macros=macros)


def _matrix(at: Context, weight: Weight) -> tuple[_Matrix, list[Launch]]:
    (n, k), file = weight.shape, at.weight(weight, FILE)
    if weight.format.name == "F16":
        return _Matrix(file, 0, 0, k, 1), []
    terms = 2 if weight.format.name == "F32" else 1
    to = room(at, n, k, terms)
    node = split(at, pointer(0), n, file, k, weight.format, to)
    return _Matrix(to.high, to.low, to.scales, padded(k), terms), [node]


def _product(at: Context, m: _Matrix, op: LinearF, x: SplitRows, live: Arg, first: int) -> Launch:
    n, k = op.weight.shape
    tile = _tile(at, n, x.rows, m.terms)
    out = at.buffer(op.out) + 4 * n * first
    args = [live, *(pointer(p) for p in (m.high, m.low, x.high, x.low, x.scales, m.scales, out))]
    args += ints(n, x.rows, first, k, m.pitch)
    macros = [
        ("STRATA_WEIGHT_TERMS", m.terms),
        ("STRATA_ROW_GROUPS", tile.row_groups),
        ("STRATA_PARTS", tile.parts),
        ("STRATA_STAGES", tile.stages),
    ]
    grid = -(-n // (64 * tile.row_groups)) * (x.rows // (64 * tile.parts))
    shared, threads = tile.shared(m.terms), 128 * tile.row_groups
    return launch("wide_float.cu", "wide_float", grid, threads, args, macros=macros, shared=shared)


def _tile(at: Context, n: int, tokens: int, terms: int) -> FloatTile:
    """Wide tiles where they fill the device and waste few rows."""
    room = at.properties.shared
    wide = next((t for t in _WIDE if t.shared(terms) <= room), _WIDE[-1])
    blocks = -(-n // (64 * wide.row_groups)) * (tokens // (64 * wide.parts))
    filled = n % 128 == 0 and blocks >= 2 * at.properties.multiprocessors
    return wide if filled else next((t for t in _NARROW if 2 * t.shared(terms) <= room), wide)
