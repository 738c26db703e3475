"""What one request asks for, or does wrong, touches no other: masks, log-probabilities, faults, cancels."""

import numpy as np
import pytest
from recorded import Recorded
from tiny import VOCAB

from strata.engine import SamplingParams, Status
from strata.errors import FaultError, UsageError

WORDS = -(-VOCAB // 32)


@pytest.fixture
def recorded(tiny_llama):
    return Recorded(tiny_llama, max_num_seqs=6)


class Only:
    """Allows a list of tokens, one after the other."""

    def __init__(self, *tokens):
        self.tokens, self.seen = list(tokens), []

    def fill(self, allowed):
        assert allowed.shape == (WORDS,) and allowed.dtype == np.int32
        allowed[:] = 0
        token = self.tokens[len(self.seen)]
        if token is None:
            raise UsageError("no way on")
        if token >= 0:
            allowed.view(np.uint32)[token // 32] = 1 << (token % 32)

    def accept(self, token):
        self.seen.append(token)


def test_a_mask_rules_its_own_request(recorded, tokens):
    free = recorded.run(tokens[:70], 5)[0]
    mask = Only(7, 319, 0, 31, 32)
    bound = recorded.add(tokens[:70], 5, mask=mask)
    other = recorded.add(tokens[:70], 5)
    hashes = recorded.finish(bound, other)
    assert bound.output_token_ids == mask.seen == [7, 319, 0, 31, 32]
    assert hashes[1] == free


@pytest.mark.parametrize(("broken", "message"), [(None, "no way on"), (-1, "leaves no token")])
def test_a_mask_that_fails_ends_its_request_alone(recorded, tokens, broken, message):
    free = recorded.run(tokens[:70], 5)[0]
    bound = recorded.add(tokens[:70], 5, mask=Only(7, 8, broken))
    other = recorded.add(tokens[:70], 5)
    while Status.FINISHED not in (bound.status, other.status):
        recorded.engine.step()
    assert (bound.finish_reason, bound.output_token_ids) == ("error", [7, 8])
    assert message in str(bound.error)
    assert recorded.finish(other) == [free]


def test_log_probabilities_are_the_models_own(recorded, tokens):
    plain = recorded.add(tokens[:70], 4)
    sampling = SamplingParams(max_tokens=4, logprobs=3, logit_bias={5: 1000.0})
    told = recorded.engine.add(tokens[:70], sampling)
    recorded.finish(plain, told)
    rows = np.concatenate(list(recorded.engine.logits(tokens[:70] + told.output_token_ids)))[69:-1]
    want = rows - np.log(np.exp(rows.astype(np.float64)).sum(-1, keepdims=True))
    assert told.output_token_ids == [5] * 4
    np.testing.assert_allclose(told.logprobs, want[:, 5], rtol=1e-5)
    for row, top in zip(want, told.top_logprobs, strict=True):
        assert [i for i, _ in top] == np.argsort(-row)[:3].tolist()
        np.testing.assert_allclose([p for _, p in top], np.sort(row)[::-1][:3], rtol=1e-5)
    assert plain.logprobs == []
    with pytest.raises(UsageError, match="129 top log-probabilities"):
        recorded.engine.add(tokens[:5], SamplingParams(logprobs=129))


class Poisoned:
    """A replay that reports a fault whenever a token is among the step's rows."""

    def __init__(self, replay, runner, token):
        self._replay, self._runner, self._token = replay, runner, token

    def run(self, *part):
        self._replay.run(*part)
        s, at = self._runner._buffers.step, self._runner._at
        if self._token in at[s.tokens][: at[s.num_rows][0]]:
            raise FaultError("planted")

    def submit(self, *part):
        self.run(*part)


def poison(engine, token):
    programs, runner = engine._runner.programs, engine._runner
    for lowered in set(programs.step_of):
        object.__setattr__(lowered, "replay", Poisoned(lowered.replay, runner, token))


@pytest.mark.parametrize("count", [1, 3])
def test_a_fault_ends_the_request_at_fault_alone(tiny_llama, tokens, count):
    prompts = [tokens[i : i + 70 + i] for i in range(count)]
    free = Recorded(tiny_llama, max_num_seqs=6)
    want = free.finish(*(free.add(p, 6, seed) for seed, p in enumerate(prompts)))
    e = Recorded(tiny_llama, max_num_seqs=6)
    poison(e.engine, 313)
    others = [e.add(p, 6, seed) for seed, p in enumerate(prompts)]
    bad = e.engine.add([1, 2, 3], SamplingParams(max_tokens=9, logit_bias={313: 1000.0}))
    read = e.engine.add([1, 313, 3], SamplingParams(max_tokens=9))
    assert e.finish(*others) == want
    assert (bad.finish_reason, bad.output_token_ids, str(bad.error)) == ("error", [313], "planted")
    assert (read.finish_reason, read.output_token_ids) == ("error", [])
    assert e.engine.num_free_pages == e.engine.num_pages
    assert e.run(prompts[0], 6, 0)[0] == want[0], "the next request works"


def test_prompts_and_answers_are_cancelled_within_a_step(recorded, tokens, monkeypatch):
    monkeypatch.setattr("strata.engine.reader.ALONE_MS", 0.0)
    long = recorded.add((tokens * 4)[:500], 5)
    answer = recorded.add(tokens[:5], 100)
    monkeypatch.setattr("strata.engine.reader.MOST_CREDIT_MS", 1e-6)
    while not (recorded.engine.scheduler._reader.busy and answer.output_token_ids):
        recorded.engine.step()
    for request in (long, answer):
        recorded.engine.abort(request)
        output = recorded.engine.step()
        scheduled = [*output.plan.tails, *([output.plan.prompt.rows] if output.plan.prompt else [])]
        assert request.request_id not in [rows.request_id for rows in scheduled]
        assert request.finish_reason == "abort"
    assert recorded.engine.num_free_pages == recorded.engine.num_pages


def test_answers_of_one_prompt_share_its_reading(recorded, tokens):
    prompt = tokens[:140]
    want = recorded.run(prompt, 4)[0]
    other = Recorded(recorded.engine.model_file.path, max_num_seqs=6)
    requests = [other.add(prompt, 4) for _ in range(4)]
    assert other.finish(*requests) == [want] * 4
    assert [r.num_cached_tokens for r in requests] == [0, 128, 128, 128]
