"""kv_fetch: brings the groups of cells that a step will attend to into a small pool beside the whole one.

The whole pool (RAM) is what counts: kv_store writes there, and a group that is resident is written again. A group is
the cells of one index block. Where no place can be had, attention reads the group where it lies: places decide no bit.
"""

from dataclasses import dataclass
from typing import ClassVar

from strata.ops.buffers import Buffer
from strata.ops.op import Arrays, Op

# Of ResidentKV.clock: then owner (group + 1; 0 free), step of the last use and reference bit of each slot, in turn.
HAND, STEP, HEAD = 0, 1, 4
HITS, FETCHES, STREAMED, FETCH_BYTES, STAGE_BYTES = range(5)  # of ResidentKV.counts


@dataclass(frozen=True, eq=False)
class ResidentKV:
    """One layer's resident groups; slots are chosen by second chance, none that the step itself uses."""

    k: Buffer  # [slots, kv_heads, group, ..] as the layer's pools
    v: Buffer
    k_scales: Buffer | None
    v_scales: Buffer | None
    table: Buffer  # i32 [pages * groups of a page]: slot + 1, 0 absent
    clock: Buffer  # i32 [HEAD + 3 * slots]
    counts: Buffer  # u64 [5]
    link_ns_per_byte: float = 0.0  # a pretended link's pace
    staged: bool = False  # whether chunks have one sequence's cells copied to where they read them

    @property
    def slots(self) -> int:
        """Groups that fit."""
        return self.k.shape[0]

    def buffers(self) -> tuple[Buffer, ...]:
        """All of it."""
        found = (self.k, self.v, self.k_scales, self.v_scales, self.table, self.clock, self.counts)
        return tuple(b for b in found if b is not None)


@dataclass(frozen=True, eq=False)
class KvFetch(Op):
    """After kv_store and the selection, before attention over it."""

    kind: ClassVar[str] = "kv_fetch"
    writes: ClassVar[tuple[str, ...]] = (
        "k_slots", "v_slots", "k_slot_scales", "v_slot_scales", "table", "clock", "counts",
    )  # fmt: skip
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    selected: Buffer  # i32 [rows, budget]
    k_pool: Buffer
    v_pool: Buffer
    k_scales: Buffer | None
    v_scales: Buffer | None
    k_slots: Buffer
    v_slots: Buffer
    k_slot_scales: Buffer | None
    v_slot_scales: Buffer | None
    table: Buffer
    clock: Buffer
    counts: Buffer
    ratio: int
    link_ns_per_byte: float
    staged: bool = False  # ResidentKV's; a device may do without

    def run_float(self, at: Arrays) -> None:
        """Nothing: the reference reads the whole pool."""
