"""An answer's logits have one hash: alone, in any batch, after a cached prefix, after preemption, after a restart."""

import random

import numpy as np
import pytest
from golden import ALL
from recorded import Recorded

from strata.config import ServingOptions
from strata.engine.keeper import Keeper

NAMES = ["llama", "qwen35", "qwen4exp"]


def text(seed, count):
    return np.random.default_rng(seed).integers(0, 120, count).tolist()


def engine(name, serving=None, **options):
    return Recorded(ALL[name].model_path, serving, **options)


PROMPTS = [text(0, 200), text(1, 64), text(2, 130), text(3, 9), text(4, 63), text(5, 128)]


@pytest.fixture(scope="module")
def alone():
    """Hashes of every prompt's answer in an engine of its own, by model."""
    return {name: [engine(name).run(p, 12, seed)[0] for seed, p in enumerate(PROMPTS)] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_in_a_batch(name, alone):
    e = engine(name)
    assert e.finish(*(e.add(p, 12, seed) for seed, p in enumerate(PROMPTS))) == alone[name]


@pytest.mark.parametrize("name", NAMES)
def test_arrivals_between_the_layers_of_a_prompt(name, alone, monkeypatch):
    """With budgets that let one layer run a step, decoding goes on inside the chunks of others."""
    monkeypatch.setattr("strata.engine.reader.ALONE_MS", 0.0)
    monkeypatch.setattr("strata.engine.reader.MOST_CREDIT_MS", 1e-6)
    e, steps, requests = engine(name), 0, []
    while len(requests) < len(PROMPTS) or any(r.finish_reason is None for r in requests):
        if steps % 3 == 0 and len(requests) < len(PROMPTS):
            requests.append(e.add(PROMPTS[len(requests)], 12, len(requests)))
        e.engine.step()
        steps += 1
    assert [e.digest(r) for r in requests] == alone[name]


@pytest.mark.parametrize("name", NAMES)
def test_with_preemption_at_random(name, alone):
    e, chance, forced = engine(name), random.Random(7), 0

    def preempt():
        nonlocal forced
        running = e.engine.scheduler.running
        if running and chance.random() < 0.4:
            e.engine.scheduler.preempt(chance.choice(running))
            forced += 1

    hashes = e.finish(*(e.add(p, 12, seed) for seed, p in enumerate(PROMPTS)), between=preempt)
    assert forced > 10
    assert hashes == alone[name]


@pytest.mark.parametrize("name", NAMES)
def test_after_a_prefix_that_was_read_as_a_prompt(name):
    shared = text(10, 200)
    for prompt in (shared + text(11, 70), shared + text(12, 3), shared[:150] + text(13, 100), shared):
        want = engine(name).run(prompt)[0]
        e = engine(name)
        e.run(shared + text(14, 20), 1, cache_points=(150,))
        got, _, request = e.run(prompt)
        assert got == want
        assert request.num_cached_tokens >= 128


def conversation(e, turns=3, between=lambda e: e):
    """Hashes of the turns of one conversation, and how much of each prompt was known."""
    history, found = text(20, 90), []
    for turn in range(turns):
        digest, answer, request = e.run(history, 30, turn)
        found.append((digest, len(history), request.num_cached_tokens))
        history = history + answer + text(21 + turn, 25)
        e = between(e)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_goes_on_after_restarts(name, tmp_path):
    want = conversation(engine(name))
    serving = ServingOptions(session_dir=str(tmp_path))

    def restart(e):
        e.engine.close()
        return engine(name, serving)

    got = conversation(engine(name, serving), between=restart)
    assert [g[0] for g in got] == [w[0] for w in want]
    assert [g[2] for g in got] == [w[2] for w in want] == [0, 119, 174]


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_is_not_the_right_one_shows(name, monkeypatch):
    want = conversation(engine(name))

    def blurred(keeper, source, target):
        for buffer in keeper._state.paged():
            keeper._at(buffer)[target] = np.roll(keeper._at(buffer)[source], 1, axis=-1)

    monkeypatch.setattr(Keeper, "copy_page", blurred)
    got = conversation(engine(name))
    assert got[0] == want[0]
    assert got[1][0] != want[1][0]
