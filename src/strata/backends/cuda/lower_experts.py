"""Kernels, grids and shared memory of a step's experts: rows one by one (kernels/experts_step.cu) or together
(kernels/experts_rows.cu)."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda.lower import Context
from strata.backends.cuda.segments import segment_count, staged_bytes, staged_weight_bytes, table_bytes
from strata.ops.buffers import Weight

# Rows of a step whose experts are read together: 0, 4 and 8 % faster with two, four and eight.
TOGETHER = range(2, 9)
_RESIDENT = 1024  # threads a multiprocessor that gate's and up's thread blocks may have
_OF_BLOCK = 1024  # bytes that a thread block takes besides
_CHOICE = 768  # and experts_step.cu's gate and up besides 4 a thread, at most
_MOST_STATIC = 48 << 10
# Of the grid of IQ3_XXS in shared memory (docs/cuda-rows.md); the first that cost no thread block of a multiprocessor.
COPIES: Sequence[int] = (32, 16)


@dataclass(frozen=True)
class Experts:
    """Geometry of routed experts: stacks, experts of a row, and whether there is a shared one."""

    gate: Weight
    up: Weight
    down: Weight
    top: int
    shared: bool

    @property
    def features(self) -> int:
        """Of a thread block of down."""
        return max(16, 32 // segment_count(self.gate.shape[1]))

    @property
    def planes(self) -> int:
        """Warps of a thread block of down."""
        return self.top + self.shared


@dataclass(frozen=True)
class Form:
    """Two launches: file, what their entries end in, grids, dynamic shared memory, whether weights go through it, and
    copies of gate's and up's grid."""

    file: str
    ending: str
    grids: tuple[tuple[int, ...], tuple[int, ...]]
    shared: tuple[int, int]
    staged: tuple[bool, bool]
    copies: int


def form(at: Context, experts: Experts) -> Form:
    """How the device computes them in a step of `at.bucket` rows."""
    return (_together(at, experts) if at.bucket in TOGETHER else None) or _alone(at, experts)


def _tables(e: Experts, copies: int) -> int:
    """Shared memory of both grids of gate and up (packed_copies.cuh)."""
    formats = {w.format.name: w.format for w in (e.gate, e.up)}
    return sum(table_bytes(f) * (copies if name == "IQ3_XXS" else 1) for name, f in formats.items())


def _copies(at: Context, e: Experts, besides: int) -> tuple[int, int]:
    """Copies of the grid of gate's and up's kernel, and thread blocks that stay on a multiprocessor. `besides`: shared
    memory of a thread block but for tables."""

    def resident(copies: int) -> int:
        fit = (at.properties.shared + _OF_BLOCK) // (_tables(e, copies) + besides + _OF_BLOCK)
        return min(fit, _RESIDENT // (32 * segment_count(e.gate.shape[2])))

    copies = next((c for c in COPIES if resident(c) >= max(resident(COPIES[-1]), 1)), COPIES[-1])
    return copies, resident(copies)


def _up_weights(e: Experts) -> int:
    """Bytes of a thread block's weights of gate and up; 0: they do not go through shared memory."""
    hidden = e.gate.shape[2]
    sizes = [staged_weight_bytes(w.format, hidden) for w in (e.gate, e.up)]
    return segment_count(hidden) * sum(sizes) if min(sizes) > 0 else 0


def _down_weights(e: Experts) -> int:
    """Bytes of a warp's weights of down; 0 as above."""
    inner = e.gate.shape[1]
    return e.features // (32 // segment_count(inner)) * staged_weight_bytes(e.down.format, inner)


def _alone(at: Context, e: Experts) -> Form:
    _, inner, hidden = e.gate.shape
    up, up_weights = staged_bytes(hidden, 1), _up_weights(e)
    staged = -(-up // 16) * 16 + up_weights
    up_staged = up_weights > 0 and _tables(e, COPIES[-1]) + staged <= at.properties.shared
    up = staged if up_staged else up
    copies, _ = _copies(at, e, up + 128 * segment_count(hidden) + _CHOICE)
    down = table_bytes(e.down.format) + e.planes * -(-staged_bytes(inner, 1) // 16) * 16
    down_weights = e.planes * _down_weights(e)
    down_staged = down_weights > 0 and down + down_weights <= at.properties.shared
    grids = (-(-inner // 32), e.top, at.bucket), (-(-hidden // e.features), 1, at.bucket)
    shared = _tables(e, copies) + up, down + (down_weights if down_staged else 0)
    return Form("experts_step.cu", "", grids, shared, (up_staged, down_staged), copies)


def _together(at: Context, e: Experts) -> Form | None:
    """None where weights do not go through shared memory, or there is no room."""
    experts, inner, hidden = e.gate.shape
    rows, up_weights, down_weights = at.bucket, _up_weights(e), _down_weights(e)
    if not (up_weights and down_weights):
        return None
    stage = -(-(down_weights + staged_bytes(inner, 2)) // 16) * 16
    down = table_bytes(e.down.format) + 2 * e.top * stage + (staged_bytes(inner, rows) if e.shared else 0)
    listed = 4 * (rows * (2 * e.top + 1) + -(-experts // 4) + 1)
    up_static = listed + 256 * segment_count(hidden) + 256 * rows
    down_static = listed + 256 * e.planes + 4 * rows * (e.planes * e.features + e.top)
    up = -(-staged_bytes(hidden, rows) // 16) * 16 + up_weights
    copies, resident = _copies(at, e, up + up_static)
    up += _tables(e, copies)
    if max(up + up_static, down + down_static) > at.properties.shared:
        return None
    if max(up_static, down_static) > _MOST_STATIC:
        return None
    blocks = min(at.staying(max(resident, 1)), rows * e.top * -(-inner // 32))
    grids = (blocks, 1, 1), (-(-hidden // e.features), 1, 1)
    return Form("experts_rows.cu", "_rows", grids, (up, down), (True, True), copies)
