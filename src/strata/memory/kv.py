"""KV pages: the pools of every layer."""

from dataclasses import dataclass
from typing import Literal, Self

from strata.errors import UnsupportedError
from strata.ops import KV_GROUP, PAGE_CELLS, Buffer, LayerKV

KVType = Literal["f32", "f16", "int8"]


@dataclass(frozen=True)
class KVPool:
    """Key and value pools of all attention layers; a page id means the same cells in each."""

    layers: tuple[LayerKV, ...]
    num_pages: int

    @classmethod
    def create(cls, num_layers: int, kv_heads: int, head_dim: int, num_pages: int, kv: KVType) -> Self:
        """Pools for `num_pages` pages of 64 cells."""
        shape = (num_pages, kv_heads, PAGE_CELLS)
        group = min(KV_GROUP, head_dim)
        if kv == "int8" and head_dim % group:
            raise UnsupportedError(f"--kv int8 needs heads of whole groups of {group}; heads have {head_dim}")

        def pool(name: str) -> Buffer:
            return Buffer(name, (*shape, head_dim), "i8" if kv == "int8" else kv, "state")

        def scales(name: str) -> Buffer | None:
            return Buffer(name, (*shape, head_dim // group), "f16", "state") if kv == "int8" else None

        layers = (
            LayerKV(pool(f"k.{i}"), pool(f"v.{i}"), scales(f"k_scales.{i}"), scales(f"v_scales.{i}"))
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
