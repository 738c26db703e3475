"""Pages and states move between the pool and RAM, within what RAM may take, and what is gone on from stays exact."""

import logging
import random

import numpy as np
import pytest
from golden import ALL
from recorded import Recorded

from strata.config import ServingOptions
from strata.engine.ram_budget import RamBudget

MIB = 1 << 20


def text(seed, count):
    return np.random.default_rng(seed).integers(0, 120, count).tolist()


def engine(name, mib=64, **options):
    settings = {"max_model_len": 256, "max_num_seqs": 1, "threads": 1, **options}
    return Recorded(ALL[name].model_path, ServingOptions(conversation_cache_mib=mib), **settings)


def turns(e, seed, count):
    """A conversation's (hash, reused tokens) by turn, one turn at each `next`."""
    history = text(seed, 80)
    for turn in range(count):
        digest, answer, request = e.run(history, 20, turn)
        yield digest, request.num_cached_tokens
        history = history + answer + text(seed + 1 + turn, 10)


@pytest.mark.parametrize("name", ["llama", "qwen35", "qwen4exp"])
def test_conversations_that_take_turns_in_a_pool_of_one(name):
    want = {seed: list(turns(engine(name), seed, 4)) for seed in (0, 50, 100)}
    e = engine(name)
    assert e.engine.num_pages == 4
    talks = {seed: turns(e, seed, 4) for seed in want}
    got = {seed: [] for seed in want}
    order = [seed for seed in want for _ in range(4)]
    random.Random(1).shuffle(order)
    for seed in order:
        got[seed].append(next(talks[seed]))
    assert got == want
    assert all(reused for _, reused in got[0][1:])
    assert e.engine.session_ram_bytes > 0


def test_without_ram_what_leaves_the_pool_is_gone():
    e = engine("llama", mib=0)
    first = turns(e, 0, 2)
    next(first)
    e.run(text(7, 230), 5)
    assert next(first)[1] == 0
    assert e.engine.session_ram_bytes == 0


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_ram_is_kept_to(name, monkeypatch):
    e = engine(name, mib=1)
    budget = e.engine._store._budget
    monkeypatch.setattr(budget, "limit", lambda used: 200_000)
    for seed in range(0, 300, 10):
        e.run(text(seed, 200), 3)
        assert e.engine.session_ram_bytes <= 200_000
    assert e.engine.session_ram_bytes > 100_000


def test_a_system_prompt_that_many_share_stays(monkeypatch):
    """In a pool too small for all, the longest unused texts go, and the beginning that several share stays."""
    e = engine("qwen35", max_num_seqs=2)
    system = text(1, 100)
    for seed in range(2, 5):
        e.run(system + text(seed, 40), 3, cache_points=(100,))
    monkeypatch.setattr(e.engine._store._budget, "limit", lambda used: 200_000)
    for seed in range(50, 60):
        e.run(text(seed, 200), 3)
    _, _, request = e.run(system + text(5, 40), 3)
    assert request.num_cached_tokens == 64


def test_the_budget_follows_what_is_left(monkeypatch, caplog):
    left, now = [10_000 * MIB], [0.0]
    monkeypatch.setattr("strata.engine.ram_budget.monotonic", lambda: now[0])
    budget = RamBudget(4096 * MIB, lambda: left[0], reserve=500 * MIB)
    assert budget.limit(0) == 4096 * MIB and not caplog.records
    left[0] = 700 * MIB
    assert budget.limit(1000 * MIB) == 4096 * MIB, "read at most once a second"
    now[0] = 1.5
    assert budget.limit(1000 * MIB) == 1200 * MIB
    now[0], left[0] = 3.0, 100 * MIB
    assert budget.limit(300 * MIB) == 0
    with caplog.at_level(logging.WARNING):
        RamBudget(4096 * MIB, lambda: 1500 * MIB, reserve=500 * MIB)
    assert "4096 is more than is left; 1000 MiB are taken" in caplog.text


def test_the_log_says_why_a_prompt_was_not_reused(caplog):
    known = text(1, 200)
    with caplog.at_level(logging.INFO, logger="strata.engine.sessions"):
        e = engine("qwen35")
        e.run(known, 2)
        e.run([known[0] + 1, *known[1:]], 2)
        e.run(known[:150] + text(2, 60), 2)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "request 1: 0 of 200 prompt tokens reused; its first token is new",
        "request 2: 0 of 200 prompt tokens reused; its first token is new",
        "request 3: 0 of 210 prompt tokens reused; it agrees with a known text up to token 150, but the last "
        "checkpoint lies at 0",
    ]
