"""The runner: programs of every row bucket, their step inputs, KV pages; turns a plan into sampled tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend, Replay
from strata.engine.plan import ScheduledRows, StepOutput, StepPlan
from strata.engine.sample_inputs import SampleInputs
from strata.memory import KVPool, PageTable
from strata.models import Model
from strata.ops import PAGE_CELLS, Buffer, Builder, Program, ResultsRing, StepBuffers, publish, sample

STEP_BUCKETS = (1, 2, 4, 8, 16, 32)
MAX_LOGIT_ROWS = 32


@dataclass(frozen=True)
class Limits:
    """What the runner is built for."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True)
class _Bucket:
    program: Program
    replay: Replay


class Runner:
    """Everything is fixed at load: shapes, memory, kernels. A step writes inputs and replays two programs."""

    def __init__(self, model: Model, backend: Backend, kv: KVPool, limits: Limits):
        self.limits, self.backend, self.model = limits, backend, model
        self.pages = PageTable(kv.num_pages)
        max_rows = max(limits.max_num_batched_tokens, MAX_LOGIT_ROWS)
        self._steps = StepBuffers.create(max_rows, limits.max_num_seqs, limits.max_model_len, MAX_LOGIT_ROWS)
        vocab = model.config.vocab_size
        self._logits = Buffer(
            "logits", (MAX_LOGIT_ROWS, vocab), role="output", live=self._steps.num_logit_rows
        )
        self._samples = SampleInputs(self._steps, limits.max_num_seqs, vocab)
        self._ring = ResultsRing.create(MAX_LOGIT_ROWS)
        self._step = 0
        table = model.rope_table(limits.max_model_len)
        sizes = [b for b in STEP_BUCKETS if b < max_rows] + [max_rows]
        programs = [self._forward_program(size, kv, table) for size in sizes]
        sampler = self._sample_program()
        backend.reserve(max(p.arena_bytes for p in (*programs, sampler)))
        self._buckets = [_Bucket(p, backend.lower(p)) for p in programs]
        self._sampler = backend.lower(sampler)
        self._inputs = {b: backend.array(b) for b in (*self._steps.all(), self._logits)}
        self._samples.bind(backend)
        self._step_number, self._results = backend.array(self._ring.step), backend.array(self._ring.ring)

    def _forward_program(self, size: int, kv: KVPool, table: Buffer) -> Program:
        b = Builder(self._steps, size)
        self.model.forward(b, kv, table, self._logits)
        return b.finish()

    def _sample_program(self) -> Program:
        b = Builder(self._steps, MAX_LOGIT_ROWS)
        sample(b, self._logits, self._samples.buffers)
        publish(b, self._ring, self._samples.buffers.out_ids, self._samples.buffers.out_logprob)
        return b.finish()

    def run(self, plan: StepPlan) -> StepOutput:
        """Computes the plan's rows and samples where it asks for it."""
        for sequence in plan.ended:
            self.pages.free(sequence)
        for started in plan.started:
            self._samples.start(started)
        if not plan.rows:
            return StepOutput(plan, {})
        bucket = self._write(plan.rows)
        ends = np.cumsum([len(rows.token_ids) for rows in plan.rows]) - 1
        self._want([int(end) for end, rows in zip(ends, plan.rows, strict=True) if rows.sampled])
        bucket.replay.run()
        sampled = [rows for rows in plan.rows if rows.sampled]
        tokens = self._sample(sampled) if sampled else []
        return StepOutput(plan, {rows.request_id: t for rows, t in zip(sampled, tokens, strict=True)})

    def _sample(self, rows: list[ScheduledRows]) -> list[int]:
        self._samples.write(rows)
        self._step += 1
        self._step_number[0] = self._step
        self._sampler.run()
        tokens, _ = self._ring.read(self._results, self._step)
        self._samples.commit(rows, tokens)
        return tokens

    def logits(self, token_ids: Sequence[int], chunk: int) -> Iterator[NDArray[np.float32]]:
        """Teacher-forced logits of a fresh sequence, float32 [n, vocab_size] pieces in order of tokens."""
        chunk = min(chunk, self.limits.max_num_batched_tokens)
        try:
            for begin in range(0, len(token_ids), chunk):
                tokens = list(token_ids[begin : begin + chunk])
                bucket = self._write([ScheduledRows(-1, 0, begin, tokens, sampled=False)])
                head = bucket.program.marks["head"]
                bucket.replay.run(0, head)
                for first in range(0, len(tokens), MAX_LOGIT_ROWS):
                    rows = range(first, min(first + MAX_LOGIT_ROWS, len(tokens)))
                    self._want(rows)
                    bucket.replay.run(head)
                    yield self._inputs[self._logits][: len(rows)].copy()
        finally:
            self.pages.free(0)

    def _write(self, rows: Sequence[ScheduledRows]) -> _Bucket:
        """Fills the step inputs; returns the smallest bucket that holds the rows."""
        s, at = self._steps, self._inputs
        count = 0
        for scheduled in rows:
            self._map_pages(scheduled.sequence, scheduled.end)
            part = slice(count, count + len(scheduled.token_ids))
            at[s.tokens][part] = scheduled.token_ids
            at[s.positions][part] = np.arange(scheduled.position, scheduled.end)
            at[s.sequences][part] = scheduled.sequence
            count = part.stop
        at[s.num_rows][0] = count
        return next(b for b in self._buckets if b.program.bucket >= count)

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
        return sum(op.row_weight_bytes() for op in self._buckets[0].program.ops)
