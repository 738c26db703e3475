"""State of sequences between steps: settles what is committed, then copies out of the pools and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend, Replay
from strata.memory import (
    Checkpoint,
    PageTable,
    SpareBlocks,
    StatePool,
    checkpoint_bytes,
    copy_slot,
    put_checkpoint,
    settle,
    take_checkpoint,
)
from strata.memory.resident import forget_pages
from strata.ops import Buffer, Builder, Program, StepBuffers


class Keeper:
    """Works between steps, on the runner's buffers and page table."""

    def __init__(self, backend: Backend, steps: StepBuffers, state: StatePool, pages: PageTable):
        self._backend, self._steps, self._state, self._pages = backend, steps, state, pages
        self._replay: Replay | None = None
        self._blocks = SpareBlocks(checkpoint_bytes(state))

    def program(self) -> Program:
        """One row, whose sequence is settled at its position."""
        b = Builder(self._steps, 1)
        settle(b, self._state)
        return b.finish()

    def bind(self, program: Program) -> None:
        """Lowers the program; comes after the backend has its arena."""
        self._replay = self._backend.lower(program) if len(program) else None

    def grow(self, sequence: int, cells: int) -> None:
        """Makes the sequence hold at least `cells` cells; ContextLengthError where pages are short."""
        if self._pages.missing(sequence, cells):
            self.map(sequence, self._pages.grow(sequence, cells))

    def map(self, sequence: int, pages: Sequence[int]) -> None:
        """Writes the sequence's row of the page table."""
        self._at(self._steps.page_table)[sequence, : len(pages)] = pages

    def commit(self, counts: Mapping[int, int]) -> None:
        """Of the last step's rows of each sequence, how many became state; the others leave no trace."""
        for sequence, count in counts.items():
            self._at(self._steps.commits)[sequence] = count

    def checkpoint(self, sequence: int, position: int, *, pages: bool = False) -> Checkpoint:
        """The sequence's state before its token at `position`; with its pages, where it must outlive them."""
        self._settle(sequence, position)
        held = self._pages.pages(sequence) if pages else None
        return take_checkpoint(self._state, self._at, sequence, position, held, block=self._blocks.take())

    def tapped(self, slot: int, position: int) -> Checkpoint:
        """The state that a tap wrote to `slot`."""
        return take_checkpoint(self._state, self._at, slot, position, block=self._blocks.take())

    def restore(self, sequence: int, checkpoint: Checkpoint) -> None:
        """The sequence goes on from the checkpoint; without pages in it, those that the sequence holds must be its."""
        self.map(sequence, self._pages.grow(sequence, checkpoint.position))
        put_checkpoint(self._state, self._at, sequence, checkpoint, self._pages.pages(sequence))
        self.commit({sequence: 0})

    def fork(self, parent: int, child: int, position: int) -> None:
        """The child, which holds no pages, goes on as the parent would at `position`."""
        copied = self._pages.fork(parent, child, position)
        if copied is not None:
            self.copy_page(*copied)
        self.map(child, self._pages.pages(child))
        copy_slot(self._state, self._at, parent, child)
        self.commit({child: int(self._at(self._steps.commits)[parent])})

    def restore_tap(self, sequence: int, slot: int) -> None:
        """The sequence, whose pages hold the cells, goes on from what a tap wrote to `slot`."""
        copy_slot(self._state, self._at, slot, sequence)
        self.commit({sequence: 0})

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all pools."""
        return sum(b.nbytes for b in self._state.paged()) // self._state.num_pages

    def read_cells(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """What pages hold in all pools, u8 [pages, page_bytes]."""
        out = np.empty((len(pages), self.page_bytes), np.uint8)
        for buffer, part in self._parts():
            out[:, part] = (
                np.ascontiguousarray(self._at(buffer)[list(pages)]).reshape(len(pages), -1).view(np.uint8)
            )
        return out

    def write_cells(self, pages: Sequence[int], cells: NDArray[np.uint8]) -> None:
        """Fills pages with what `read_cells` gave."""
        for buffer, part in self._parts():
            at = self._at(buffer)
            held = np.ascontiguousarray(cells[:, part]).view(at.dtype)
            at[list(pages)] = held.reshape(len(pages), *at.shape[1:])
        forget_pages(self._state.kv, self._at, pages)

    def copy_page(self, source: int, target: int) -> None:
        """Makes one page what another is."""
        for buffer in self._state.paged():
            self._at(buffer)[target] = self._at(buffer)[source]
        forget_pages(self._state.kv, self._at, (target,))

    def _parts(self) -> list[tuple[Buffer, slice]]:
        """Paged buffers, and where each one's part of a page's bytes lies."""
        found, at = [], 0
        for buffer in self._state.paged():
            size = buffer.nbytes // self._state.num_pages
            found.append((buffer, slice(at, at + size)))
            at += size
        return found

    def _settle(self, sequence: int, position: int) -> None:
        s = self._steps
        self._at(s.positions)[0], self._at(s.sequences)[0], self._at(s.num_rows)[0] = position, sequence, 1
        if self._replay is not None:  # it has no faults; those that are there are of a step that runs ahead
            self._replay.submit()
            self._replay.wait()
        self.commit({sequence: 0})

    def _at(self, buffer: Buffer) -> NDArray[Any]:
        return self._backend.array(buffer)
