"""What a model runs on: the kernels of one row's step by shape, and the fast paths that it or the GPU does not take."""

from collections import Counter
from collections.abc import Iterable, Sequence

from strata.backends.cuda.driver import DeviceProperties, Launch
from strata.backends.cuda.weights import UNPACKED_TYPES
from strata.ops.linear import LinearF, LinearQ
from strata.ops.op import Op
from strata.ops.rms_norm import RmsNorm

_SHORT = "STRATA_"


def kernels(launches: Iterable[Launch]) -> list[str]:
    """A line for each kernel, grid and block: how many nodes of a step it has."""

    def text(node: Launch) -> str:
        macros = " ".join(f"{k.removeprefix(_SHORT).lower()}={v}" for k, v in node.kernel.source.macros)
        grid = "x".join(str(n) for n in node.grid if n > 1) or "1"
        return f"{node.kernel.entry} {macros} grid {grid} block {node.block}".replace("QuantType::", "")

    return [f"{count:4d} x {line}" for line, count in Counter(map(text, launches)).items()]


def paths_off(ops: Sequence[Op], properties: DeviceProperties) -> list[str]:
    """Fast paths that are not taken, each with the reason."""
    arch, found = int(properties.arch.removeprefix("sm_")), []
    if arch < 90:
        found.append(f"dependent launch: {properties.arch} has none, nodes wait for one another (sm_90 on)")
    if arch < 80:
        found.append(
            f"asynchronous copies: {properties.arch} has none, weights pass through registers (sm_80 on)"
        )
    for op in ops:
        if isinstance(op, LinearF) and op.weight.shape[1] % 8:
            found.append(
                f"16-byte reads of {op.weight.name}: its rows of {op.weight.shape[1]} are no multiple of 8"
            )
        if isinstance(op, LinearQ) and op.weight.format.name in UNPACKED_TYPES:
            found.append(f"planes of {op.weight.name}: {op.weight.format.name} is read as the file has it")
        if isinstance(op, RmsNorm) and op.x.shape[-1] == op.weight.shape[-1] and op.weight.shape[-1] % 4:
            found.append(f"four values a thread in norms: {op.weight.shape[-1]} is no multiple of 4")
    return list(dict.fromkeys(found))
