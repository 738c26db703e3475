"""Python between replays: a decode step makes a bounded number of calls, and one more for each row."""

import sys

import pytest

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.batch import DecodeBatch

CALLS, A_ROW = 100, 1
LOOKED_UP = 250  # calls a row of text that repeats, with its drafts decided on and verified


def calls_of_a_step(engine):
    """Python and C functions called in one step, outside native code."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return counted


def decoding(path, rows, lookup="off"):
    options = EngineOptions(max_model_len=256, max_num_seqs=32, threads=1, lookup=lookup)
    engine = Engine.load(path, options)
    requests = [engine.add([1, 2, 3, i], SamplingParams(max_tokens=100)) for i in range(rows)]
    while any(len(r.output_token_ids) < 5 for r in requests):
        engine.step()
    return engine


@pytest.fixture
def calls(tiny_llama):
    return {rows: calls_of_a_step(decoding(tiny_llama, rows)) for rows in (1, 8, 32)}


def test_calls_are_bounded_and_grow_by_one_a_row(calls):
    assert calls[1] <= CALLS
    assert calls[8] - calls[1] <= 7 * A_ROW
    assert calls[32] - calls[8] <= 24 * A_ROW


def test_lookups_are_bounded_and_full_steps_have_none(tiny_llama):
    few = [calls_of_a_step(engine) for engine in [decoding(tiny_llama, 8, "on")] for _ in range(6)]
    assert max(few) <= CALLS + 8 * LOOKED_UP
    assert calls_of_a_step(decoding(tiny_llama, 32, "on")) <= CALLS + 32 * A_ROW


def test_another_call_a_row_is_seen(tiny_llama, monkeypatch):
    plain = DecodeBatch.advance

    def slow(batch, *arguments):
        for request in batch.requests:
            str(request.request_id)
            len(request.output_token_ids)
        return plain(batch, *arguments)

    monkeypatch.setattr(DecodeBatch, "advance", slow)
    few, many = (calls_of_a_step(decoding(tiny_llama, rows)) for rows in (8, 32))
    assert many - few > 24 * A_ROW
