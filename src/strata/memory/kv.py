"""KV pages: the pools of every layer, and which pages a sequence holds."""

from dataclasses import dataclass
from typing import Literal, Self

from strata.errors import ContextLengthError, UnsupportedError
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


class PageTable:
    """Hands out pages to sequences; a sequence's pages in order are its row of the step's page table.

    Forks share whole pages, which nobody writes any more; a page is free when no sequence holds it.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._pages: dict[int, list[int]] = {}
        self._ref_counts = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages no sequence holds."""
        return len(self._free)

    def pages(self, sequence: int) -> list[int]:
        """The pages of a sequence, in order of cells."""
        return self._pages.get(sequence, [])

    def grow(self, sequence: int, cells: int) -> list[int]:
        """Makes the sequence hold at least `cells` cells; returns its pages."""
        pages = self._pages.setdefault(sequence, [])
        missing = -(-cells // PAGE_CELLS) - len(pages)
        if missing > len(self._free):
            raise ContextLengthError(
                f"{cells} tokens need {missing} more KV pages of {PAGE_CELLS}, {len(self._free)} of "
                f"{self.num_pages} are free; raise --max-context"
            )
        for _ in range(max(missing, 0)):
            pages.append(self._free.pop())
            self._ref_counts[pages[-1]] += 1
        return pages

    def fork(self, parent: int, child: int, cells: int) -> tuple[int, int] | None:
        """Gives a sequence without pages the parent's first `cells` cells; returns the (page, copy) to fill where they
        end inside a page."""
        assert not self.pages(child), f"sequence {child} already holds pages"
        shared = self.pages(parent)[: cells // PAGE_CELLS]
        for page in shared:
            self._ref_counts[page] += 1
        self._pages[child] = list(shared)
        if cells % PAGE_CELLS == 0:
            return None
        return self.pages(parent)[len(shared)], self.grow(child, cells)[-1]

    def free(self, sequence: int) -> None:
        """Gives up the sequence's pages."""
        for page in reversed(self._pages.pop(sequence, [])):
            self._ref_counts[page] -= 1
            if not self._ref_counts[page]:
                self._free.append(page)
