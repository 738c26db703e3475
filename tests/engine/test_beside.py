"""A long prompt beside answers, on a device that is only a clock: gaps and shares by the times of an H200 at 24 GiB."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from counting_memory import Memory

from strata.engine import reader
from strata.engine.chunk_parts import ChunkParts
from strata.engine.pieces import Cutter
from strata.engine.plan import StepOutput
from strata.engine.request import Request, SamplingParams, Status
from strata.engine.scheduler import Scheduler, SchedulerOptions

LAYERS, ROWS = 48, 8192
EARLY, LATE = 15.0, 40.0  # ms of a step whose experts are in slots, and of one after its topics changed


def part_ms(part, rows):
    """Of a wide chunk: each fourth layer attends to all that was read, and half of the time is the experts' copies."""
    return (28.6 if part % 4 == 0 else 20.3) * (0.5 + 0.5 * rows / ROWS)


class Moment:
    """A stamp."""

    def __init__(self, clock):
        self._clock, self.at = clock, clock.end

    @property
    def passed(self):
        return self.at <= self._clock.now

    def wait(self):
        self._clock.now = max(self._clock.now, self.at)

    def ms_since(self, earlier):
        return self.at - earlier.at


class Clock:
    """A device that computes what was started in order, and a host that takes no time."""

    def __init__(self):
        self.now = self.end = 0.0

    def stamp(self):
        return Moment(self)

    def start(self, ms):
        self.end = max(self.end, self.now) + ms


class Run:
    """Steps as the runner makes them; `decode_ms` by their number, `room`: steps until a first part may start."""

    def __init__(self, decode_ms, room=0):
        self.clock, self._decode_ms, self._room, self._waits = Clock(), decode_ms, room, 0
        self._parts, self.seen, self.steps = ChunkParts(self.clock), [], 0
        self.scheduler = Scheduler(SchedulerOptions(4), Cutter(ROWS), Memory(pages=10**5))

    def add(self, tokens, output):
        request = Request(self.steps * 10 + tokens, list(range(tokens)), SamplingParams(max_tokens=output))
        self.scheduler.add(request)
        return request

    def step(self):
        plan = self.scheduler.schedule()
        output = StepOutput(plan, np.full(len(plan.decode), 7))
        output.prompt_part = plan.prompt.part if plan.prompt else 0
        output.prompt_token_ids |= {tail.request_id: 7 for tail in plan.tails if tail.sampled}
        rows = None
        if len(plan.decode) or plan.tails:
            self.clock.start(self._decode_ms(self.steps))
            output.decode_ms, rows = self._decode_ms(self.steps), self.clock.stamp()
        if plan.prompt is not None:
            self._read(plan, output)
        if rows is not None:
            rows.wait()
            self.seen.append(self.clock.now)
        self._parts.settle(output)
        self.scheduler.update(output)
        self.steps += 1

    def _read(self, plan, output):
        cursor, chunk = plan.prompt, SimpleNamespace(head=LAYERS, replay=SimpleNamespace(check=int))
        if cursor.part == 0 and len(plan.decode):
            self._waits += 1
            output.prompt_waits = self._waits % (self._room + 1) > 0
            if output.prompt_waits:
                return
        count = len(cursor.rows.token_ids)
        self._parts.start(chunk, cursor, output, lambda _, part: self.clock.start(part_ms(part, count)))
        if output.prompt_part == LAYERS and not (len(plan.decode) and cursor.part < LAYERS):
            output.prompt_part = 0
            self.clock.stamp().wait()
            if cursor.rows.sampled:
                output.prompt_token_ids[cursor.rows.request_id] = 7

    def beside(self, tokens):
        """Of a prompt beside two answers: tokens a second of each, longest gap, the prompt's share of its rate."""
        answers = [self.add(7, 10**5), self.add(8, 10**5)]
        while not all(a.output_token_ids for a in answers):
            self.step()
        begin, self.seen = self.clock.now, [self.clock.now]
        prompt = self.add(tokens, 1)
        while prompt.status is not Status.FINISHED:
            self.step()
        took, gaps = self.clock.now - begin, [b - a for a, b in pairwise(self.seen)]
        alone = sum(part_ms(part, ROWS) for part in range(LAYERS)) * tokens / ROWS
        return 1e3 * len(gaps) / took, max(gaps), alone / took


def test_answers_that_are_fast():
    rate, gap, share = Run(lambda step: EARLY, room=7).beside(8 * ROWS)
    assert rate >= 22 and gap <= 80 and share >= 0.55


def test_answers_that_are_slow():
    """The prompt gets less than its share, but it gets on."""
    rate, gap, share = Run(lambda step: LATE, room=7).beside(2 * ROWS)
    assert gap <= 80 and share >= 0.3 and rate >= 14


def test_answers_whose_topics_change():
    """Now and then three steps are slow, until the experts have come."""
    rate, gap, share = Run(lambda step: 34.0 if step % 30 < 3 else EARLY, room=7).beside(8 * ROWS)
    assert rate >= 20 and gap <= 80 and share >= 0.55


def test_a_first_prompt_is_begun_with_one_part():
    """Nobody knows how long a part takes."""
    run = Run(lambda step: EARLY)
    run.beside(ROWS)
    gaps = [b - a for a, b in pairwise(run.seen)]
    assert next(gap for gap in gaps if gap > EARLY) == pytest.approx(EARLY + part_ms(0, ROWS))


def test_nothing_is_drafted_or_run_ahead_beside_a_chunk():
    """Also not in steps for which its budget is spent."""
    run, seen = Run(lambda step: EARLY), []

    def rows(plain, requests, grow):
        seen.append(run.scheduler._reader.busy)
        return plain

    run.scheduler.drafts = SimpleNamespace(rows=rows, update=lambda *_: None, leave=lambda _: None)
    schedule, plans = run.scheduler.schedule, []
    run.scheduler.schedule = lambda: plans.append(schedule()) or plans[-1]
    run.beside(2 * ROWS)
    run.step()
    reading = [plan for plan in plans if plan.reading]
    assert all(plan.decode.hold for plan in reading) and any(plan.prompt is None for plan in reading)
    assert seen and not any(seen)


def test_the_gap_can_be_missed(monkeypatch):
    """Without the bound parts follow a slow step as its time has earned them."""
    monkeypatch.setattr(reader, "GAP_MS", 1e9)
    assert Run(lambda step: LATE).beside(2 * ROWS)[1] > 80
