"""Runs a model's programs step by step, without the engine: rows, commits, chunks with taps, checkpoints."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata import models
from strata.backends import Backend
from strata.gguf import open_model
from strata.memory import Checkpoint, PageTable, StatePool, copy_slot, put_checkpoint, settle, take_checkpoint
from strata.memory.resident import Residency
from strata.models import DraftPass
from strata.ops import Buffer, Builder, StepBuffers, copy_rows, linear

ROWS = 32  # as many as a step of one sequence ever holds
CHUNK = 256


@dataclass(frozen=True)
class Rows:
    """Consecutive tokens of one sequence."""

    sequence: int
    position: int
    tokens: Sequence[int]


class Driver:
    """One model on one backend, with a page table shuffled so that cells lie apart."""

    def __init__(
        self,
        path: Path,
        backend: Backend,
        kv: str = "f32",
        sequences: int = 3,
        slots: int = 6,
        draft: Path | None = None,
        resident: int | None = None,
        staged: bool = False,
        max_len: int = 512,
    ) -> None:
        file = open_model(path)
        self.model = models.load_with_draft(file, open_model(draft)) if draft else models.load(file)
        self.backend, self.max_len = backend, max_len
        self.steps = StepBuffers.create(CHUNK, sequences, self.max_len, CHUNK)
        pages = sequences * self.max_len // 64
        residency = None if resident is None else Residency(resident, staged=staged)
        self.state = StatePool.create(self.model.state_shape(), pages, slots, kv, residency)
        self.pages = PageTable(pages)
        self.logits = Buffer(
            "logits", (CHUNK, self.model.config.vocab_size), role="output", live=self.steps.num_logit_rows
        )
        table = self.model.config.rope.table(self.max_len)
        builders = [
            Builder(self.steps, ROWS),
            Builder(self.steps, CHUNK, "chunk"),
            Builder(self.steps, sequences),
        ]
        hidden = self._hidden(draft is not None)
        for b in builders[:2]:
            keep = [lambda b, x: copy_rows(b, x, hidden[0])] if hidden else []
            self.model.forward(b, self.state, table, self.logits, *keep)
        settle(builders[2], self.state)
        if hidden:
            builders.append(Builder(self.steps, ROWS))
            draft = DraftPass(
                hidden[1],
                keep=lambda b, x: copy_rows(b, x, hidden[2]),
                head=lambda b, x, w: linear(b, x, w, out=self.logits),
            )
            self.model.draft_forward(builders[3], self.state, table, draft)
        programs = [b.finish() for b in builders]
        for arena in ("step", "chunk"):
            backend.reserve(max(p.arena_bytes for p in programs), arena)
        self.programs = programs
        arenas = ("step", "chunk", *["step"] * (len(programs) - 2))
        made = (backend.lower(p, a) for p, a in zip(programs, arenas, strict=True))
        self._step, self._chunk, self._settle, *self._draft = made
        spare = np.random.default_rng(3).permutation(pages)
        self.pages._free = spare.tolist()

    def _hidden(self, wanted: bool) -> tuple[Buffer, ...]:
        """The trunk's rows, the draft layer's input, and its output."""
        self.hidden = ()
        if wanted:
            shape = (CHUNK, self.model.draft_width)
            names = ("hidden", "draft_input", "draft_output")
            self.hidden = tuple(Buffer(n, shape, role="state", live=self.steps.num_rows) for n in names)
        return self.hidden

    def draft(self, rows: Rows, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draft logits and the next draft's input, for rows whose tokens are those after their positions."""
        n = self._write([rows])
        self.at(self.hidden[1])[:n] = hidden
        self._draft[0].run()
        return self.at(self.logits)[:n].copy(), self.at(self.hidden[2])[:n].copy()

    def at(self, buffer: Buffer) -> np.ndarray:
        return self.backend.array(buffer)

    def _write(self, groups: Sequence[Rows]) -> int:
        s, n = self.steps, 0
        for g in groups:
            held = self.pages.grow(g.sequence, g.position + len(g.tokens))
            self.at(s.page_table)[g.sequence, : len(held)] = held
            part = slice(n, n + len(g.tokens))
            self.at(s.tokens)[part] = g.tokens
            self.at(s.positions)[part] = np.arange(g.position, g.position + len(g.tokens))
            self.at(s.rope_positions)[part] = self.at(s.positions)[part, None]
            self.at(s.sequences)[part] = g.sequence
            n = part.stop
        self.at(s.num_rows)[0] = self.at(s.num_logit_rows)[0] = n
        self.at(s.logit_rows)[:n] = np.arange(n)
        return n

    def step(self, *groups: Rows) -> np.ndarray:
        """Logits [rows, vocab]; nothing is committed."""
        n = self._write(groups)
        self._step.run()
        return self.at(self.logits)[:n].copy()

    def commit(self, counts: Mapping[int, int]) -> None:
        for sequence, n in counts.items():
            self.at(self.steps.commits)[sequence] = n

    def chunk(self, rows: Rows, taps: Sequence[tuple[int, int]] = ()) -> np.ndarray:
        """Whole blocks; `taps`: (position, slot)."""
        n = self._write([rows])
        self.at(self.steps.tap_positions)[:] = 0
        for i, (position, slot) in enumerate(taps):
            self.at(self.steps.tap_positions)[i], self.at(self.steps.tap_slots)[i] = position, slot
        self._chunk.run()
        self.commit({rows.sequence: 0})
        return self.at(self.logits)[:n].copy()

    def read(self, sequence: int, tokens: Sequence[int], chunk: int = 0) -> np.ndarray:
        """Logits of a fresh sequence: whole blocks in chunks of `chunk`, the rest row by row; all committed."""
        out, at = [], 0
        while chunk and at + 64 <= len(tokens):
            n = min(chunk, (len(tokens) - at) // 64 * 64)
            out.append(self.chunk(Rows(sequence, at, tokens[at : at + n])))
            at += n
        for p in range(at, len(tokens)):
            out.append(self.step(Rows(sequence, p, tokens[p : p + 1])))
            self.commit({sequence: 1})
        return np.concatenate(out)

    def settle(self, sequence: int, position: int) -> None:
        self._write_position(sequence, position)
        self._settle.run()
        self.commit({sequence: 0})

    def _write_position(self, sequence: int, position: int) -> None:
        self.at(self.steps.positions)[0], self.at(self.steps.sequences)[0] = position, sequence
        self.at(self.steps.num_rows)[0] = 1

    def checkpoint(self, sequence: int, position: int, pages: bool = False) -> Checkpoint:
        self.settle(sequence, position)
        held = self.pages.pages(sequence) if pages else None
        return take_checkpoint(self.state, self.at, sequence, position, held)

    def restore(self, sequence: int, checkpoint: Checkpoint) -> None:
        held = self.pages.grow(sequence, checkpoint.position)
        self.at(self.steps.page_table)[sequence, : len(held)] = held
        put_checkpoint(self.state, self.at, sequence, checkpoint, held)
        self.commit({sequence: 0})

    def fork(self, parent: int, child: int, position: int) -> None:
        copied = self.pages.fork(parent, child, position)
        for buffer in self.state.paged() if copied else ():
            self.at(buffer)[copied[1]] = self.at(buffer)[copied[0]]
        copy_slot(self.state, self.at, parent, child)
        self.commit({child: int(self.at(self.steps.commits)[parent])})


def digest(logits: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(logits, np.float32).tobytes()).hexdigest()
