"""Segments of rows, and the shared memory that rows and weights take: geometry of all products (product.cuh)."""

from strata.backends.cuda.grids import TABLE_WORDS
from strata.ops.arithmetic import segment_bounds
from strata.quants import Format

PAD_BYTES = 16  # kSegmentPad of product.cuh, a segment
CHAIN_UNROLL = 5  # blocks of a segment in shared memory that a turn of the loop takes
SHORT = 6  # blocks of a segment that a lane holds
STAGED = True  # whether weights of products come through shared memory where their format knows how
# Formats that can (staged_weights.cuh): bytes a block of 32; planes with padding where segments are even, and always.
_STAGED_PLANES = {"Q6_K": (26.25, 2, 0), "IQ3_XXS": (12.25, 1, 0), "Q2_0": (9.0, 1, 0), "Q8_0": (34.0, 0, 1)}


def segment_count(k: int) -> int:
    """Segments of a row of k values (docs/contract.md)."""
    return len(segment_bounds(k // 32)) - 1


def longest_segment(k: int) -> int:
    """Blocks of the longest segment."""
    return -(-(k // 32) // segment_count(k))


def segment_length(k: int) -> int:
    """product.cuh `Length`: blocks of even segments, -1 where none is longer than is loaded ahead, else 0."""
    if k // 32 % segment_count(k) == 0:
        return longest_segment(k)
    return -1 if longest_segment(k) <= blocks_ahead(k) else 0


def blocks_ahead(k: int) -> int:
    """Blocks a lane loads before it uses the first: its whole segment where that is short."""
    longest = longest_segment(k)
    return longest if longest <= SHORT else min((4, 5), key=lambda a: (-(-longest // a) * a, -a))


def staged_bytes(k: int, rows: int) -> int:
    """Shared memory of rows of k activations (product.cuh `staged_rows`)."""
    return rows * (k + PAD_BYTES * segment_count(k) + k // 32 * 8)


def table_bytes(fmt: Format) -> int:
    """Shared memory of a format's grid."""
    return 4 * TABLE_WORDS.get(fmt.name, 0)


def staged_weight_bytes(fmt: Format, k: int) -> int:
    """Shared memory of one warp's weights (staged_weights.cuh `kBytes`); 0: none is used."""
    segments, length = segment_count(k), segment_length(k)
    cells = k // 32 * (32 // segments)
    if not STAGED or length <= 0 or cells % 16 or k % fmt.block_values:
        return 0
    if fmt.name not in _STAGED_PLANES:
        return 0
    nbytes, even, always = _STAGED_PLANES[fmt.name]
    padding = 32 * PAD_BYTES * (always + (even if length % 2 == 0 else 0))
    return -(-int(cells * nbytes + padding) // 16) * 16
