"""N-gram tables that are not weights on the device: in page-locked RAM, or with a store that is asked by mailbox."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from strata import _native, log
from strata.backends.cuda.driver import Driver
from strata.backends.cuda.lower import TableBox
from strata.backends.cuda.weights import WeightStore
from strata.errors import DeviceError
from strata.ops.buffers import Buffer, Weight
from strata.ops.ngram import NgramRows, TableRows
from strata.ops.program import Program


@dataclass(frozen=True)
class Asked:
    """One program's mailboxes: by the buffer of ids, and how a store is told that a replay will ask (by op)."""

    boxes: Mapping[Buffer, TableBox]
    tell: tuple[tuple[int, Callable[[], None]], ...]


class Tables:
    """Stores by table. A table that its store holds in RAM is page-locked, and kernels read it over the link."""

    def __init__(self, driver: Driver, stores: Mapping[Weight, _native.NgramStore], weights: WeightStore):
        self._driver, self._stores = driver, stores
        self._asked: list[Weight] = []
        for table, store in stores.items():
            address = self._locked(store)
            if address:
                weights.lies_at(table, address)
            else:
                self._asked.append(table)

    def _locked(self, store: _native.NgramStore) -> int:
        """The device's address of the rows; 0 where the store must be asked for them."""
        if not store.address:
            return 0
        try:
            there = self._driver.register(store.address, store.nbytes)
        except DeviceError as error:
            log.logger(__name__).warning(
                "n-gram table: %.1f GiB cannot be page-locked, its rows are asked for instead (%s)",
                store.nbytes / 2**30,
                error,
            )
            return 0
        weakref.finalize(self, self._driver.unregister, store.address)
        return there

    def boxes(self, program: Program, counter: Callable[[], int]) -> Asked:
        """Mailboxes of the program's own; `counter`: address of a zeroed u32 on the device."""
        tables = {op.index: op.weight for op in program.ops if isinstance(op, TableRows)}
        boxes, tell = {}, []
        for i, op in enumerate(program.ops):
            if not isinstance(op, NgramRows) or tables.get(op.out) not in self._asked:
                continue
            store, (rows, heads) = self._stores[tables[op.out]], op.out.shape
            memory = self._driver.allocate_host(store.box_bytes(rows * heads))
            box = store.add_box(rows * heads, memory.address)
            boxes[op.out] = TableBox(*box.addresses, counter(), store.limit_ns)
            tell.append((i, partial(store.expect, box)))
        return Asked(boxes, tuple(tell))

    def close(self) -> None:
        """Stores look at no mailbox any more, before its memory goes."""
        for store in self._stores.values():
            store.end()

    def failure(self) -> str:
        """What the last failed read was."""
        return "; ".join(text for store in self._stores.values() if (text := store.failure()))
