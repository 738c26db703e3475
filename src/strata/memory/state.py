"""What sequences carry from step to step, as one object: pages for what lies by cell, slots for what is recurrent."""

from dataclasses import dataclass
from typing import Self

from strata.memory.kv import KVPool, KVType
from strata.memory.resident import Residency, with_residents
from strata.ops import (
    MAX_STEP_ROWS,
    PAGE_CELLS,
    RING_ROWS,
    Buffer,
    Builder,
    DeltaState,
    DType,
    IndexPool,
    delta_settle,
)


@dataclass(frozen=True)
class DeltaShape:
    """Sizes of one delta-rule layer's state."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiled: bool


@dataclass(frozen=True)
class RingShape:
    """One ring of rows by position; `back`: how many rows before its own a row reads."""

    width: int
    back: int

    @property
    def rows(self) -> int:
        """A step's rows, whether they stay or not, overwrite none of the `back` rows before them."""
        return MAX_STEP_ROWS + self.back


@dataclass(frozen=True)
class IndexShape:
    """Index keys of the layers with sparse attention."""

    layers: int
    dim: int
    ratio: int  # cells of a block


@dataclass(frozen=True)
class StateShape:
    """What an architecture needs for a sequence."""

    kv_layers: int
    kv_heads: int
    head_dim: int
    index: IndexShape | None = None
    delta: tuple[DeltaShape, ...] = ()
    rings: tuple[RingShape, ...] = ()
    history: int = 0  # earlier tokens that a row reads


@dataclass(frozen=True)
class StatePool:
    """The buffers of all sequences. Paged ones begin with the page, recurrent ones with the slot; sequence s of a step
    has slot s, and slots after those hold checkpoints."""

    shape: StateShape
    kv: KVPool
    num_slots: int
    index: tuple[IndexPool, ...]
    delta: tuple[DeltaState, ...]
    rings: tuple[Buffer, ...]  # f32 [slots, rows, width]
    history: Buffer | None  # i32 [slots, RING_ROWS]

    @classmethod
    def create(
        cls, shape: StateShape, num_pages: int, num_slots: int, kv: KVType, resident: Residency | None = None
    ) -> Self:
        """Buffers for `num_pages` pages of 64 cells and `num_slots` sequences and checkpoints; `resident`: of layers
        with an indexer, the cells that lie in VRAM."""

        def slots(name: str, *rest: int, dtype: DType = "f32") -> Buffer:
            return Buffer(name, (num_slots, *rest), dtype, "state")

        return cls(
            shape=shape,
            kv=with_residents(
                KVPool.create(shape.kv_layers, shape.kv_heads, shape.head_dim, num_pages, kv),
                0 if shape.index is None else shape.index.layers,
                1 if shape.index is None else shape.index.ratio,
                resident,
            ),
            num_slots=num_slots,
            index=_index_pools(shape.index, num_pages, num_slots),
            delta=tuple(_delta_state(i, d, num_slots) for i, d in enumerate(shape.delta)),
            rings=tuple(slots(f"ring.{i}", r.rows, r.width) for i, r in enumerate(shape.rings)),
            history=slots("history", RING_ROWS, dtype="i32") if shape.history else None,
        )

    @property
    def num_pages(self) -> int:
        """Pages of every paged buffer."""
        return self.kv.num_pages

    def paged(self) -> tuple[Buffer, ...]:
        """Buffers [num_pages, ...]."""
        return (*self.kv.buffers(), *(pool.pooled for pool in self.index))

    def recurrent(self) -> tuple[Buffer, ...]:
        """Buffers [num_slots, ...]."""
        return (
            *(b for d in self.delta for b in (d.state, d.pending)),
            *(ring for ring, _ in self.all_rings()),
        )

    def all_rings(self) -> tuple[tuple[Buffer, int], ...]:
        """Every ring by position of settled sequences, with how many rows before its own a row reads."""
        back = 0 if self.shape.index is None else self.shape.index.ratio - 1
        index = [pool.raw for pool in self.index] + ([self.index[0].cells] if self.index else [])
        history = [] if self.history is None else [(self.history, self.shape.history)]
        convolved = zip(self.rings, (r.back for r in self.shape.rings), strict=True)
        return (*convolved, *((ring, back) for ring in index), *history)

    @property
    def cell_bytes(self) -> int:
        """Bytes that one token of context keeps."""
        return sum(b.nbytes for b in self.paged()) // (self.num_pages * PAGE_CELLS)

    @property
    def slot_bytes(self) -> int:
        """Bytes that a live sequence costs besides its pages."""
        return sum(b.nbytes for b in self.recurrent()) // self.num_slots


def settle(b: Builder, state: StatePool) -> None:
    """Emits what makes the committed rows state; each row of the step names a sequence and its next position, and its
    `commits` must be 0 afterwards. Emits nothing where nothing is recurrent."""
    for layer in state.delta:
        delta_settle(b, layer)


def _index_pools(shape: IndexShape | None, num_pages: int, num_slots: int) -> tuple[IndexPool, ...]:
    if shape is None:
        return ()
    cells = Buffer("cell_positions", (num_slots, RING_ROWS, 3), "i32", "state")
    return tuple(
        IndexPool(
            Buffer(f"index.{i}", (num_slots, RING_ROWS, shape.dim), role="state"),
            Buffer(f"pooled.{i}", (num_pages, PAGE_CELLS // shape.ratio, shape.dim), role="state"),
            cells,
        )
        for i in range(shape.layers)
    )


def _delta_state(i: int, d: DeltaShape, slots: int) -> DeltaState:
    width = DeltaState.pending_width(d.key_heads, d.value_heads, d.key_dim, d.value_dim)
    return DeltaState(
        Buffer(f"delta.{i}", (slots, d.value_heads, d.value_dim, d.key_dim), role="state"),
        Buffer(f"pending.{i}", (slots, RING_ROWS, width), role="state"),
        d.key_heads,
        d.tiled,
    )
