"""A request that is given up takes part in no step after the one that runs."""

import asyncio
import time

import pytest

from strata.engine import SamplingParams
from strata.server.ticket import Submission


def steps_after_cancel(thread):
    """Steps that ran after a request was given up in the middle of its answer."""

    async def give_up():
        ticket = thread.submit(Submission([1, 2, 3], SamplingParams(max_tokens=300, ignore_eos=True)))
        await ticket.events.get()
        thread.cancel(ticket)
        steps = thread.num_steps
        while thread.num_open:
            await asyncio.sleep(0.001)
        return thread.num_steps - steps

    return asyncio.run(give_up())


@pytest.fixture
def thread(tiny_server):
    return tiny_server.service.engine


def test_at_most_the_step_that_runs(thread):
    assert max(steps_after_cancel(thread) for _ in range(50)) <= 1


def test_a_cancel_that_gets_lost_is_seen(tiny_server, thread, monkeypatch):
    """Steps are held up a little: most of them come after the first token was seen."""
    step = tiny_server.engine.step
    monkeypatch.setattr(tiny_server.engine, "step", lambda: (time.sleep(0.01), step())[1])
    monkeypatch.setattr(thread, "cancel", lambda _: None)
    assert steps_after_cancel(thread) > 10  # drafts make them fewer than tokens
