"""Lowering rules of products with quantised and float matrices, rows 1 to 32."""

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.lower import Context, ints, launch, lower, type_macro
from strata.backends.cuda.lower_dense import THREADS, rows_of
from strata.ops.arithmetic import segment_bounds
from strata.ops.linear import LinearF, LinearQ

_ROWS = (1, 2, 4, 8)  # rows a kernel takes at once
_TABLE_WORDS = {"IQ3_XXS": 256, "IQ2_S": 2048}  # Packed<T>::kTableWords
_PAD_BYTES = 16  # kSegmentPad of product.cuh, a segment
_WARPS = THREADS // 32


def segment_count(k: int) -> int:
    """Segments of a row of k values (docs/contract.md)."""
    return len(segment_bounds(k // 32)) - 1


def blocks_ahead(k: int) -> int:
    """Blocks a lane loads before it uses the first: its whole segment where that is short."""
    longest = -(-(k // 32) // segment_count(k))
    return longest if longest <= 6 else min((4, 5), key=lambda a: (-(-longest // a) * a, -a))


def shared_bytes(name: str, k: int, rows: int) -> int:
    """Dynamic shared memory of linear_q."""
    row = k + _PAD_BYTES * segment_count(k) + k // 32 * 8
    return 4 * _TABLE_WORDS.get(name, 0) + 4 * THREADS * rows + rows * row


@lower.register
def _(op: LinearQ, at: Context) -> list[Launch]:
    n, k = op.weight.shape
    name, rows = op.weight.format.name, rows_of(op.out, at)
    room = [m for m in _ROWS if m == 1 or shared_bytes(name, k, m) <= at.properties.shared]
    m = next((m for m in room if m >= rows), room[-1])
    segments = segment_count(k)
    macros: list[tuple[str, str | int]] = [
        type_macro(op.weight.format),
        ("STRATA_ROWS", m),
        ("STRATA_SEGMENTS", segments),
        ("STRATA_AHEAD", blocks_ahead(k)),
    ]
    args = [at.live(op.out), *at.q8(op.x), at.packed(op.weight), *at.at(op.out), *ints(k, n)]
    grid = -(-n // (_WARPS * (32 // segments))), -(-rows // m)
    shared = shared_bytes(name, k, m)
    return [launch("linear_q.cu", "linear_q", grid, THREADS, args, macros=macros, shared=shared)]


@lower.register
def _(op: LinearF, at: Context) -> list[Launch]:
    n, k = op.weight.shape
    rows = rows_of(op.out, at)
    m = next((m for m in _ROWS if m >= rows), _ROWS[-1])
    macros: list[tuple[str, str | int]] = [type_macro(op.weight.format), ("STRATA_ROWS", m)]
    whole = k // 32 if k % 8 == 0 else 0
    args = [at.live(op.out), *at.at(op.x), *at.raw(op.weight), *at.at(op.out), *ints(k, n, whole)]
    grid = -(-4 * n // THREADS), -(-rows // m)
    return [launch("linear_f.cu", "linear_f", grid, THREADS, args, macros=macros)]
