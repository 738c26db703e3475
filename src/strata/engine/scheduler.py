"""The scheduler: host-only; decides each step's rows from requests alone and never sees a model or a device."""

from collections import deque

from strata.engine.pieces import Cutter
from strata.engine.plan import ScheduledRows, StartedSequence, StepOutput, StepPlan
from strata.engine.request import Request, Status
from strata.ops import MAX_STEP_ROWS


class Scheduler:
    """First come, first served, up to `max_num_seqs` at once."""

    def __init__(self, max_num_seqs: int, cutter: Cutter):
        self._cutter = cutter
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._sequences = list(range(max_num_seqs - 1, -1, -1))
        self._ended: list[int] = []  # sequences left since the last plan

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """Ends a request now, wherever it stands."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request.status is not Status.FINISHED:
            self._finish(request, "abort")

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self._waiting) + len(self._running)

    def schedule(self) -> StepPlan:
        """The next step: a row of each sequence that decodes, prompt tails that fit beside them, one prompt chunk."""
        ended, self._ended = tuple(self._ended), []
        started = self._admit()
        rows: list[ScheduledRows] = []
        chunk, left = None, MAX_STEP_ROWS
        for request in sorted(self._running, key=lambda r: r.num_tokens - r.num_computed_tokens > 1):
            begin = request.num_computed_tokens
            piece = self._cutter.cut(begin, request.num_tokens - begin)
            if piece.form == "chunk" and chunk is None:
                chunk = _rows(request, begin + piece.count)
            elif piece.form == "step" and left:
                rows.append(_rows(request, begin + min(piece.count, left)))
                left -= len(rows[-1].token_ids)
        return StepPlan(tuple(rows), chunk, started, ended)

    def update(self, output: StepOutput) -> None:
        """Takes in a step's result; requests that end leave."""
        running = {request.request_id: request for request in self._running}
        for scheduled in output.plan.scheduled():
            request = running.get(scheduled.request_id)
            if request is None:
                continue  # aborted while the step ran
            request.num_computed_tokens = scheduled.end
            if scheduled.request_id in output.token_ids:
                self._append(request, output.token_ids[scheduled.request_id])

    def _append(self, request: Request, token: int) -> None:
        request.output_token_ids.append(token)
        sampling = request.sampling
        if token in sampling.stop_token_ids and not sampling.ignore_eos:
            self._finish(request, "stop")
        elif len(request.output_token_ids) >= sampling.max_tokens:
            self._finish(request, "length")

    def _admit(self) -> tuple[StartedSequence, ...]:
        started = []
        while self._waiting and self._sequences:
            request = self._waiting.popleft()
            request.sequence, request.status = self._sequences.pop(), Status.RUNNING
            self._running.append(request)
            started.append(StartedSequence(request.sequence, request.prompt_token_ids, request.sampling))
        return tuple(started)

    def _finish(self, request: Request, reason: str) -> None:
        if request in self._running:
            self._running.remove(request)
            self._sequences.append(request.sequence)
            self._ended.append(request.sequence)
        request.status, request.finish_reason = Status.FINISHED, reason


def _rows(request: Request, end: int) -> ScheduledRows:
    begin = request.num_computed_tokens
    tokens, sampled = request.tokens(begin, end), end == request.num_tokens
    return ScheduledRows(request.request_id, request.sequence, begin, tokens, sampled)
