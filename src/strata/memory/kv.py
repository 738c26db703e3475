"""KV pages: the pools of every layer."""

from dataclasses import dataclass
from typing import Literal, Self

from strata.errors import UnsupportedError
from strata.ops import KV_GROUP, PAGE_CELLS, Buffer, DType, LayerKV

KVType = Literal["f32", "f16", "int8", "k8v4", "q4"]

_PLANES: dict[KVType, tuple[DType, DType]] = {  # of keys, of values
    "f32": ("f32", "f32"),
    "f16": ("f16", "f16"),
    "int8": ("i8", "i8"),
    "k8v4": ("i8", "u8"),
    "q4": ("u8", "u8"),
}


@dataclass(frozen=True)
class KVPool:
    """Key and value pools of all attention layers; a page id means the same cells in each."""

    layers: tuple[LayerKV, ...]
    num_pages: int

    @classmethod
    def create(cls, num_layers: int, kv_heads: int, head_dim: int, num_pages: int, kv: KVType) -> Self:
        """Pools for `num_pages` pages of 64 cells."""
        shape = (num_pages, kv_heads, PAGE_CELLS)
        group = _group(head_dim, kv)
        k, v = _PLANES[kv]

        def pool(name: str, dtype: DType) -> Buffer:
            return Buffer(name, (*shape, head_dim // (2 if dtype == "u8" else 1)), dtype, "state")

        def scales(name: str, dtype: DType) -> Buffer | None:
            quantised = dtype in ("i8", "u8")
            return Buffer(name, (*shape, head_dim // group), "f16", "state") if quantised else None

        layers = (
            LayerKV(
                pool(f"k.{i}", k), pool(f"v.{i}", v), scales(f"k_scales.{i}", k), scales(f"v_scales.{i}", v)
            )
            for i in range(num_layers)
        )
        return cls(tuple(layers), num_pages)

    def buffers(self) -> tuple[Buffer, ...]:
        """All pools, scales included."""
        each = ((x.k, x.v, x.k_scales, x.v_scales) for x in self.layers)
        return tuple(buffer for layer in each for buffer in layer if buffer is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return sum(buffer.nbytes for buffer in self.buffers())


def _group(head_dim: int, kv: KVType) -> int:
    """Values that share a scale; UnsupportedError where heads cannot be cut so."""
    group = min(KV_GROUP, head_dim)
    if "i8" in _PLANES[kv] and head_dim % group:
        raise UnsupportedError(f"--kv {kv} needs heads of whole groups of {group}; heads have {head_dim}")
    if "u8" in _PLANES[kv] and (head_dim % group or group & (group - 1) or group < 2):
        raise UnsupportedError(
            f"--kv {kv} needs heads of whole groups of {KV_GROUP}, or narrower ones of a power of two; "
            f"heads have {head_dim}"
        )
    return group
