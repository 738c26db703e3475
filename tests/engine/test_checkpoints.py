"""Checkpoints of a runner's sequences: greedy text after a restore or in a fork is the text that was going to come."""

import pytest
from golden import ALL

from strata.config import EngineOptions
from strata.engine.load import load_model
from strata.engine.plan import PromptCursor, ScheduledRows, StartedSequence, StepPlan
from strata.engine.request import SamplingParams
from strata.memory import Checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


class Text:
    """One sequence of a runner, greedy."""

    def __init__(self, runner, sequence, tokens):
        self.runner, self.sequence, self.tokens = runner, sequence, list(tokens)

    def read(self, count):
        """Computes the first `count` tokens as a prompt; returns the token that follows."""
        started = StartedSequence(self.sequence, self.tokens, GREEDY)
        whole = count // 64 * 64
        rows = ScheduledRows(1, self.sequence, 0, self.tokens[:whole], whole == count)
        self.runner.keeper.grow(self.sequence, count)
        out = self.runner.run(StepPlan(prompt=PromptCursor(rows, 0, 1e9), started=(started,)))
        for p in range(whole, count):
            row = ScheduledRows(1, self.sequence, p, [self.tokens[p]], p == count - 1)
            out = self.runner.run(StepPlan(tails=(row,)))
        return out.prompt_token_ids[1]

    def go_on(self, token, position, count):
        """The next `count` tokens, each fed back."""
        found = []
        for p in range(position, position + count):
            row = ScheduledRows(1, self.sequence, p, [token], True)
            self.runner.keeper.grow(self.sequence, p + 1)
            token = self.runner.run(StepPlan(tails=(row,))).prompt_token_ids[1]
            found.append(token)
        return found


def loaded(name):
    options = EngineOptions(
        backend="cpu", threads=2, kv="f32", max_model_len=192, max_num_seqs=3, prefill=128
    )
    return load_model(ALL[name].model_path, options).runner


@pytest.mark.parametrize("name", ["llama", "qwen35", "qwen4exp"])
def test_restore_and_fork(name):
    runner = loaded(name)
    text = Text(runner, 0, [int(t) for t in ALL["qwen4exp"].tokens] * 2)
    token = text.read(70)
    saved = runner.keeper.checkpoint(0, 70)
    data = runner.keeper.checkpoint(0, 70, pages=True).to_bytes()
    want = text.go_on(token, 70, 20)
    runner.keeper.restore(0, saved)
    runner.keeper.fork(0, 1, 70)
    wrong = (token + 1) % 120
    Text(runner, 1, text.tokens).go_on(wrong, 70, 6)
    assert text.go_on(token, 70, 20) == want
    assert text.go_on(wrong, 70, 20) != want
    runner.keeper.restore(2, Checkpoint.from_bytes(data))
    runner.programs.samples.start(StartedSequence(2, text.tokens[:70], GREEDY))
    assert Text(runner, 2, text.tokens).go_on(token, 70, 20) == want
