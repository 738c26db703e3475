"""Gate, up and down of a layer's routed experts in tiers: formats, bytes, the macros of kernels that copy them."""

from collections.abc import Sequence

from strata.backends.cuda.lower import type_macro
from strata.backends.cuda.weights import is_packed
from strata.ops.buffers import Weight


def formats(planes: Sequence[Weight]) -> tuple[str, ...]:
    """What layers of one class have in common."""
    return tuple(f"{w.format.name} {plane_bytes(w)}" for w in planes)


def classes_of(stacks: Sequence[Sequence[Weight]]) -> dict[tuple[str, ...], Sequence[Weight]]:
    """Planes of one layer of each class."""
    return {formats(planes): planes for planes in stacks}


def plane_bytes(weight: Weight) -> int:
    """Of one expert."""
    return int(weight.data.shape[1])


def plane_macros(planes: Sequence[Weight]) -> list[tuple[str, str | int]]:
    """Of kernels/expert_copy.cuh."""
    gate, up, down = planes
    packed = sum(int(is_packed(w.format)) << i for i, w in enumerate(planes))
    return [
        type_macro(gate.format), type_macro(up.format, "STRATA_UP"), type_macro(down.format, "STRATA_DOWN"),
        ("STRATA_PACKED", packed),
    ]  # fmt: skip
