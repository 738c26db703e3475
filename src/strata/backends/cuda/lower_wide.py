"""Launches of a prompt chunk's quantised products on tensor cores (kernels/wide.cuh, docs/cuda-prompts.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import Context, ints, launch, pointer, type_macro
from strata.ops.buffers import Buffer, Weight
from strata.ops.linear import LinearQ
from strata.quants import Format

WIDE_ROWS = 64  # rows of a program from which on its products go through here
THREADS = 256
_ROWS = _TOKENS = 128  # that planes are padded to
_MOST_ROWS = 16384  # weight rows that are expanded at a time
_TWO_TERMS = ("Q6_K",)


@dataclass(frozen=True)
class Tile:
    """Geometry of kernels/wide.cuh `Wide`: warpgroups by rows and by tokens, 64 tokens a part, stages of two blocks."""

    row_groups: int
    token_groups: int
    parts: int
    stages: int

    @property
    def rows(self) -> int:
        """Weight rows of a tile."""
        return 64 * self.row_groups

    @property
    def tokens(self) -> int:
        """Tokens of a tile."""
        return 64 * self.parts * self.token_groups

    @property
    def threads(self) -> int:
        """Of a thread block."""
        return 128 * self.row_groups * self.token_groups

    def shared(self, fmt: Format) -> int:
        """Dynamic shared memory, `Wide::kSharedBytes`."""
        traits = WideTraits.of(fmt)
        words = 2 * traits.sub * self.rows + 2 * self.tokens
        words += 2 * self.rows if traits.halves else 4
        words += 2 * (self.rows + self.tokens) if traits.minimums else 8
        words += 2 * self.rows if traits.minimums == 2 else 4
        stage = self.tokens * 128 + self.rows * 96 + 4 * words
        return 1024 + self.stages * (-(-stage // 1024) * 1024) + self.parts * 128 * self.threads

    def macros(self) -> list[tuple[str, str | int]]:
        """Of wide_experts.cu; wide_linear.cu takes the row groups too."""
        return [
            ("STRATA_TOKEN_GROUPS", self.token_groups),
            ("STRATA_PARTS", self.parts),
            ("STRATA_STAGES", self.stages),
        ]


_DENSE = (Tile(2, 1, 2, 4), Tile(2, 1, 2, 3), Tile(2, 1, 1, 3), Tile(2, 1, 1, 2), Tile(1, 1, 1, 2))


@dataclass(frozen=True)
class WideTraits:
    """What the kernels ask of a format: kernels/wide_steps.cuh `WideFormatOf`."""

    sub: int
    halves: bool
    terms: int
    minimums: int

    @classmethod
    def of(cls, fmt: Format) -> "WideTraits":
        """Of a quantised format."""
        halves = fmt.halves and not fmt.scale16
        minimums = 0 if not fmt.has_min else 2 if halves else 1
        return cls(2 if fmt.scale16 else 1, halves, 2 if fmt.name in _TWO_TERMS else 1, minimums)

    def macros(self) -> list[tuple[str, str | int]]:
        """Of wide_linear.cu."""
        names = "SUB", "HALVES", "TERMS", "MIN"
        values = self.sub, int(self.halves), self.terms, self.minimums
        return [(f"STRATA_{n}", v) for n, v in zip(names, values, strict=True)]


def applies(at: Context) -> bool:
    """Whether a program's products go through here."""
    return at.bucket >= WIDE_ROWS


def padded(k: int) -> int:
    """k of the planes."""
    return -(-k // 64) * 64


@dataclass(frozen=True)
class WideRows:
    """Widened q8 rows: addresses of x, d and sum, and their padded number."""

    x: int
    d: int
    sum: int
    tokens: int

    def args(self) -> list[Arg]:
        """Of the kernels."""
        return [pointer(self.x), pointer(self.d), pointer(self.sum)]


def widen(
    at: Context, live: Arg, planes: list[Arg], rows: int, k: int, pairs: bool
) -> tuple[WideRows, Launch]:
    """q8 rows of k values as f16 planes in scratch; `pairs`: with sums of both halves (Q2_K)."""
    tokens, cells = -(-rows // _TOKENS) * _TOKENS, padded(k) // 32
    wide = WideRows(
        at.scratch(tokens * cells * 64),
        at.scratch(tokens * cells * 4),
        at.scratch(tokens * cells * 4),
        tokens,
    )
    grid = -(-tokens * cells * 2 // THREADS)
    args = [live, *planes, *wide.args(), *ints(tokens, k)]
    macros = [("STRATA_PAIRS", 1)] if pairs else []
    return wide, launch("widen.cu", "widen_rows", grid, THREADS, args, macros=macros)


def needs_pairs(fmt: Format) -> bool:
    """Whether a format's products take sums of both halves."""
    return WideTraits.of(fmt).minimums == 2


def products(ops: Sequence[LinearQ], at: Context) -> list[Launch]:
    """Products of the same q8 rows with any number of matrices: rows widened once, each matrix expanded."""
    x = ops[0].x
    rows, k = min(x.shape[0], at.bucket), x.shape[-1]
    live, found = at.live(ops[0].out), list[Launch]()
    wide = dict[bool, WideRows]()
    for op in ops:
        pairs = needs_pairs(op.weight.format)
        if pairs not in wide:
            wide[pairs], node = widen(at, live, at.q8(x), rows, k, pairs)
            found.append(node)
    n = max(min(op.weight.shape[0], _MOST_ROWS) for op in ops)
    planes = _ExpandedPlanes.take(at, n, k, [op.weight.format for op in ops])
    for op in ops:
        found += _product(at, op.weight, op.out, wide[needs_pairs(op.weight.format)], planes, live)
    return found


@dataclass(frozen=True)
class _ExpandedPlanes:
    """Scratch of an expanded matrix."""

    codes: int
    w: int
    s: int
    m: int
    mins: int

    @classmethod
    def take(cls, at: Context, n: int, k: int, formats: Sequence[Format]) -> "_ExpandedPlanes":
        """For matrices of up to n rows, of these formats."""
        cells = -(-n // _ROWS) * _ROWS * padded(k) // 32
        traits = [WideTraits.of(f) for f in formats]
        sub = max(t.sub for t in traits)
        some = (
            any(t.halves for t in traits),
            any(t.minimums for t in traits),
            any(t.minimums == 2 for t in traits),
        )
        rest = [at.scratch(4 * cells) if s else 0 for s in some]
        return cls(at.scratch(32 * cells), at.scratch(4 * sub * cells), *rest)

    def args(self) -> list[Arg]:
        """Of the kernels."""
        return [pointer(a) for a in (self.codes, self.w, self.s, self.m, self.mins)]


def _product(
    at: Context, weight: Weight, out: Buffer, x: WideRows, planes: _ExpandedPlanes, live: Arg
) -> list[Launch]:
    """One matrix, some rows at a time."""
    (n, k), fmt = weight.shape, weight.format
    tile = next(t for t in _DENSE if t.shared(fmt) <= at.properties.shared)
    source = at.packed(weight)
    found = []
    for first in range(0, n, _MOST_ROWS):
        part = min(n - first, _MOST_ROWS)
        rows = -(-part // _ROWS) * _ROWS
        args = [source, *planes.args(), *ints(n, first, rows, k)]
        grid = -(-rows * padded(k) // 32 // THREADS)
        shared = 4 * TABLE_WORDS.get(fmt.name, 0)
        macros = [type_macro(fmt)]
        found.append(launch("widen.cu", "expand_weights", grid, THREADS, args, macros=macros, shared=shared))
        args = [live, *planes.args(), *x.args(), *at.at(out), *ints(n, first, rows, x.tokens, k)]
        size = rows // tile.rows * -(-x.tokens // tile.tokens)
        macros = [*WideTraits.of(fmt).macros(), ("STRATA_ROW_GROUPS", tile.row_groups), *tile.macros()]
        found.append(
            launch(
                "wide_linear.cu",
                "wide_linear",
                size,
                tile.threads,
                args,
                macros=macros,
                shared=tile.shared(fmt),
            )
        )
    return found
