"""Checkpoints of live sequences: settles what is committed, then copies state out of the pools and back."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from strata.backends import Backend, Replay
from strata.errors import FaultError
from strata.memory import Checkpoint, PageTable, StatePool, copy_slot, put_checkpoint, settle, take_checkpoint
from strata.memory.resident import forget_pages
from strata.ops import Buffer, Builder, Form, Program, StepBuffers


class Keeper:
    """Works between steps, on the runner's buffers and page table.

    `spare`: a slot for what a prompt chunk began with; None where weights cannot fail to come.
    """

    def __init__(
        self,
        backend: Backend,
        steps: StepBuffers,
        state: StatePool,
        pages: PageTable,
        spare: int | None = None,
    ):
        self._backend, self._steps, self._state, self._pages = backend, steps, state, pages
        self._spare = spare
        self._replay: Replay | None = None

    def program(self) -> Program:
        """One row, whose sequence is settled at its position."""
        b = Builder(self._steps, 1)
        settle(b, self._state)
        return b.finish()

    def bind(self, program: Program) -> None:
        """Lowers the program; comes after the backend has its arena."""
        self._replay = self._backend.lower(program) if len(program) else None

    def commit(self, counts: Mapping[int, int]) -> None:
        """Of the last step's rows of each sequence, how many became state; the others leave no trace."""
        for sequence, count in counts.items():
            self._at(self._steps.commits)[sequence] = count

    @contextmanager
    def undone_on_fault(self, form: Form, sequences: Sequence[int]) -> Iterator[None]:
        """Around a replay and before its commit: after a FaultError the sequences are what the last commit made them.

        A void step has run to its end. In the step form it made the rows committed before it state and stored none of
        its own; the chunk form stores its rows, so the slot as it was is put back.
        """
        kept = form == "chunk" and self._spare is not None
        if kept:
            copy_slot(self._state, self._at, sequences[0], self._spare or 0)
        try:
            yield
        except FaultError:
            if kept:
                copy_slot(self._state, self._at, self._spare or 0, sequences[0])
            elif form == "step":
                self.commit(dict.fromkeys(sequences, 0))
            raise

    def checkpoint(self, sequence: int, position: int, *, pages: bool = False) -> Checkpoint:
        """The sequence's state before its token at `position`; with its pages, where it must outlive them."""
        self._settle(sequence, position)
        held = self._pages.pages(sequence) if pages else None
        return take_checkpoint(self._state, self._at, sequence, position, held)

    def restore(self, sequence: int, checkpoint: Checkpoint) -> None:
        """The sequence goes on from the checkpoint; without pages in it, those that the sequence holds must be its."""
        self._map(sequence, self._pages.grow(sequence, checkpoint.position))
        put_checkpoint(self._state, self._at, sequence, checkpoint, self._pages.pages(sequence))
        self.commit({sequence: 0})

    def fork(self, parent: int, child: int, position: int) -> None:
        """The child, which holds no pages, goes on as the parent would at `position`."""
        copied = self._pages.fork(parent, child, position)
        for buffer in self._state.paged() if copied is not None else ():
            source, target = copied or (0, 0)
            self._at(buffer)[target] = self._at(buffer)[source]
        forget_pages(self._state.kv, self._at, () if copied is None else copied[1:])
        self._map(child, self._pages.pages(child))
        copy_slot(self._state, self._at, parent, child)
        self.commit({child: int(self._at(self._steps.commits)[parent])})

    def restore_tap(self, sequence: int, slot: int) -> None:
        """The sequence, whose pages hold the cells, goes on from what a tap wrote to `slot`."""
        copy_slot(self._state, self._at, slot, sequence)
        self.commit({sequence: 0})

    def _settle(self, sequence: int, position: int) -> None:
        s = self._steps
        self._at(s.positions)[0], self._at(s.sequences)[0], self._at(s.num_rows)[0] = position, sequence, 1
        if self._replay is not None:
            self._replay.run()
        self.commit({sequence: 0})

    def _map(self, sequence: int, pages: list[int]) -> None:
        self._at(self._steps.page_table)[sequence, : len(pages)] = pages

    def _at(self, buffer: Buffer) -> NDArray[Any]:
        return self._backend.array(buffer)
