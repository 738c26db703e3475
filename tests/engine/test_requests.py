"""Requests one after the other and side by side: nothing of one is left for another."""

import pytest

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams, Status
from strata.errors import ContextLengthError, UsageError


def load(path, **options):
    return Engine.load(path, EngineOptions(**{"max_model_len": 128, "threads": 1, **options}))


def finish(engine, requests):
    while any(r.status is not Status.FINISHED for r in requests):
        engine.step()
    return [r.output_token_ids for r in requests]


def test_penalties_forget_the_request_before(tiny_llama, tokens):
    engine = load(tiny_llama)
    sampling = SamplingParams(max_tokens=20, repetition_penalty=2.0, frequency_penalty=2.0)
    want = list(engine.generate(tokens[:20], sampling))
    other = list(engine.generate(tokens[40:100], sampling))
    assert list(engine.generate(tokens[:20], sampling)) == want
    assert list(engine.generate(tokens[40:100], sampling)) == other
    plain = list(engine.generate(tokens[:20], SamplingParams(max_tokens=20)))
    assert plain != want, "so the penalties do something"


def test_a_closed_request_leaves_its_pages_and_its_place(tiny_llama, tokens):
    engine = load(tiny_llama)
    for _ in range(3):  # each takes both pages there are
        running = engine.generate(tokens[:100], SamplingParams(max_tokens=8))
        next(running)
        with pytest.raises(UsageError, match="idle"):
            engine.logits(tokens[:2])
        running.close()
    assert len(list(engine.logits(tokens[:2]))) == 1


def test_a_waiting_request_can_be_ended(tiny_llama, tokens):
    engine = load(tiny_llama)
    first, second, third = (engine.add(tokens[i : i + 9], SamplingParams(max_tokens=3)) for i in range(3))
    engine.abort(second)
    outputs = finish(engine, [first, second, third])
    assert [len(output) for output in outputs] == [3, 0, 3]
    assert [r.finish_reason for r in (first, second, third)] == ["length", "abort", "length"]
    assert list(engine.generate(tokens[2:11], SamplingParams(max_tokens=3))) == outputs[2]


def test_biases_are_each_requests_own(tiny_llama, tokens):
    engine = load(tiny_llama, max_num_seqs=3)
    requests = [
        engine.add(tokens[:9], SamplingParams(max_tokens=3, logit_bias={7 + i: 1000.0})) for i in range(3)
    ]
    assert finish(engine, requests) == [[7] * 3, [8] * 3, [9] * 3]


def test_stop_tokens_end_unless_they_are_ignored(tiny_llama, tokens):
    engine = load(tiny_llama)
    settings = {"max_tokens": 4, "logit_bias": {7: 1000.0}, "stop_token_ids": frozenset({7})}
    assert list(engine.generate(tokens[:9], SamplingParams(**settings))) == [7]
    assert list(engine.generate(tokens[:9], SamplingParams(**settings, ignore_eos=True))) == [7] * 4


def test_borders_of_the_context(tiny_llama, tokens):
    engine, many = load(tiny_llama), SamplingParams(max_tokens=50)
    for length, room in ((126, 2), (127, 1), (128, 1)):  # the last token needs no cell
        assert len(list(engine.generate(tokens[:length], many))) == room
    with pytest.raises(ContextLengthError, match="129 tokens; a context holds at most 128"):
        engine.add(tokens[:129], many)
    assert sum(len(rows) for rows in engine.logits(tokens[:128])) == 128
    with pytest.raises(ContextLengthError, match="129 tokens"):
        engine.logits(tokens[:129])


def test_random_numbers_are_keyed_by_seed_and_position(tiny_llama, tokens):
    """So hot that logits hardly count: positions draw apart, and a text read back goes on as it went."""
    engine = load(tiny_llama)
    hot = SamplingParams(max_tokens=24, temperature=1e4, seed=5)
    output = list(engine.generate(tokens[:20], hot))
    assert len(set(output)) > 12
    assert list(engine.generate(tokens[:20] + output[:9], hot))[:15] == output[9:]
    assert list(engine.generate(tokens[:21], hot))[:10] != output[:10]
    assert (
        list(engine.generate(tokens[:20], SamplingParams(max_tokens=24, temperature=1e4, seed=6))) != output
    )


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties_count_what_was_generated(tiny_llama, tokens, penalty):
    """Where all likely tokens but the last have been generated, greedy decoding still finds another."""
    engine = load(tiny_llama)
    first = {i: 500.0 - i for i in range(12)}  # in this order, while none is penalised
    output = list(
        engine.generate(tokens[100:103], SamplingParams(max_tokens=12, logit_bias=first, **{penalty: 900.0}))
    )
    assert sorted(output) == list(range(12))
    assert list(engine.generate(tokens[100:103], SamplingParams(max_tokens=3, logit_bias=first))) == [0] * 3
