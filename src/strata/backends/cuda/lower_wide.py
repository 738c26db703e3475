"""Launches of a prompt chunk's quantised products on tensor cores (kernels/wide.cuh, docs/cuda-prompt-products.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import Context, ints, launch, pointer, type_macro
from strata.ops.buffers import Buffer, Weight
from strata.ops.linear import LinearQ
from strata.quants import Format

WIDE_ROWS = 64  # rows of a program from which on its products go through here
THREADS = 256
SLAB = 64  # rows or tokens of an image
TOKEN_IMAGE = SLAB * (128 + 16)  # bytes of two blocks of 64 tokens, `TokenImage`
_MOST_ROWS = 16384  # weight rows that are expanded at a time
_TWO_TERMS = ("Q6_K",)


@dataclass(frozen=True)
class Tile:
    """Of kernels/wide.cuh `Wide`: 128 weight rows x 128 tokens, `images` times two 32-blocks of them a stage."""

    images: int
    stages: int

    rows = 128
    tokens = 128
    threads = 384
    decoding_threads = 512  # where producers decode weights

    def shared(self, fmt: Format) -> int:
        """Dynamic shared memory, `Wide::kSharedBytes`."""
        stage = 2 * self.images * (TOKEN_IMAGE + WideTraits.of(fmt).image)
        return 2048 + self.stages * (-(-stage // 1024) * 1024)

    def macros(self) -> list[tuple[str, str | int]]:
        """Of the kernels."""
        return [("STRATA_STAGES", self.stages), ("STRATA_IMAGES", self.images)]


# The first that fits; where weights are decoded on the way stages are of one image (docs/cuda-prompt-products.md).
TILES = (Tile(2, 3), Tile(1, 4), Tile(1, 3), Tile(1, 2))
DECODING_TILES = TILES[1:]
MOST_IN_TURN = 5


def fitting(tiles: Sequence[Tile], shared: Callable[[Tile], int], at: Context) -> Tile | None:
    """The first tile whose launch, which needs so many bytes of shared memory, the device has room for."""
    return next((tile for tile in tiles if shared(tile) <= at.properties.shared), None)


def in_turn(tiles: int, down: int, at: Context) -> int:
    """How many tiles of rows a thread block takes one after another, each having `down` tiles of tokens: its start and
    end are hidden behind more work, but four thread blocks a multiprocessor stay."""
    return max(1, min(MOST_IN_TURN, tiles * down // (4 * at.properties.multiprocessors)))


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

    @property
    def image(self) -> int:
        """Bytes of two blocks of 64 rows, `RowImage`."""
        lines = 2 * self.sub + 2 * self.halves + 2 * (self.minimums > 0) + 2 * (self.minimums == 2)
        return SLAB * (64 + 4 * lines)

    def macros(self) -> list[tuple[str, str | int]]:
        """Of wide_linear.cu."""
        names = "SUB", "HALVES", "TERMS", "MIN"
        values = self.sub, int(self.halves), self.terms, self.minimums
        return [(f"STRATA_{n}", v) for n, v in zip(names, values, strict=True)]


def applies(at: Context) -> bool:
    """Whether a program's products go through here."""
    return at.bucket >= WIDE_ROWS


def slabs(count: int) -> int:
    """Images of 64 rows or tokens, in tiles of two."""
    return -(-count // (2 * SLAB)) * 2


def images(k: int) -> int:
    """Along K, of two 32-blocks each: `image_count`."""
    return -(-k // 128) * 2


@dataclass(frozen=True)
class WideRows:
    """Widened q8 rows: address of their images, and how many along the rows."""

    images: int
    slabs: int


def widen(
    at: Context, live: Arg, planes: list[Arg], rows: int, k: int, pairs: bool
) -> tuple[WideRows, Launch]:
    """q8 rows of k values as images in scratch; `pairs`: with sums of both halves (Q2_K)."""
    count = slabs(rows)
    wide = WideRows(at.scratch(count * images(k) * TOKEN_IMAGE), count)
    grid = -(-count * images(k) * 4 * SLAB // THREADS)
    args = [live, *planes, pointer(wide.images), *ints(count, k)]
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
    room = max(
        slabs(min(op.weight.shape[0], _MOST_ROWS)) * WideTraits.of(op.weight.format).image for op in ops
    )
    expanded = at.scratch(room * images(k))
    for op in ops:
        found += _product(at, op.weight, op.out, wide[needs_pairs(op.weight.format)], expanded, live)
    return found


def _product(at: Context, weight: Weight, out: Buffer, x: WideRows, expanded: int, live: Arg) -> list[Launch]:
    """One matrix, some rows at a time."""
    (n, k), fmt = weight.shape, weight.format
    tile = fitting(TILES, lambda t: t.shared(fmt), at)
    assert tile is not None, f"no tile of {fmt.name} fits {at.properties.shared} bytes of shared memory"
    source, found = at.packed(weight), list[Launch]()
    expand = [type_macro(fmt)]
    multiply = [*WideTraits.of(fmt).macros(), *tile.macros()]
    for first in range(0, n, _MOST_ROWS):
        count = slabs(min(n - first, _MOST_ROWS))
        args = [source, pointer(expanded), *ints(n, first, count, k)]
        grid, shared = -(-count * SLAB * 2 * images(k) // THREADS), 4 * TABLE_WORDS.get(fmt.name, 0)
        found.append(launch("widen.cu", "expand_weights", grid, THREADS, args, macros=expand, shared=shared))
        tiles, down = count * SLAB // tile.rows, x.slabs * SLAB // tile.tokens
        each = in_turn(tiles, down, at)
        args = [
            live,
            pointer(expanded),
            pointer(x.images),
            *at.at(out),
            *ints(n, first, count, x.slabs, k, each),
        ]
        node = launch(
            "wide_linear.cu",
            "wide_linear",
            -(-tiles // each) * down,
            tile.threads,
            args,
            macros=multiply,
            shared=tile.shared(fmt),
        )
        found.append(node)
    return found
