"""The join of a draft layer (models/qwen4exp.py): the next token's embedding beside each stream, one matrix."""

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.fuse import Lowering
from strata.backends.cuda.lower import Context, floats, ints, launch, pointer, type_macro
from strata.backends.cuda.lower_dense import rows_of
from strata.backends.cuda.lower_linear import q8_products
from strata.backends.cuda.lower_stream import stream
from strata.backends.cuda.pattern import Pattern, Product, require, sublayer
from strata.ops.buffers import Buffer, plane_bytes
from strata.ops.copy_rows import CopyColumns
from strata.ops.embed import Embed
from strata.ops.grouped_norm import GroupedNorm
from strata.ops.linear import LinearQ
from strata.ops.quantize import Quantize
from strata.ops.rms_norm import RmsNorm

_STREAMED_ROWS = 8


@sublayer
def draft_join(p: Pattern) -> Lowering:
    """Two launches: all streams' q8 rows, then one product, as if each stream were a row of its own."""
    token = p.need(Embed)
    e = p.need(RmsNorm, lambda op: op.x is token.out)
    h = p.need(GroupedNorm)
    width, streams = e.weight.shape[-1], h.groups
    require(
        h.x.shape[-1] == streams * width and e.x.shape[-1] == width and width % 128 == 0 and width <= 4096
    )
    joins = [_join(p, e.out, h.out, c) for c in range(streams)]
    weight, out = joins[0].weight, joins[0].out
    require(all(j == joins[0] for j in joins) and weight.shape == (width, 2 * width))
    require(out.shape[-1] == streams * width)
    p.close(out)
    join = Product(weight, out)

    def launches(at: Context) -> list[Launch]:
        rows, live = rows_of(out, at), at.live(out)
        sizes = plane_bytes((rows * streams, 2 * width))
        q = at.scratch(sum(sizes))
        planes = [pointer(q), pointer(q + sizes[0]), pointer(q + sizes[0] + sizes[1])]
        args = [
            live,
            *at.at(token.tokens),
            at.rows(token.weight),
            *at.raw(e.weight),
            *at.at(h.x),
            *at.raw(h.weight),
        ]
        args += [*planes, pointer(at.faults), *ints(token.weight.shape[0]), *floats(e.eps, h.eps)]
        macros = [type_macro(token.weight.format), ("STRATA_WIDTH", width), ("STRATA_STREAMS", streams)]
        joined = launch(
            "draft_join.cu", "draft_join", (streams + 1, rows), width // 4, args, macros=macros, ahead=True
        )
        wide, last = rows * streams, None
        if wide <= _STREAMED_ROWS:
            last = stream(at, live, planes, at.at(None), wide, [join], each=streams)
        return [joined, last or q8_products(at, live, planes, wide, [join], streams)]

    return launches


def _join(p: Pattern, e: Buffer, h: Buffer, stream: int) -> Product:
    """The ops of one stream: e and its part of h side by side, and their product, at its place in the streams."""
    width = e.shape[-1]
    joined = _copied(p, e, 0, 0, width)
    require(_copied(p, h, stream * width, width, width) is joined)
    quantize = p.need(Quantize, lambda op: op.x is joined)
    product = p.need(LinearQ, lambda op: op.x is quantize.out)
    return Product(product.weight, _copied(p, product.out, 0, stream * width, width))


def _copied(p: Pattern, x: Buffer, column: int, to: int, width: int) -> Buffer:
    """Where so many of x's columns go."""
    copy = p.need(CopyColumns, lambda op: op.x is x)
    require((copy.column, copy.out_column, copy.width) == (column, to, width))
    return copy.out
