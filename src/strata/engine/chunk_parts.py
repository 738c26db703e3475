"""The device's side of the prompt cursor: parts of a chunk are started within a budget of its time.

A backend that computes while the host goes on is not waited for: how long parts last is read from stamps when they have
passed, which may be a step later. Until then their time is an estimate, and the next step's time makes up for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from strata.backends import Backend, Stamp
from strata.engine.plan import PromptCursor, StepOutput, StepPlan
from strata.engine.programs import Lowered

AHEAD = 3  # parts under way before the host waits for the oldest


@dataclass(frozen=True)
class _Span:
    """Parts that one step started."""

    begin: Stamp
    end: Stamp
    parts: int
    told_ms: float  # what the step said they take


class DecodeTimer:
    """How long decode rows take on a device that has prompt parts to compute before and after them."""

    def __init__(self, backend: Backend | None):
        self._backend = backend
        self._begin = self._end = None if backend is None else backend.stamp()

    def stop(self) -> None:
        """Everything of the rows is started."""
        self._end = None if self._backend is None else self._backend.stamp()

    @property
    def ms(self) -> float:
        """Milliseconds, when the rows are done; 0 where nothing of prompts is under way, so that the clock tells."""
        if self._begin is None or self._end is None:
            return 0.0
        self._end.wait()  # what was sampled may be seen a little before it
        return self._end.ms_since(self._begin)


class ChunkParts:
    """Of a runner."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._spans: list[_Span] = []

    def start(
        self, chunk: Lowered, cursor: PromptCursor, output: StepOutput, submit: Callable[[Lowered, int], None]
    ) -> None:
        """Starts parts by `submit`, at least one, until those that are started fill the budget, or one more would take
        them beyond the most; `prompt_part` says which comes next, and is the head's where the chunk's layers are all
        started. Where a most is set and nobody knows how long a part takes, one is started and not waited for."""
        output.prompt_part, output.prompt_parts = cursor.part, chunk.head
        if cursor.part >= chunk.head:
            return
        moments, done, spent, each, part = [self._backend.stamp()], 0, 0.0, cursor.part_ms, cursor.part
        while part < chunk.head:
            submit(chunk, part)
            part += 1
            moments.append(self._backend.stamp())
            if not each and isfinite(cursor.most_ms):
                break
            if not each or len(moments) - 1 - done > AHEAD:
                done += 1
                moments[done].wait()
                chunk.replay.check()
                spent = moments[done].ms_since(moments[0])
                each = spent / done
            started = spent + each * (len(moments) - 1 - done)
            if started >= cursor.budget_ms or started + each > cursor.most_ms:
                break
        told = spent + each * (len(moments) - 1 - done)
        self._spans.append(_Span(moments[0], moments[-1], len(moments) - 1, told))
        output.prompt_part, output.prompt_ms = part, told

    def drain(self) -> None:
        """Waits for all parts that are under way."""
        if self._spans:
            self._spans[-1].end.wait()

    def timer(self, plan: StepPlan) -> DecodeTimer:
        """Made before the rows of a plan are started."""
        return DecodeTimer(self._backend if plan.prompt is not None or self._spans else None)

    def settle(self, output: StepOutput) -> None:
        """At a step's end: takes in how long parts really lasted, of this step and of those before it."""
        while self._spans and self._spans[0].end.passed:
            span = self._spans.pop(0)
            took = span.end.ms_since(span.begin)
            output.prompt_ms += took - span.told_ms
            output.part_ms = took / span.parts
