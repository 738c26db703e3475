"""Lowering rules of ops that work row by row: embedding, norms, rotary positions, elementwise, copies."""

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer, type_macro
from strata.ops.buffers import Buffer
from strata.ops.copy_rows import CopyColumns
from strata.ops.elementwise import Add, AddBias, GeluMul, Scale, SiluMul
from strata.ops.embed import Embed
from strata.ops.gather_rows import GatherRows
from strata.ops.quantize import Quantize
from strata.ops.rms_norm import RmsNorm
from strata.ops.rope import Rope

THREADS = 256
_WARPS = 4  # of a thread block whose warps work alone
_MOST_THREADS = 1024
_LONG_ROW = 256
_MANY_ROWS, _BLOCKS = (
    64,
    16,
)  # from so many rows on thread blocks take values in turn, so many a multiprocessor
_MOST_BLOCKS = 1024  # of a kernel whose thread blocks take elements in turn


def warps(units: int, each: int = _WARPS) -> int:
    """Thread blocks for a warp a unit."""
    return -(-units // each)


def elements(count: int) -> int:
    """Thread blocks for elements taken in turn."""
    return max(1, min(-(-count // THREADS), _MOST_BLOCKS))


def rows_of(buffer: Buffer, at: Context) -> int:
    """Most live rows of a buffer in a step of this program."""
    return min(buffer.shape[0], at.bucket)


@lower.register
def _(op: Embed, at: Context) -> list[Launch]:
    vocab, width = op.weight.shape
    args = [at.live(op.out), *at.at(op.tokens), at.rows(op.weight), *at.at(op.out), pointer(at.faults)]
    units = rows_of(op.out, at) * (width // 32 if op.weight.format.quantised else width)
    macros = [type_macro(op.weight.format)]
    return [
        launch("embed.cu", "embed", elements(units), THREADS, [*args, *ints(width, vocab)], macros=macros)
    ]


@lower.register
def _(op: RmsNorm, at: Context) -> list[Launch]:
    width = op.weight.shape[-1]
    pieces = op.x.shape[-1] // width
    if whole_row(op) and 4 * width <= at.properties.shared:
        return norm_row(op, at, out=True)
    args = [at.live(op.out), *at.at(op.x), *at.raw(op.weight), *at.at(op.out)]
    sizes = [*ints(width, pieces), *floats(op.eps)]
    grid = warps(rows_of(op.x, at) * pieces)
    return [launch("norm.cu", "norm_pieces", grid, 32 * _WARPS, [*args, *sizes])]


def whole_row(op: RmsNorm) -> bool:
    """Whether the norm runs over rows that are long enough for a thread block, four values a thread."""
    width = int(op.weight.shape[-1])
    return op.x.shape[-1] == width >= _LONG_ROW and width % 4 == 0


def norm_row(
    op: RmsNorm, at: Context, *, before: Add | None = None, after: Quantize | None = None, out: bool
) -> list[Launch]:
    """A thread block a row: `before` is the addition that makes the row, `after` takes the norm; `out`: is it kept."""
    width = op.weight.shape[-1]
    x, y, total = (op.x, None, None) if before is None else (before.a, before.b, before.out)
    planes = [pointer(0)] * 3 if after is None else at.q8(after.out)
    args = [
        at.live(op.out),
        *at.at(x, y),
        *at.raw(op.weight),
        *at.at(total, op.out if out else None),
        *planes,
    ]
    args += [pointer(at.faults), *ints(width), *floats(op.eps)]
    threads = min(-(-width // 128) * 32, _MOST_THREADS)
    return [launch("norm.cu", "norm_row", rows_of(op.x, at), threads, args, shared=4 * width)]


def quantize_blocks(entry: str, inputs: list[Arg], out: Buffer, at: Context) -> list[Launch]:
    """A warp a block of 32 of the q8 rows `out`."""
    k = out.shape[-1]
    args = [at.live(out), *inputs, *at.q8(out), pointer(at.faults), *ints(k)]
    if rows_of(out, at) >= _MANY_ROWS:
        grid = min(-(-rows_of(out, at) * k // (4 * THREADS)), _BLOCKS * at.properties.multiprocessors)
        return [launch("quantize_prompt.cu", entry, grid, THREADS, args)]
    return [launch("quantize.cu", entry, warps(rows_of(out, at) * k // 32), 32 * _WARPS, args)]


@lower.register
def _(op: Quantize, at: Context) -> list[Launch]:
    return quantize_blocks("quantize_rows", at.at(op.x), op.out, at)


@lower.register
def _(op: Rope, at: Context) -> list[Launch]:
    heads = op.x.shape[-1] // op.head_dim
    buffers = at.at(op.positions, op.table, op.x, op.out)
    sizes = ints(heads, op.head_dim, op.rotary_dim, int(op.style), op.table.shape[0])
    args = [at.live(op.out), *buffers, pointer(at.faults), *sizes]
    return [launch("rope.cu", "rope", rows_of(op.x, at), THREADS, args)]


def _elementwise(entry: str, out: Buffer, inputs: list[Arg], at: Context, *more: Arg) -> list[Launch]:
    width = out.shape[-1]
    args = [at.live(out), *inputs, *at.at(out), *ints(width), *more]
    return [launch("elementwise.cu", entry, elements(rows_of(out, at) * width), THREADS, args)]


@lower.register
def _(op: Add, at: Context) -> list[Launch]:
    return _elementwise("add", op.out, at.at(op.a, op.b), at)


@lower.register
def _(op: AddBias, at: Context) -> list[Launch]:
    return _elementwise("add_bias", op.out, [*at.at(op.x), *at.raw(op.bias)], at)


@lower.register
def _(op: SiluMul, at: Context) -> list[Launch]:
    return _elementwise("silu_mul", op.out, at.at(op.gate, op.up), at)


@lower.register
def _(op: GeluMul, at: Context) -> list[Launch]:
    return _elementwise("gelu_mul", op.out, at.at(op.gate, op.up), at)


@lower.register
def _(op: Scale, at: Context) -> list[Launch]:
    return _elementwise("scale", op.out, at.at(op.x), at, *floats(op.factor))


@lower.register
def _(op: CopyColumns, at: Context) -> list[Launch]:
    sizes = ints(op.x.shape[-1], op.out.shape[-1], op.column, op.out_column, op.width)
    grid = elements(rows_of(op.x, at) * op.width)
    return [launch("copy.cu", "copy_columns", grid, THREADS, [at.live(op.x), *at.at(op.x, op.out), *sizes])]


@lower.register
def _(op: GatherRows, at: Context) -> list[Launch]:
    width = op.out.shape[-1]
    args = [at.live(op.out), *at.at(op.index, op.x, op.out), pointer(at.faults), *ints(width, op.x.shape[0])]
    return [launch("copy.cu", "gather_rows", elements(rows_of(op.out, at) * width), THREADS, args)]
