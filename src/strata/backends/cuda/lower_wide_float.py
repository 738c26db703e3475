"""Launches of a prompt chunk's products with float weights on tensor cores (kernels/wide_float.cu)."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import FILE, Context, ints, launch, pointer, tensor_cores
from strata.backends.cuda.lower_wide import WIDE_ROWS
from strata.ops.buffers import Weight
from strata.ops.linear import LinearF

_TOKENS = 128  # that planes are padded to
_THREADS = 256
_LINE_BYTES = 128  # of 64 values
_SPLIT_BYTES = 96 << 20  # of split rows at a time


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
    """Rows as sums of two 16-bit floats: addresses of high, low and scales, their padded number, their type."""

    high: int
    low: int
    scales: int
    rows: int
    bf16: bool


def padded(k: int) -> int:
    """Values of a line of the planes."""
    return -(-k // 64) * 64


def applies(op: LinearF, at: Context) -> bool:
    """Products of a chunk's rows, where lines of weights are whole parts of 16 bytes."""
    return op.chunk and at.bucket >= WIDE_ROWS and tensor_cores(at) and op.x.shape[-1] % 8 == 0


def room(at: Context, rows: int, k: int, bf16: bool) -> SplitRows:
    """Scratch for rows of k values."""
    count = -(-rows // _TOKENS) * _TOKENS
    high, low = (at.scratch(2 * count * padded(k)) for _ in range(2))
    return SplitRows(high, low, 0 if bf16 else at.scratch(4 * count), count, bf16)


def split(at: Context, live: Arg, first: int, x: int, k: int, to: SplitRows) -> Launch:
    """Float rows at x as sums of two; `first`: rows of the step before them, or all there are where `live` is null."""
    args = [live, *ints(first), *(pointer(p) for p in (x, to.high, to.low, to.scales)), *ints(k)]
    macros = [("STRATA_BF16", int(to.bf16))]
    return launch(
        "split_rows.cu", "split_rows", to.rows, _THREADS, [*args, pointer(at.faults)], macros=macros
    )


@dataclass(frozen=True)
class _Matrix:
    """A weight as the kernel reads it: planes of `terms` 16-bit floats, lines `pitch` values apart."""

    bf16: bool
    high: int
    low: int
    pitch: int
    terms: int


def products(ops: Sequence[LinearF], at: Context) -> list[Launch]:
    """Products of the same float rows, some rows at a time: rows split once a kind, F32 weights once."""
    x, live = ops[0].x, at.live(ops[0].out)
    rows, k = min(x.shape[0], at.bucket), x.shape[-1]
    found, matrices = list[Launch](), list[_Matrix]()
    for op in ops:
        matrix, nodes = _matrix(at, op.weight)
        matrices.append(matrix)
        found += nodes
    each = min(rows, max(_TOKENS, _SPLIT_BYTES // (4 * padded(k)) // _TOKENS * _TOKENS))
    planes = {bf16: room(at, each, k, bf16) for bf16 in dict.fromkeys(m.bf16 for m in matrices)}
    for first in range(0, rows, each):
        found += [split(at, live, first, at.buffer(x) + 4 * k * first, k, to) for to in planes.values()]
        found += [
            _product(at, m, op, planes[m.bf16], live, first) for m, op in zip(matrices, ops, strict=True)
        ]
    return found


def _matrix(at: Context, weight: Weight) -> tuple[_Matrix, list[Launch]]:
    (n, k), file = weight.shape, at.weight(weight, FILE)
    if weight.format.name != "F32":
        return _Matrix(weight.format.name != "F16", file, 0, k, 1), []
    to = room(at, n, k, bf16=True)
    return _Matrix(True, to.high, to.low, padded(k), 2), [split(at, pointer(0), n, file, k, to)]


def _product(at: Context, m: _Matrix, op: LinearF, x: SplitRows, live: Arg, first: int) -> Launch:
    n, k = op.weight.shape
    tile = _tile(at, n, x.rows, m.terms)
    rows, tokens = 64 * tile.row_groups, 64 * tile.parts
    args = [
        live,
        *(pointer(p) for p in (m.high, m.low, x.high, x.low, x.scales, at.buffer(op.out) + 4 * n * first)),
    ]
    args += ints(n, x.rows, first, k, m.pitch)
    macros = [
        ("STRATA_BF16", int(m.bf16)),
        ("STRATA_WEIGHT_TERMS", m.terms),
        ("STRATA_ROW_GROUPS", tile.row_groups),
        ("STRATA_PARTS", tile.parts),
        ("STRATA_STAGES", tile.stages),
    ]
    grid = -(-n // rows) * (x.rows // tokens)
    shared = tile.shared(m.terms)
    return launch(
        "wide_float.cu", "wide_float", grid, 128 * tile.row_groups, args, macros=macros, shared=shared
    )


def _tile(at: Context, n: int, tokens: int, terms: int) -> FloatTile:
    """Wide tiles where they fill the device and waste few rows."""
    room = at.properties.shared
    wide = next((t for t in _WIDE if t.shared(terms) <= room), _WIDE[-1])
    blocks = -(-n // (64 * wide.row_groups)) * (tokens // (64 * wide.parts))
    filled = n % 128 == 0 and blocks >= 2 * at.properties.multiprocessors
    return wide if filled else next((t for t in _NARROW if 2 * t.shared(terms) <= room), wide)
