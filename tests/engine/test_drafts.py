"""Drafts change no bit: off, on, foretold, wrong at every place, from a corrupt layer; alone, in batches, hot, cold."""

import random

import numpy as np
import pytest
from drafting import drafting, foretold
from golden import ALL
from recorded import Recorded

from models.edit_model import edit_model, f32
from strata.config import ServingOptions
from strata.engine import SamplingParams
from strata.engine.drafts.layer import DraftLayer
from strata.engine.drafts.verify import Verifier
from strata.gguf import open_model

NAMES = ["llama", "qwen35", "qwen4exp"]
COUNT = 56


def text(seed, count):
    return np.random.default_rng(seed).integers(0, 120, count).tolist()


PROMPTS = [text(i, n) for i, n in enumerate((200, 64, 130, 9, 63, 128, 5, 70))]


def options(name):
    draft = ALL[name].draft_path
    return {"mtp": str(draft)} if draft else {}


def request(i, temperature, **more):
    return SamplingParams(**{"max_tokens": COUNT, "seed": i, "temperature": temperature, **more})


def answers(e, prompts, temperature=0.0, between=lambda: None, **more):
    """(hash, tokens) of every prompt's answer, all at once."""
    made = [e.engine.add(p, request(i, temperature, **more)) for i, p in enumerate(prompts)]
    return list(zip(e.finish(*made, between=between), (r.output_token_ids for r in made), strict=True))


def plain(name, **more):
    return Recorded(ALL[name].model_path, spec=0, **more)


@pytest.fixture(scope="module")
def want():
    """Without drafts, by model and temperature."""
    return {(name, t): answers(plain(name, max_num_seqs=8), PROMPTS, t) for name in NAMES for t in (0.0, 1.5)}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("name", NAMES)
def test_in_a_batch_and_alone(name, temperature, want):
    e = drafting(ALL[name].model_path, count=3, max_num_seqs=8, **options(name))
    assert answers(e, PROMPTS, temperature) == want[name, temperature]
    assert name == "llama" or e.drafts.counts.proposed["layer"] > 100
    alone = drafting(ALL[name].model_path, **options(name))
    for i in (0, 3):
        made = alone.engine.add(PROMPTS[i], request(i, temperature))
        assert (alone.finish(made)[0], made.output_token_ids) == want[name, temperature][i]


@pytest.mark.parametrize("place", [None, *range(7)])
@pytest.mark.parametrize("name", NAMES)
def test_foretold_and_rejected_at_every_place(name, place, want, monkeypatch):
    texts = {tuple(p): w[1] for p, w in zip(PROMPTS, want[name, 1.5], strict=True)}
    foretold(monkeypatch, texts, place)
    e = drafting(ALL[name].model_path, count=7, mtp="off")
    made = e.engine.add(PROMPTS[0], request(0, 1.5))
    assert (e.finish(made)[0], made.output_token_ids) == want[name, 1.5][0]
    assert e.drafts.counts.mean_accepted > (3 if place is None else place / 2 - 0.01)
    e = drafting(ALL[name].model_path, count=3, mtp="off", max_num_seqs=8)
    assert answers(e, PROMPTS, 1.5) == want[name, 1.5]


@pytest.mark.parametrize("fault", ["accepts too much", "commits too much"])
def test_faults_of_verification_show(fault, want, monkeypatch):
    texts = {tuple(p): w[1] for p, w in zip(PROMPTS, want["qwen4exp", 0.0], strict=True)}
    foretold(monkeypatch, texts, 2)
    if fault == "accepts too much":
        monkeypatch.setattr(Verifier, "_agrees", lambda *_: True)
    else:
        monkeypatch.setattr(
            "strata.engine.runner.Runner.commit", lambda r, c: r.keeper.commit(dict.fromkeys(c, 4))
        )
    e = drafting(ALL["qwen4exp"].model_path, mtp="off")
    made = e.engine.add(PROMPTS[3], request(3, 0.0))
    assert (e.finish(made)[0], made.output_token_ids) != want["qwen4exp", 0.0][3]


@pytest.mark.parametrize("value", [np.nan, 1e4])
def test_a_corrupt_layer_costs_drafts_alone(value, want, tmp_path):
    source = ALL["qwen4exp"].model_path
    name = next(n for n in open_model(source).tensors if n.endswith("nextn.eh_proj.weight"))
    ne = open_model(source).tensors[name].ne
    bad = edit_model(source, tmp_path / "bad.gguf", {name: f32(np.full(ne[::-1], value))})
    e = drafting(bad, count=3, max_num_seqs=8)
    assert answers(e, PROMPTS, 1.5) == want["qwen4exp", 1.5]
    assert e.engine._runner.following.chains.faults > 5 or not np.isnan(value)


@pytest.mark.parametrize("name", NAMES)
def test_with_preemption_at_random(name, want):
    e = drafting(ALL[name].model_path, count=3, max_num_seqs=8, **options(name))
    chance, forced = random.Random(7), 0

    def preempt():
        nonlocal forced
        if (running := e.engine.scheduler.running) and chance.random() < 0.3:
            e.engine.scheduler.preempt(chance.choice(running))
            forced += 1

    assert answers(e, PROMPTS, 1.5, between=preempt) == want[name, 1.5]
    assert forced > 5


@pytest.mark.parametrize("share", [("1", "ssd"), ("4", "ram"), ("all", "ram")])
def test_at_any_residency(share, want):
    slots, tier = share
    more = {"expert_cache": "64"} if slots == "all" else {"expert_cache": slots}
    if tier == "ssd":
        more["ram_budget_gib"] = 3e-4
    e = drafting(ALL["qwen4exp"].model_path, count=3, max_num_seqs=8, backend="sim", **more)
    assert answers(e, PROMPTS, 1.5) == want["qwen4exp", 1.5]


@pytest.mark.parametrize("name", NAMES)
def test_conversations_go_on_after_restarts(name, tmp_path):
    """Turns cut by `max_tokens` inside a window of drafts leave the state that they leave without drafts."""

    def turns(make, between):
        e, history, found = make(), text(20, 90), []
        for turn in range(3):
            made = e.engine.add(history, request(turn, 1.5, max_tokens=30 + turn))
            found.append((*e.finish(made), made.output_token_ids, made.num_cached_tokens))
            history = history + made.output_token_ids + text(21 + turn, 25)
            e = between(e)
        return found

    def restart(e):
        e.engine.close()
        return drafting(ALL[name].model_path, ServingOptions(session_dir=str(tmp_path)), **options(name))

    want = turns(lambda: plain(name), lambda e: e)
    first = ServingOptions(session_dir=str(tmp_path))
    got = turns(lambda: drafting(ALL[name].model_path, first, **options(name)), restart)
    assert got == want


@pytest.mark.parametrize("most", range(1, 9))
def test_max_tokens_is_never_passed(most, want, monkeypatch):
    texts = {tuple(p): w[1] for p, w in zip(PROMPTS, want["qwen4exp", 0.0], strict=True)}
    foretold(monkeypatch, texts)
    e = drafting(ALL["qwen4exp"].model_path)
    made = e.engine.add(PROMPTS[3], request(3, 0.0, max_tokens=most))
    e.finish(made)
    assert (made.output_token_ids, made.finish_reason) == (want["qwen4exp", 0.0][3][1][:most], "length")
    assert made.num_computed_tokens == made.num_tokens - 1


class EveryThird:
    """A mask that knows the tokens before it: the next one differs from the last by no multiple of three."""

    def __init__(self):
        self.taken = []

    def fill(self, allowed):
        last = self.taken[-1] if self.taken else 0
        bits = np.array([(i - last) % 3 != 0 for i in range(32 * len(allowed))])
        allowed[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token):
        self.taken.append(token)


ASKED = {
    "penalties": {"presence_penalty": 1.5, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "biases and cuts": {"logit_bias": {5: 3.0, 9: -2.0}, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "log-probabilities": {"logprobs": 3},
    "mask": {"presence_penalty": 0.7},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("place", [None, 2])
def test_what_requests_ask_for(asked, place, monkeypatch):
    name, found = "qwen4exp", []
    stops = frozenset({7, 31})
    for e in (plain(name, max_num_seqs=8), drafting(ALL[name].model_path, count=3, max_num_seqs=8)):
        masks = [EveryThird() if asked == "mask" else None for _ in PROMPTS]
        made = [
            e.engine.add(p, request(i, 1.0, stop_token_ids=stops, max_tokens=40, **ASKED[asked]), mask=m)
            for i, (p, m) in enumerate(zip(PROMPTS, masks, strict=True))
        ]
        hashes = e.finish(*made)
        taken = [None if m is None else m.taken for m in masks]
        answered = [(r.output_token_ids, r.finish_reason, r.logprobs, r.top_logprobs) for r in made]
        found.append((hashes, answered, taken))
        texts = {tuple(p): r.output_token_ids for p, r in zip(PROMPTS, made, strict=True)}
        foretold(monkeypatch, texts, place)
    assert found[1] == found[0]
    assert any(a[1] == "stop" for a in found[0][1])
    assert e.drafts.counts.accepted["lookup"] > 20


def test_the_host_goes_on_while_chains_are_made(monkeypatch):
    """A step ends when its chains are started; the next begins by waiting for them."""
    seen, wait = [], DraftLayer.wait
    monkeypatch.setattr(DraftLayer, "wait", lambda *args: seen.append("waited") or wait(*args))
    e = drafting(ALL["qwen4exp"].model_path, count=3)
    made = e.engine.add(PROMPTS[3], request(3, 0.0))
    chains = e.engine._runner.following.chains
    start = chains.start
    monkeypatch.setattr(chains, "start", lambda *args: seen.append("started") or start(*args))
    while made.finish_reason is None:
        e.engine.step()
        seen.append("step")
    steps = " ".join(seen).split("step")
    assert sum("started" in s for s in steps) > 3
    assert all(s.split() in ([], ["started"], ["waited"], ["waited", "started"]) for s in steps), steps
