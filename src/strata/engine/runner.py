"""The runner: programs of every form and row bucket, their step inputs, KV pages; turns a plan into sampled tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend, Replay
from strata.engine.drafter import Drafter
from strata.engine.keeper import Keeper
from strata.engine.pieces import Cutter
from strata.engine.plan import ScheduledRows, StepOutput, StepPlan
from strata.engine.routes import RouteTracer
from strata.engine.sample_inputs import SampleInputs
from strata.memory import PageTable, StatePool
from strata.models import DraftModel, Model
from strata.ops import (
    MAX_STEP_ROWS,
    PAGE_CELLS,
    Buffer,
    Builder,
    Form,
    Program,
    ResultsRing,
    StepBuffers,
    publish,
    sample,
)

STEP_BUCKETS = (1, 2, 4, 8, 16, MAX_STEP_ROWS)


@dataclass(frozen=True)
class Limits:
    """What the runner is built for."""

    max_model_len: int
    max_num_seqs: int
    chunk_rows: int  # rows of a prompt chunk, a multiple of 64; 0: no chunk form
    step_buckets: tuple[int, ...] = STEP_BUCKETS


@dataclass(frozen=True)
class _Bucket:
    program: Program
    replay: Replay


class Runner:
    """Everything is fixed at load: shapes, memory, kernels. A step writes inputs and replays two programs."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        state: StatePool,
        limits: Limits,
        tracer: RouteTracer | None = None,
    ):
        self.limits, self.backend, self.model, self._tracer = limits, backend, model, tracer
        self.pages = PageTable(state.num_pages)
        max_rows = max(limits.chunk_rows, MAX_STEP_ROWS)
        self._steps = StepBuffers.create(max_rows, limits.max_num_seqs, limits.max_model_len, MAX_STEP_ROWS)
        vocab, live = model.config.vocab_size, self._steps.num_logit_rows
        self._logits = Buffer("logits", (MAX_STEP_ROWS, vocab), role="output", live=live)
        self._samples = SampleInputs(self._steps, limits.max_num_seqs, vocab)
        self._ring = ResultsRing.create(MAX_STEP_ROWS)
        self._step = 0
        spare = state.num_slots - 1 if state.num_slots > limits.max_num_seqs else None
        self.keeper = Keeper(backend, self._steps, state, self.pages, spare)
        drafted = getattr(model, "draft", None) is not None
        self.drafter = Drafter(cast(DraftModel, model), self._steps) if drafted else None
        self._lower(state)
        self._inputs = {b: backend.array(b) for b in (*self._steps.all(), self._logits)}
        self._samples.bind(backend)
        if tracer is not None:
            tracer.bind(backend)
        self._step_number, self._results = backend.array(self._ring.step), backend.array(self._ring.ring)

    def _lower(self, state: StatePool) -> None:
        table = self.model.config.rope.table(self.limits.max_model_len)
        shapes: list[tuple[Form, int]] = [("step", size) for size in self.limits.step_buckets]
        if self.limits.chunk_rows:
            shapes.append(("chunk", self.limits.chunk_rows))
        programs = [self._forward_program(form, size, state, table) for form, size in shapes]
        sampler, settling = self._sample_program(), self.keeper.program()
        draft = [] if self.drafter is None else [self.drafter.program(state, table, self._logits)]
        self.backend.reserve(max(p.arena_bytes for p in (*programs, sampler, settling, *draft)))
        self.keeper.bind(settling)
        if self.drafter is not None:
            self.drafter.bind(self.backend, draft[0])
        self._sampler = self.backend.lower(sampler)
        self._buckets: dict[Form, list[_Bucket]] = {"step": [], "chunk": []}
        for (form, _), program in zip(shapes, programs, strict=True):
            self._buckets[form].append(_Bucket(program, self.backend.lower(program)))

    def _forward_program(self, form: Form, size: int, state: StatePool, table: Buffer) -> Program:
        b = (self._tracer.builder if self._tracer else Builder)(self._steps, size, form)
        if self.drafter is None:
            self.model.forward(b, state, table, self._logits)
        else:
            model = cast(DraftModel, self.model)
            model.forward(b, state, table, self._logits, self.drafter.buffers.hidden)
        return b.finish()

    def _sample_program(self) -> Program:
        b = Builder(self._steps, MAX_STEP_ROWS)
        sample(b, self._logits, self._samples.buffers)
        publish(b, self._ring, self._samples.buffers.out_ids, self._samples.buffers.out_logprob)
        return b.finish()

    def run(self, plan: StepPlan) -> StepOutput:
        """Computes the plan's rows, then its chunk, and samples where it asks for it."""
        for sequence in plan.ended:
            self.pages.free(sequence)
        for started in plan.started:
            self._samples.start(started)
        tokens: dict[int, int] = {}
        if plan.rows:
            tokens |= self._compute("step", plan.rows)
        if plan.chunk is not None:
            tokens |= self._compute("chunk", (plan.chunk,))
        return StepOutput(plan, tokens)

    def _compute(self, form: Form, rows: Sequence[ScheduledRows]) -> dict[int, int]:
        bucket = self._write(form, rows)
        ends = np.cumsum([len(r.token_ids) for r in rows]) - 1
        self._want([int(end) for end, r in zip(ends, rows, strict=True) if r.sampled])
        sampled = [r for r in rows if r.sampled]
        with self.keeper.undone_on_fault(form, [r.sequence for r in rows]):
            bucket.replay.run()
            tokens = self._sample(sampled)
        self._commit(form, rows)
        return dict(zip((r.request_id for r in sampled), tokens, strict=True))

    def _sample(self, rows: list[ScheduledRows]) -> list[int]:
        if not rows:
            return []
        self._samples.write(rows)
        self._step += 1
        self._step_number[0] = self._step
        self._sampler.run()
        tokens, _ = self._ring.read(self._results, self._step)
        self._samples.commit(rows, tokens)
        return tokens

    def logits(self, token_ids: Sequence[int], cutter: Cutter) -> Iterator[NDArray[np.float32]]:
        """Teacher-forced logits of a fresh sequence, float32 [n, vocab_size] pieces in order of tokens."""
        position = 0
        try:
            while position < len(token_ids):
                piece = cutter.cut(position, len(token_ids) - position)
                tokens = list(token_ids[position : position + piece.count])
                yield from self.read(piece.form, position, tokens, range(len(tokens)))
                position += len(tokens)
        finally:
            self.pages.free(0)

    def read(
        self, form: Form, position: int, token_ids: list[int], wanted: range
    ) -> Iterator[NDArray[np.float32]]:
        """Computes and commits tokens of sequence 0; float32 [n, vocab_size] pieces of its `wanted` rows."""
        rows = [ScheduledRows(-1, 0, position, token_ids, sampled=False)]
        bucket = self._write(form, rows)
        head = bucket.program.marks["head"]
        with self.keeper.undone_on_fault(form, [0]):
            bucket.replay.run(0, head)
        self._commit(form, rows)
        for first in range(0, len(wanted), MAX_STEP_ROWS):
            part = wanted[first : first + MAX_STEP_ROWS]
            self._want(part)
            bucket.replay.run(head)
            yield self._inputs[self._logits][: len(part)].copy()

    def draft_logits(self, token_ids: Sequence[int], cutter: Cutter) -> Iterator[NDArray[np.float32]]:
        """Teacher-forced logits of the draft layer: row i from position i's rows and token i + 1."""
        assert self.drafter is not None, "the model has no draft layer"
        position, last = 0, len(token_ids) - 1
        try:
            while position < last:
                piece = cutter.cut(position, last - position)
                end = position + piece.count
                rows = [ScheduledRows(-1, 0, position, list(token_ids[position:end]), sampled=False)]
                bucket = self._write(piece.form, rows)
                bucket.replay.run(0, bucket.program.marks["head"])
                self._commit(piece.form, rows)
                hidden = self.drafter.trunk_rows(range(piece.count))
                for first in range(0, piece.count, MAX_STEP_ROWS):
                    part = hidden[first : first + MAX_STEP_ROWS]
                    following = list(token_ids[position + first + 1 : position + first + 1 + len(part)])
                    self._write("step", [ScheduledRows(-1, 0, position + first, following, sampled=False)])
                    self._want(range(len(part)))
                    self.drafter.run(part)
                    yield self._inputs[self._logits][: len(part)].copy()
                position = end
        finally:
            self.pages.free(0)

    def _write(self, form: Form, rows: Sequence[ScheduledRows]) -> _Bucket:
        """Fills the step inputs; returns the smallest bucket that holds the rows."""
        s, at = self._steps, self._inputs
        count = 0
        for scheduled in rows:
            self._map_pages(scheduled.sequence, scheduled.end)
            part = slice(count, count + len(scheduled.token_ids))
            at[s.tokens][part] = scheduled.token_ids
            at[s.positions][part] = np.arange(scheduled.position, scheduled.end)
            at[s.rope_positions][part] = at[s.positions][part, None]
            at[s.sequences][part] = scheduled.sequence
            count = part.stop
        at[s.num_rows][0] = count
        return next(b for b in self._buckets[form] if b.program.bucket >= count)

    def _commit(self, form: Form, rows: Sequence[ScheduledRows]) -> None:
        """Every computed row becomes state; the chunk form has stored its rows already."""
        self.keeper.commit({r.sequence: len(r.token_ids) if form == "step" else 0 for r in rows})
        if self._tracer is not None:
            self._tracer.take(sum(len(r.token_ids) for r in rows), form)

    def _map_pages(self, sequence: int, cells: int) -> None:
        held = len(self.pages.pages(sequence)) * PAGE_CELLS
        if cells > held:
            pages = self.pages.grow(sequence, cells)
            self._inputs[self._steps.page_table][sequence, : len(pages)] = pages

    def _want(self, rows: Sequence[int]) -> None:
        self._inputs[self._steps.num_logit_rows][0] = len(rows)
        self._inputs[self._steps.logit_rows][: len(rows)] = rows

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes one decode row reads: every weight once, but of tables only what it uses."""
        return sum(op.row_weight_bytes() for op in self._buckets["step"][0].program.ops)
