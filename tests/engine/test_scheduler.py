"""The scheduler alone: no model, no device, a memory that counts."""

import random

import numpy as np
import pytest
from counting_memory import Memory

from strata.engine.pieces import Cutter
from strata.engine.plan import DecodeRows, StepOutput, StepPlan
from strata.engine.request import Request, SamplingParams, Status
from strata.engine.scheduler import Scheduler, SchedulerOptions
from strata.engine.tails import TailRows
from strata.engine.waiting import QueueLimits
from strata.errors import BusyError

PARTS = 4  # of a chunk


class Run:
    """Steps a scheduler as if each part of a chunk took 2 ms for 512 rows, and each decode step 4 ms."""

    def __init__(self, memory=None, parallel=8, prefill=512, limits=None, share=0.4, **options):
        self.memory = memory or Memory()
        options = SchedulerOptions(parallel, share, limits or QueueLimits(), **options)
        self.scheduler = Scheduler(options, Cutter(prefill), self.memory)
        self.ids, self.plans, self.now = iter(range(10**6)), [], 0.0

    def add(self, tokens, output=4, client=""):
        request = Request(next(self.ids), list(range(tokens)), SamplingParams(max_tokens=output), client)
        self.scheduler.add(request)
        return request

    def step(self):
        plan = self.scheduler.schedule()
        self.plans.append(plan)
        prompts, part, prompt_ms, part_ms = {}, 0, 0.0, 0.0
        if plan.prompt is not None:
            rows, part = plan.prompt.rows, plan.prompt.part
            part_ms = 2.0 * len(rows.token_ids) / 512
            while part == plan.prompt.part or (part < PARTS and prompt_ms < plan.prompt.budget_ms):
                part, prompt_ms = part + 1, prompt_ms + part_ms
            part %= PARTS
            if part == 0 and rows.sampled:
                prompts[rows.request_id] = 7
        prompts |= {tail.request_id: 7 for tail in plan.tails if tail.sampled}
        decode_ms = 4.0 if len(plan.decode) or plan.tails else 0.0
        output = StepOutput(
            plan, np.full(len(plan.decode), 7), prompts, part,
            prompt_ms=prompt_ms, decode_ms=decode_ms, part_ms=part_ms,
        )  # fmt: skip
        self.scheduler.update(output)
        self.now += prompt_ms + decode_ms
        return plan

    def until(self, *requests, most=10**5):
        for _ in range(most):
            if all(r.status is Status.FINISHED for r in requests):
                return
            self.step()
        raise AssertionError("never ends")


def test_prompts_are_read_in_blocks_and_tails_by_rows():
    run = Run(prefill=128)
    run.until(run.add(200, output=1))
    chunks = {(p.prompt.rows.position, len(p.prompt.rows.token_ids)) for p in run.plans if p.prompt}
    assert chunks == {(0, 128), (128, 64)}
    assert [len(t.token_ids) for p in run.plans for t in p.tails] == [8]


def test_tails_beside_answers_are_few_where_steps_of_many_rows_are_slow():
    run = Run(step_rows=8)
    answers = [run.add(5, output=100) for _ in range(2)]
    while not all(a.output_token_ids for a in answers):
        run.step()
    first = len(run.plans)
    run.until(run.add(40, output=1))
    tails = [sum(len(t.token_ids) for t in p.tails) for p in run.plans[first:] if p.tails]
    assert tails == [2, 4, 6, 6, 6, 6, 6, 4]
    run.until(*answers)
    first = len(run.plans)
    run.until(run.add(40, output=1))
    assert [len(t.token_ids) for p in run.plans[first:] for t in p.tails] == [32, 8]


def test_a_tail_whose_steps_are_slow_takes_fewer_rows():
    """Until they are fast again; the next prompt's begins with few."""
    tails, decode = TailRows(8), DecodeRows(*(np.zeros(2, np.int32),) * 3)

    def after(ms):
        tails.update(StepOutput(StepPlan(decode), decode_ms=ms))
        return tails.most(2)

    assert [after(ms) for ms in (20, 20, 20, 50, 80, 80, 80, 30)] == [4, 6, 6, 6, 3, 2, 2, 4]
    assert tails.most(7) == 2
    tails.update(StepOutput(StepPlan(), decode_ms=200))
    assert tails.most(2) == 4
    tails.reset()
    assert tails.most(2) == 2
    assert tails.most(0) == 32
    assert TailRows(32).most(2) == 30


def test_decoding_keeps_its_share_of_the_time():
    run = Run(share=0.4)
    answer = run.add(5, output=10**5)
    while not answer.output_token_ids:
        run.step()
    begin, first = run.now, len(answer.output_token_ids)
    run.until(run.add(8192, output=1))
    decoding = (len(answer.output_token_ids) - first) * 4.0
    assert decoding / (run.now - begin) == pytest.approx(0.6, abs=0.03)
    assert max(2.0 * len(p.prompt.rows.token_ids) / 512 for p in run.plans if p.prompt) <= 2.0


def test_a_prompt_alone_is_read_at_once_and_cancelled_within_a_step():
    run = Run()
    prompt = run.add(4096)
    run.step()
    run.step()
    run.scheduler.abort(prompt)
    plan = run.step()
    assert plan.prompt is None and not plan.tails and prompt.finish_reason == "abort"
    assert run.memory.free == 1000


def test_a_short_prompt_passes_a_long_one_and_the_long_one_does_not_starve():
    run = Run()
    long = run.add(16384, output=1)
    run.step()
    short = run.add(300, output=1)
    run.until(short)
    assert long.num_computed_tokens < 2048
    while long.status is not Status.FINISHED:
        if len(run.scheduler.running) < 4:
            run.add(300, output=1)
        run.step()
        assert len(run.plans) < 3000


def test_clients_share_however_many_requests_each_has():
    run = Run(parallel=2, memory=Memory(sequences=2))
    many = [run.add(600, output=20, client="many") for _ in range(20)]
    one = [run.add(600, output=20, client="one") for _ in range(3)]
    run.until(*one)
    assert sum(r.status is Status.FINISHED for r in many) <= 6
    run.until(*many)


def test_one_client_is_served_in_the_order_it_came():
    run = Run(parallel=1)
    requests = [run.add(10) for _ in range(5)]
    assert [run.scheduler.place(r).position for r in requests] == [1, 2, 3, 4, 5]
    run.until(*requests[:2])
    run.step()
    assert [run.scheduler.place(r) and run.scheduler.place(r).position for r in requests[2:]] == [None, 1, 2]
    run.until(*requests)
    assert [r.timings.finished for r in requests] == sorted(r.timings.finished for r in requests)


def test_limits():
    run = Run(limits=QueueLimits(open=3, per_client=2))
    first = run.add(5, client="a")
    run.add(5, client="a")
    with pytest.raises(BusyError, match="2 requests of this key are open, as many as --max-per-key"):
        run.add(5, client="a")
    run.add(5, client="b")
    with pytest.raises(BusyError, match="3 requests are open; --max-queue allows 3"):
        run.add(5, client="c")
    run.until(first)
    run.add(5, client="c")


def test_nothing_is_admitted_that_memory_cannot_hold():
    run = Run(memory=Memory(pages=10))
    first, second = run.add(500), run.add(200)
    run.step()
    assert (first.status, second.status) == (Status.RUNNING, Status.WAITING)
    run.until(first, second)
    assert run.memory.preempted == 0


def test_growing_answers_make_the_youngest_give_way():
    run = Run(memory=Memory(pages=8))
    first, second = run.add(60, output=400), run.add(60, output=400)
    run.until(first, second)
    assert run.memory.preempted >= 1
    assert (len(first.output_token_ids), len(second.output_token_ids)) == (400, 400)
    assert first.timings.finished < second.timings.finished


def test_any_mix_of_arrivals_cancels_and_preemptions_ends():
    for seed in range(20):
        chance, run = random.Random(seed), Run(memory=Memory(pages=24, sequences=6), parallel=6)
        requests = []
        for _ in range(400):
            if chance.random() < 0.2 and len(requests) < 40:
                requests.append(
                    run.add(chance.randint(1, 700), chance.randint(1, 90), str(chance.randint(0, 3)))
                )
            if chance.random() < 0.03 and requests:
                run.scheduler.abort(chance.choice(requests))
            if chance.random() < 0.05 and run.scheduler.running:
                run.scheduler.preempt(chance.choice(run.scheduler.running))
            run.step()
        run.until(*requests)
        assert (run.memory.free, len(run.memory.places), run.scheduler.num_unfinished) == (24, 6, 0)
        complete = [r for r in requests if r.finish_reason == "length"]
        assert all(len(r.output_token_ids) == r.sampling.max_tokens for r in complete)
