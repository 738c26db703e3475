"""Launches of a prompt chunk's products with float weights on tensor cores (kernels/wide_float.cu)."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda.compile import FEATURES
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import FILE, Context, ints, launch, pointer, tensor_cores, type_macro
from strata.backends.cuda.lower_wide import WIDE_ROWS, in_turn
from strata.ops.buffers import Weight
from strata.ops.linear import LinearF
from strata.quants import FORMATS

_THREADS = 256
_LINE_BYTES = 128  # of 64 values
_FEW = 8  # weight rows that linear_few.cu takes
_MANY_ROWS = 2048  # from which a warp of it takes four
_OUTPUTS = (160, 128, 64)  # of a warpgroup
_SPLITTING = 64  # outputs that take as long as a stage's rows take to be split
_STAGES = (4, 3, 2)  # the first that fits


@dataclass(frozen=True)
class FloatTile:
    """Geometry of wide_float.cu: outputs of each of two warpgroups, for 64 tokens, and stages of 64 values."""

    outputs: int
    stages: int

    tokens = 64
    threads = 512

    def shared(self, terms: int) -> int:
        """Dynamic shared memory."""
        return 2048 + self.stages * (2 * self.tokens + terms * 2 * self.outputs) * _LINE_BYTES


def padded(k: int) -> int:
    """Values of a line of the planes."""
    return -(-k // 64) * 64


def applies(op: LinearF, at: Context) -> bool:
    """Products of a chunk's rows, where lines of weights are whole parts of 16 bytes and outputs whole pairs."""
    n, k = op.weight.shape
    wide = op.chunk and at.bucket >= WIDE_ROWS and tensor_cores(at)
    return wide and k % 8 == 0 and (n % 2 == 0 or n <= _FEW)


@dataclass(frozen=True)
class _Matrix:
    """A weight as the kernel reads it: planes of `terms` f16, lines `pitch` values apart, scales of rows (0: none)."""

    high: int
    low: int
    scales: int
    pitch: int
    terms: int


def takes_scales(ops: Sequence[LinearF], at: Context) -> bool:
    """Whether these products come here and want scales of their rows."""
    return all(applies(op, at) for op in ops) and any(op.weight.shape[0] > _FEW for op in ops)


def products(ops: Sequence[LinearF], at: Context, scales: Arg | None = None) -> list[Launch]:
    """Products of the same float rows; weights that are no f16 are made so first. `scales`: where what made the rows
    left theirs; else they are found first."""
    x, live = ops[0].x, at.live(ops[0].out)
    rows, k = min(x.shape[0], at.bucket), x.shape[-1]
    found = [_few(op, at, rows) for op in ops if op.weight.shape[0] <= _FEW]
    ops = [op for op in ops if op.weight.shape[0] > _FEW]
    if not ops:
        return found
    if scales is None:
        scales = pointer(at.scratch(4 * rows))
        args = [live, *at.at(x), scales, *ints(k), pointer(at.faults)]
        macros = [type_macro(FORMATS["F32"])]
        found.append(launch("split_rows.cu", "row_scales", rows, _THREADS, args, macros=macros))
    for op in ops:
        matrix, nodes = _matrix(at, op.weight)
        found += [*nodes, _product(at, matrix, op, rows, scales, live)]
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
    planes = [at.scratch(2 * n * padded(k)) for _ in range(terms)]
    m = _Matrix(planes[0], planes[1] if terms == 2 else 0, at.scratch(4 * n), padded(k), terms)
    args = [*(pointer(p) for p in (file, m.high, m.low, m.scales)), *ints(k), pointer(at.faults)]
    macros = [type_macro(weight.format)]
    return m, [launch("split_rows.cu", "split_rows", n, _THREADS, args, macros=macros)]


def _product(at: Context, m: _Matrix, op: LinearF, rows: int, scales: Arg, live: Arg) -> Launch:
    n, k = op.weight.shape
    sized = (FloatTile(_outputs(at, n, rows), stages) for stages in _STAGES)
    tile = next(t for t in sized if t.shared(m.terms) <= at.properties.shared)
    across, down = -(-n // (2 * tile.outputs)), -(-rows // tile.tokens)
    each = in_turn(across, down, at)
    args = [
        live,
        *(pointer(p) for p in (m.high, m.low)),
        *at.at(op.x),
        scales,
        pointer(m.scales),
        *at.at(op.out),
    ]
    args += ints(n, down, k, m.pitch, each)
    macros = [
        ("STRATA_WEIGHT_TERMS", m.terms),
        ("STRATA_OUTPUTS", tile.outputs),
        ("STRATA_STAGES", tile.stages),
    ]
    grid, shared = -(-across // each) * down, tile.shared(m.terms)
    return launch("wide_float.cu", "wide_float", grid, tile.threads, args, macros=macros, shared=shared)


def _outputs(at: Context, n: int, rows: int) -> int:
    """Of a warpgroup: those with which the rounds of thread blocks take least, of these the most."""
    moves = at.properties.arch in FEATURES  # registers; else there are some for the fewest outputs only
    possible = _OUTPUTS if moves else _OUTPUTS[-1:]
    down = -(-rows // FloatTile.tokens)

    def time(outputs: int) -> int:
        rounds = -(-(-(-n // (2 * outputs)) * down) // at.properties.multiprocessors)
        return rounds * (outputs + _SPLITTING)

    return min(possible, key=lambda outputs: (time(outputs), -outputs))
