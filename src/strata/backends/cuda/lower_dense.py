"""Lowering rules of the ops that dense architectures use."""

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower
from strata.ops.rms_norm import RmsNorm

_WARPS = 4


@lower.register
def _(op: RmsNorm, at: Context) -> list[Launch]:
    width = op.weight.shape[-1]
    pieces = op.x.shape[-1] // width
    args = [at.live(op.out), *at.at(op.x), *at.raw(op.weight), *at.at(op.out)]
    grid = -(-at.bucket * pieces // _WARPS)
    sizes = [*ints(width, pieces), *floats(op.eps)]
    return [launch("norm.cu", "rms_norm", grid, 32 * _WARPS, [*args, *sizes])]
