"""Sequences that decode in turns, where a device computes steps of many rows at a loss."""

import numpy as np
import pytest
from drafting import drafting
from golden import ALL
from recorded import Recorded

from strata.backends.cpu import CpuBackend
from strata.engine import SamplingParams
from strata.engine.batch import DecodeBatches
from strata.engine.request import Request

LENGTHS = (200, 64, 130, 9, 63, 128, 5, 70)
PROMPTS = [np.random.default_rng(i).integers(0, 120, n).tolist() for i, n in enumerate(LENGTHS)]
MOST = 3


def requests(count):
    made = [Request(i, [1, 2, 3], SamplingParams(max_tokens=8)) for i in range(count)]
    for i, request in enumerate(made):
        request.sequence, request.output_token_ids = i, [7]
    return made


def sizes(batches):
    return sorted(len(b) for b in batches._batches)


def test_every_sequence_has_its_turn_and_few_batches_remain():
    batches, made = DecodeBatches(MOST), requests(8)
    for request in made:
        batches.join(request)
    assert sizes(batches) == [2, 3, 3] and len(batches) == 8
    seen = []
    for _ in range(3):
        assert batches.several
        batches.begin()
        rows = batches.rows()
        assert rows.hold and len(rows) <= MOST
        seen += rows.sequences.tolist()
    assert sorted(seen) == list(range(8))
    for request in made[:2]:
        batches.leave(request)
    assert sizes(batches) == [1, 2, 3]  # a step that is being made keeps its rows
    batches.begin()
    assert sizes(batches) == [3, 3]
    for request in made[2:6]:
        batches.leave(request)
    batches.begin()
    assert sizes(batches) == [2] and not batches.several
    assert batches.requests == batches.current.requests
    assert not batches.rows().hold
    for request in made[6:]:
        batches.leave(request)
    assert len(batches) == 0 and len(batches.rows()) == 0


def answers(e, temperature):
    made = [
        e.engine.add(p, SamplingParams(max_tokens=29 + 4 * i, seed=i, temperature=temperature))
        for i, p in enumerate(PROMPTS)
    ]
    return list(zip(e.finish(*made), (r.output_token_ids for r in made), strict=True))


class Steps:
    """Of an engine: the most sequences that one decoded, and how many nothing may have run ahead of."""

    def __init__(self, e, monkeypatch):
        self.widest = self.held = 0
        run = e.engine._runner.run

        def counted(plan):
            self.widest = max(self.widest, len(plan.decode.firsts))
            self.held += plan.decode.hold
            return run(plan)

        monkeypatch.setattr(e.engine._runner, "run", counted)


@pytest.mark.parametrize(("name", "drafts"), [("qwen4exp", 0), ("qwen4exp", 3), ("qwen3moe", 0)])
def test_answers_are_the_same_in_turns(name, drafts, monkeypatch):
    """With answers of different lengths, so that batches shrink and join; with drafts too."""
    path = ALL[name].model_path
    want = answers(Recorded(path, spec=0, max_num_seqs=8), 1.5)
    monkeypatch.setattr(CpuBackend, "few_rows", MOST, raising=False)
    made = drafting(path, count=drafts, max_num_seqs=8) if drafts else Recorded(path, spec=0, max_num_seqs=8)
    steps = Steps(made, monkeypatch)
    assert answers(made, 1.5) == want
    assert steps.widest == MOST and steps.held > 10


def test_dense_models_take_all_rows_at_once(monkeypatch):
    monkeypatch.setattr(CpuBackend, "few_rows", MOST, raising=False)
    e = Recorded(ALL["llama"].model_path, spec=0, max_num_seqs=8)
    steps = Steps(e, monkeypatch)
    answers(e, 0.0)
    assert steps.widest > MOST
