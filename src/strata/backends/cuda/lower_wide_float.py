"""Launches of a prompt chunk's products with float weights on tensor cores (kernels/wide_float.cu, docs/cuda-prompts.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import FILE, Context, ints, launch, pointer, tensor_cores
from strata.backends.cuda.lower_wide import WIDE_ROWS, padded
from strata.ops.buffers import Buffer, Weight
from strata.ops.linear import LinearF

_TOKENS = 128  # that planes are padded to
_THREADS = 256
_LINE_BYTES = 128  # of 64 values


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
    """Rows as sums of two 16-bit floats: addresses of high, low and scales, and their padded number."""

    high: int
    low: int
    scales: int
    rows: int


def applies(op: LinearF, at: Context) -> bool:
    """Products of a chunk's rows, where lines of weights are whole parts of 16 bytes."""
    return op.chunk and at.bucket >= WIDE_ROWS and tensor_cores(at) and op.x.shape[-1] % 8 == 0


def split(at: Context, live: Arg, x: int, rows: int, k: int, bf16: bool) -> tuple[SplitRows, Launch]:
    """Float rows in scratch as sums of two; `live` null: all of them."""
    padded_rows = -(-rows // _TOKENS) * _TOKENS
    planes = [at.scratch(2 * padded_rows * padded(k)) for _ in range(2)]
    split_rows = SplitRows(planes[0], planes[1], 0 if bf16 else at.scratch(4 * padded_rows), padded_rows)
    args = [live, *ints(rows), pointer(x), *(pointer(p) for p in planes), pointer(split_rows.scales)]
    args += [*ints(k), pointer(at.faults)]
    macros = [("STRATA_BF16", int(bf16))]
    return split_rows, launch("split_rows.cu", "split_rows", padded_rows, _THREADS, args, macros=macros)


def products(ops: Sequence[LinearF], at: Context) -> list[Launch]:
    """Products of the same float rows: rows split once a kind, F32 weights each time."""
    x, live = ops[0].x, at.live(ops[0].out)
    rows, k = min(x.shape[0], at.bucket), x.shape[-1]
    found, by_kind = list[Launch](), dict[bool, SplitRows]()
    for op in ops:
        bf16 = op.weight.format.name != "F16"
        if bf16 not in by_kind:
            by_kind[bf16], node = split(at, live, at.buffer(x), rows, k, bf16)
            found.append(node)
        found += _product(at, op.weight, op.out, by_kind[bf16], live)
    return found


def _product(at: Context, weight: Weight, out: Buffer, x: SplitRows, live: Arg) -> list[Launch]:
    (n, k), found = weight.shape, list[Launch]()
    high, low, pitch, terms = at.weight(weight, FILE), 0, k, 1
    if weight.format.name == "F32":
        planes, node = split(at, pointer(0), high, n, k, bf16=True)
        found.append(node)
        high, low, pitch, terms = planes.high, planes.low, padded(k), 2
    tile = _tile(at, n, x.rows, terms)
    rows, tokens = 64 * tile.row_groups, 64 * tile.parts
    args = [
        live,
        pointer(high),
        pointer(low),
        pointer(x.high),
        pointer(x.low),
        pointer(x.scales),
        *at.at(out),
    ]
    args += ints(n, x.rows, k, pitch)
    macros = [
        ("STRATA_BF16", int(weight.format.name != "F16")),
        ("STRATA_WEIGHT_TERMS", terms),
        ("STRATA_ROW_GROUPS", tile.row_groups),
        ("STRATA_PARTS", tile.parts),
        ("STRATA_STAGES", tile.stages),
    ]
    grid = -(-n // rows) * (x.rows // tokens)
    node = launch(
        "wide_float.cu",
        "wide_float",
        grid,
        128 * tile.row_groups,
        args,
        macros=macros,
        shared=tile.shared(terms),
    )
    return [*found, node]


def _tile(at: Context, n: int, tokens: int, terms: int) -> FloatTile:
    """Wide tiles where they fill the device and waste few rows."""
    room = at.properties.shared
    wide = next((t for t in _WIDE if t.shared(terms) <= room), _WIDE[-1])
    blocks = -(-n // (64 * wide.row_groups)) * (tokens // (64 * wide.parts))
    filled = n % 128 == 0 and blocks >= 2 * at.properties.multiprocessors
    return wide if filled else next((t for t in _NARROW if 2 * t.shared(terms) <= room), wide)
