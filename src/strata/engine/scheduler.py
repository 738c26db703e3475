"""The scheduler: host-only; decides each step's rows from requests and memory's counts, and never sees a model."""

from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from strata.engine.batch import DecodeBatches, accept, ends
from strata.engine.drafts import Speculation
from strata.engine.fairness import FairShare, PromptOrder
from strata.engine.pieces import Cutter
from strata.engine.plan import DecodeRows, ScheduledRows, StartedSequence, StepOutput, StepPlan
from strata.engine.reader import PromptReader
from strata.engine.request import Request, Status
from strata.engine.tails import TailRows
from strata.engine.waiting import QueueLimits, QueuePlace, WaitingRoom
from strata.errors import StrataError
from strata.ops import MAX_STEP_ROWS


class SequenceMemory(Protocol):
    """Where sequences live: places, pages, and what was kept of others. Works between steps."""

    def awaits(self, request: Request) -> bool:
        """Whether another request is reading what this one begins with, so that it had better start later."""

    def start(self, request: Request) -> bool:
        """Gives a request a sequence, room for its prompt, and what is known of its beginning; sets `sequence`,
        `num_computed_tokens` and `num_cached_tokens`. False, and nothing changed, where memory is short."""

    def grow(self, request: Request, cells: int) -> bool:
        """Makes its sequence hold `cells` cells; False where memory is short."""

    def taps(self, request: Request, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """(position, slot) where a chunk of its prompt is to write its state out."""

    def computed(self, request: Request) -> None:
        """More of its prompt is complete; what the chunk's taps wrote can be taken."""

    def park(self, request: Request, void: bool) -> None:
        """Takes its sequence away; what decode wrote is moved out. `void`: a chunk was begun and its state is lost."""

    def end(self, request: Request, void: bool) -> None:
        """Takes the sequence of an ended request away; others may find what it computed."""


@dataclass(frozen=True)
class SchedulerOptions:
    """`prompt_share`: of the time, while others decode, that reading prompts may take; `step_rows`: sequences that a
    step decodes at most, beyond which they take turns."""

    max_num_seqs: int
    prompt_share: float = 0.6
    limits: QueueLimits = field(default_factory=QueueLimits)
    step_rows: int = MAX_STEP_ROWS


class Scheduler:
    """A request waits, reads its prompt, decodes, ends; at any time it may have to make room, or be given up."""

    def __init__(
        self,
        options: SchedulerOptions,
        cutter: Cutter,
        memory: SequenceMemory,
        drafts: Speculation | None = None,
    ):
        self._options, self._cutter, self._memory, self.drafts = options, cutter, memory, drafts
        self._share = FairShare()
        self._order = PromptOrder(self._share)
        self._waiting = WaitingRoom(self._share, options.limits, options.max_num_seqs)
        self._reader = PromptReader(cutter, options.prompt_share, self._order)
        self._prompts: list[Request] = []  # running, in the order they started
        self._batch = DecodeBatches(options.step_rows)
        self._tail_rows = TailRows(options.step_rows)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def running(self) -> list[Request]:
        """Requests that have a sequence; prompts first."""
        return [*self._prompts, *self._batch.requests]

    @property
    def open_requests(self) -> list[Request]:
        """Requests waiting or running."""
        return [*self._waiting.in_turn(), *self.running]

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self._waiting) + len(self._prompts) + len(self._batch)

    def add(self, request: Request) -> None:
        """Queues a request; BusyError where a limit is met."""
        self._waiting.add(request)

    def place(self, request: Request) -> QueuePlace | None:
        """A waiting request's place in the queue."""
        return self._waiting.place(request)

    def abort(self, request: Request) -> None:
        """Ends a request now, wherever it stands."""
        if request.status is not Status.FINISHED:
            self._finish(request, "abort")

    def schedule(self) -> StepPlan:
        """The next step: a row of each sequence that decodes, or of those whose turn it is, prompt tails beside them, a
        part of a prompt chunk."""
        started = self._admit()
        if self._batch.several:
            self._batch.begin()
        for request in self._batch.current.at_page_ends():
            self._grow_decoding(request)
        decoding = len(self._batch) > 0
        if not self._prompts:
            return StepPlan(self._decode_rows(), started=started)
        tails = self._tails()
        if not self._reader.busy:
            self._begin_chunk(decoding)
        if not (decoding or tails or self._reader.busy) and len(self._prompts) > 1:
            self.preempt(self._youngest())  # prompts that hold all memory among them, none finding more
        cursor = self._reader.cursor(decoding)
        if tails:
            rows = self._batch.rows()
        elif self._reader.busy:  # nothing makes these steps longer, or runs before the chunk's next part
            rows = replace(self._batch.rows(), hold=True)
        else:
            rows = self._decode_rows()
        return StepPlan(rows, tails, cursor, started, self._reader.busy)

    def _decode_rows(self) -> DecodeRows:
        """A row of each sequence, and drafts where they pay."""
        rows = self._batch.rows()
        if self.drafts is None:
            return rows
        return self.drafts.rows(rows, self._batch.current.requests, self._memory.grow)

    def update(self, output: StepOutput) -> None:
        """Takes in a step's result; requests that end leave."""
        batch = self._batch.current
        if self.drafts is not None:
            self.drafts.update(output, batch.requests)
        if output.accepted is None:
            ended = batch.advance(output.token_ids, output.faults)
        else:
            ended = batch.advance_by(output.token_ids, output.accepted, output.faults)
        if output.logprobs:
            for request in batch.requests:
                self._log(request, output)
        reading = self._reader.request
        rows = self._reader.update(output)
        if output.plan.tails:
            self._tail_rows.update(output)
        if output.faults:
            for sequence, error in output.faults.items():
                self._fail(sequence, error)
        for request, reason in ended.items():
            if request.status is Status.RUNNING:
                self._finish(request, reason)
        for tail in output.plan.tails:
            self._advance(tail, output)
        if rows is not None and reading is not None:
            self._advance(rows, output)

    def preempt(self, request: Request) -> None:
        """Makes a running request give up its place until there is room again."""
        void = self._reader.drop(request)
        self._leave(request)
        self._memory.park(request, void)
        request.status = Status.PREEMPTED
        self._waiting.put_back(request)

    def _admit(self) -> tuple[StartedSequence, ...]:
        started: list[StartedSequence] = []
        places = self._options.max_num_seqs - len(self._prompts) - len(self._batch)
        if not places or not len(self._waiting):
            return ()
        for request in self._waiting.in_turn():
            if self._memory.awaits(request):
                continue
            if len(started) == places or not self._memory.start(request):
                break
            self._waiting.remove(request)
            request.status = Status.RUNNING
            request.timings.started = request.timings.started or perf_counter()
            started.append(self._started(request))
            if request.output_token_ids and request.num_computed_tokens == request.num_tokens - 1:
                self._batch.join(request)
            else:
                if not self._prompts:
                    self._tail_rows.reset()
                self._prompts.append(request)
                self._order.enter(request)
        return tuple(started)

    def _started(self, r: Request) -> StartedSequence:
        return StartedSequence(
            r.sequence, r.prompt_token_ids, r.sampling, r.mask, r.output_token_ids, r.pooling
        )

    def _grow_decoding(self, request: Request) -> None:
        """A page for a sequence whose next row begins one; where memory is short, the youngest make room."""
        while request.status is Status.RUNNING:
            if self._memory.grow(request, request.num_computed_tokens + 1):
                return
            self.preempt(self._youngest())

    def _youngest(self) -> Request:
        return max(self.running, key=lambda r: (not r.output_token_ids, r.timings.started, r.request_id))

    def _tails(self) -> tuple[ScheduledRows, ...]:
        """Of prompts whose next tokens take the step form, as many rows as fit beside the decoding ones."""
        tails, left = [], self._tail_rows.most(len(self._batch.current))
        for request in self._prompts:
            begin = request.num_computed_tokens
            piece = self._cutter.cut(begin, request.num_tokens - begin)
            count = min(piece.count, left)
            if piece.form == "step" and count and self._memory.grow(request, begin + count):
                tails.append(_rows(request, begin + count))
                left -= count
        return tuple(tails)

    def _begin_chunk(self, decoding: bool) -> None:
        ready = [r for r in self._prompts if self._reader.chunk_rows(r, decoding)]
        while ready:
            request = self._reader.pick(ready)
            begin = request.num_computed_tokens
            end = begin + self._reader.chunk_rows(request, decoding)
            if self._memory.grow(request, end):
                taps = self._memory.taps(request, begin, end)
                self._reader.begin(request, _rows(request, end), taps)
                return
            ready.remove(request)

    def _advance(self, rows: ScheduledRows, output: StepOutput) -> None:
        """A prompt's rows are computed; one that ends decodes from now on."""
        request = next((r for r in self._prompts if r.request_id == rows.request_id), None)
        if request is None:
            return
        request.num_computed_tokens = rows.end
        self._order.advance(request, len(rows.token_ids))
        self._memory.computed(request)
        token = output.prompt_token_ids.get(rows.request_id)
        if token is None:
            return
        self._prompts.remove(request)
        self._order.leave(request)
        request.output_token_ids.append(token)
        request.timings.first_token = request.timings.first_token or perf_counter()
        self._log(request, output)
        self._batch.join(request)
        reason = "error" if not accept(request, token) else ends(request, token)
        if reason is not None:
            self._finish(request, reason)

    def _log(self, request: Request, output: StepOutput) -> None:
        for found in output.logprobs.get(request.sequence, ()):
            request.logprobs.append(found.chosen)
            request.top_logprobs.append(found.top)

    def _fail(self, sequence: int, error: StrataError) -> None:
        request = next((r for r in self.running if r.sequence == sequence), None)
        if request is not None:
            request.error = error
            if request in self._batch.requests:
                request.output_token_ids.pop()  # what stands for nothing
            self._finish(request, "error")

    def _leave(self, request: Request) -> None:
        if request in self._prompts:
            self._prompts.remove(request)
            self._order.leave(request)
        else:
            self._batch.leave(request)
        if self.drafts is not None:
            self.drafts.leave(request)

    def _finish(self, request: Request, reason: str) -> None:
        void = self._reader.drop(request) or reason == "error"
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            self._leave(request)
        request.finish_reason = reason
        self._memory.end(request, void)
        request.status, request.timings.finished = Status.FINISHED, perf_counter()
        self._waiting.closed(request)


def _rows(request: Request, end: int) -> ScheduledRows:
    begin = request.num_computed_tokens
    tokens, sampled = request.tokens(begin, end), end == request.num_tokens
    return ScheduledRows(request.request_id, request.sequence, begin, tokens, sampled)
