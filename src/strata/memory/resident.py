"""Resident groups of KV cells: their buffers beside the whole pools, and what is forgotten when a host writes pages."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.memory.kv import KVPool
from strata.ops import PAGE_CELLS, Buffer, LayerKV, ResidentKV
from strata.ops.kv_fetch import FETCH_BYTES, FETCHES, HEAD, HITS, STAGE_BYTES, STREAMED

COUNTERS = {
    "kv_hits": HITS,
    "kv_fetches": FETCHES,
    "kv_streamed": STREAMED,
    "kv_fetch_bytes": FETCH_BYTES,
    "kv_stage_bytes": STAGE_BYTES,
}


@dataclass(frozen=True)
class Residency:
    """How many cells of each spilling layer VRAM holds, the pace of a pretended link (0: none), and whether prompts
    have a stage besides."""

    cells: int
    link_ns_per_byte: float = 0.0
    staged: bool = False


def with_residents(pool: KVPool, sparse_layers: int, group: int, resident: Residency | None) -> KVPool:
    """The pool with resident groups of `group` cells for its first `sparse_layers` layers."""
    if resident is None or not sparse_layers:
        return pool
    made = (
        _spilled(i, layer, pool.num_pages, group, resident) if i < sparse_layers else layer
        for i, layer in enumerate(pool.layers)
    )
    return replace(pool, layers=tuple(made))


def _spilled(i: int, layer: LayerKV, num_pages: int, group: int, resident: Residency) -> LayerKV:
    """The layer with its pools in RAM and slots beside them."""

    def moved(pool: Buffer | None) -> Buffer | None:
        return None if pool is None else replace(pool, in_ram=True)

    return replace(
        layer,
        k=replace(layer.k, in_ram=True),
        v=replace(layer.v, in_ram=True),
        k_scales=moved(layer.k_scales),
        v_scales=moved(layer.v_scales),
        resident=_resident(i, layer, num_pages, group, resident),
    )


def _resident(i: int, layer: LayerKV, num_pages: int, group: int, resident: Residency) -> ResidentKV:
    groups = num_pages * PAGE_CELLS // group
    slots = min(max(resident.cells // group, 1), groups)

    def beside(name: str, pool: Buffer | None) -> Buffer | None:
        if pool is None:
            return None
        return Buffer(f"{name}.{i}", (slots, pool.shape[1], group, pool.shape[3]), pool.dtype, "state")

    k, v = beside("k_resident", layer.k), beside("v_resident", layer.v)
    assert k is not None and v is not None
    return ResidentKV(
        k,
        v,
        beside("k_resident_scales", layer.k_scales),
        beside("v_resident_scales", layer.v_scales),
        Buffer(f"kv_table.{i}", (groups,), "i32", "state"),
        Buffer(f"kv_clock.{i}", (HEAD + 3 * slots,), "i32", "state"),
        Buffer(f"kv_counts.{i}", (len(COUNTERS),), "u64", "polled"),
        resident.link_ns_per_byte,
        resident.staged,
    )


def residents(pool: KVPool) -> list[ResidentKV]:
    """Of the layers that have some."""
    return [layer.resident for layer in pool.layers if layer.resident is not None]


def forget_pages(pool: KVPool, array: Callable[[Buffer], NDArray[Any]], pages: Collection[int]) -> None:
    """Makes pages that a host has written absent, so that they are fetched again."""
    for r in residents(pool) if pages else ():
        table, clock = array(r.table), array(r.clock)
        entries, per_page = np.array(table[:]), r.table.shape[0] // pool.num_pages
        places = (np.array(list(pages), np.int64)[:, None] * per_page + np.arange(per_page)).reshape(-1)
        held = entries[places]
        if not held.any():
            continue
        entries[places] = 0
        table[:] = entries
        owners = np.array(clock[:])
        owners[HEAD + held[held > 0] - 1] = 0  # the owners' slots are free
        clock[:] = owners


def read_kv_counts(pool: KVPool, array: Callable[[Buffer], NDArray[Any]]) -> dict[str, int]:
    """Groups asked for by what became of them, over all layers; empty where nothing is resident apart."""
    counts = [np.asarray(array(r.counts)) for r in residents(pool)]
    return {name: int(sum(int(c[i]) for c in counts)) for name, i in COUNTERS.items()} if counts else {}
