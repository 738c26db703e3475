"""Launches of a prompt chunk's quantised products on int8 tensor cores (kernels/gemm.cuh).

A GeForce card multiplies f16 with float sums at a quarter of its int8 rate, an A100 at half. On Hopper the f16 tiles
(lower_wide.py) were measured faster, and Blackwell's data-center cards have few int8 units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import Context, capability, ints, launch, type_macro
from strata.ops.linear import LinearQ
from strata.quants import Format

_F16_FASTER = (90, 100, 103)  # sm_
_STAGES = (4, 2)  # blocks of a stage


def applies(at: Context) -> bool:
    """Whether the device's int8 tensor cores are the faster ones."""
    return capability(at) not in _F16_FASTER


@dataclass(frozen=True)
class Int8Tile:
    """Geometry of kernels/gemm.cuh `Gemm`: warps of 32 weight rows x 8 * `tiles` tokens, `stage` blocks at a time."""

    row_warps: int
    token_warps: int
    tiles: int
    stage: int = 4

    @property
    def rows(self) -> int:
        """Weight rows of a tile."""
        return 32 * self.row_warps

    @property
    def tokens(self) -> int:
        """Tokens of a tile."""
        return 8 * self.tiles * self.token_warps

    @property
    def threads(self) -> int:
        """Of a thread block."""
        return 32 * self.row_warps * self.token_warps

    def shared(self, fmt: Format) -> int:
        """Dynamic shared memory, `Gemm::kSharedBytes`."""
        halves = fmt.halves and not fmt.scale16
        lines = [
            (True, self.rows),
            (halves or fmt.scale16, self.rows),
            (halves, self.rows),
            (fmt.has_min, self.rows),
        ]
        lines += [(halves and fmt.has_min, self.rows)] * 2
        nbytes = (self.rows + self.tokens) * (32 * self.stage + 16)
        nbytes += sum(4 * self.stage * n if there else 4 for there, n in lines)
        for there in (True, fmt.has_min, halves and fmt.has_min):
            nbytes = -(-nbytes // 8) * 8 + (4 * self.stage * self.tokens if there else 4)
        return 4 * TABLE_WORDS.get(fmt.name, 0) + 2 * (-(-nbytes // 16) * 16)

    def macros(self, fmt: Format, k: int) -> list[tuple[str, str | int]]:
        """Of int8_linear.cu and int8_experts.cu; the latter's row warps are always two."""
        return [
            type_macro(fmt), ("STRATA_BLOCKS", k // 32), ("STRATA_TOKEN_WARPS", self.token_warps),
            ("STRATA_TILES", self.tiles), ("STRATA_STAGE", self.stage),
        ]  # fmt: skip


_DENSE = (Int8Tile(4, 2, 8), Int8Tile(4, 2, 4), Int8Tile(2, 2, 4))


def fitting(tiles: Sequence[Int8Tile], fmt: Format, room: int) -> Int8Tile | None:
    """The first tile that fits so many bytes of shared memory, with the longest stage that does."""
    sized = (replace(tile, stage=stage) for tile in tiles for stage in _STAGES)
    return next((tile for tile in sized if tile.shared(fmt) <= room), None)


def products(ops: Sequence[LinearQ], at: Context) -> list[Launch]:
    """Products of the same q8 rows with any number of matrices, a launch each."""
    return [_product(op, at) for op in ops]


def _product(op: LinearQ, at: Context) -> Launch:
    (n, k), fmt = op.weight.shape, op.weight.format
    tile = fitting(_DENSE, fmt, at.properties.shared)
    assert tile is not None, f"no tile of {fmt.name} fits {at.properties.shared} bytes of shared memory"
    down = -(-min(op.x.shape[0], at.bucket) // tile.tokens)
    args = [at.live(op.out), at.packed(op.weight), *at.q8(op.x), *at.at(op.out), *ints(n, down)]
    macros = [*tile.macros(fmt, k), ("STRATA_ROW_WARPS", tile.row_warps)]
    grid, shared = -(-n // tile.rows) * down, tile.shared(fmt)
    return launch("int8_linear.cu", "int8_linear", grid, tile.threads, args, macros=macros, shared=shared)
