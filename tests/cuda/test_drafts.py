"""Drafts on the device: programs of the draft layer replayed in chains, answers as on the CPU without drafts."""

from dataclasses import replace

import numpy as np
import pytest
from drafting import Always
from emulated_driver import EmulatedDriver
from golden import ALL
from harness import same_bits
from test_draft_ops import TYPES, ring_case, some_case

from strata.backends import DRAFTED
from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams, Status
from strata.engine.ahead import RunAhead
from strata.engine.load import load_model
from strata.errors import FaultError
from strata.ops import MAX_STEP_ROWS

CASES = {
    "qwen4exp": {"mtp": "on"},
    "qwen35-quantised": {"mtp": str(ALL["qwen35-quantised"].draft_path)},
}


LONGER = 40, 30, 12  # tokens of answers, so that drafts are made and verified while nobody ends


def prompts():
    return np.random.default_rng(1).integers(0, 100, (3, 40)).tolist()


def play(engine, temperature, lengths=(8, 12, 6)):
    sampling = [SamplingParams(temperature=temperature, seed=i, max_tokens=n) for i, n in enumerate(lengths)]
    made = [engine.add(p[: 5 + 17 * i], s) for i, (p, s) in enumerate(zip(prompts(), sampling, strict=True))]
    while any(r.status is not Status.FINISHED for r in made):
        engine.step()
    return [(r.output_token_ids, r.finish_reason) for r in made]


def device_engine(name, backend, **more):
    more = {"max_num_seqs": 3, **CASES[name], **more}
    options = EngineOptions(device="cpu", prefill=0, max_model_len=128, **more)
    return Engine(load_model(ALL[name].model_path, options, None, backend()))


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_without_drafts_and_drafts_are_the_cpu_s(name, backend):
    options = EngineOptions(device="cpu", prefill=0, max_model_len=128, max_num_seqs=3)
    want = play(Engine.load(ALL[name].model_path, replace(options, spec=0)), 0.8, LONGER)
    cpu = Engine.load(ALL[name].model_path, replace(options, lookup="off", **CASES[name]))
    proposed = []
    for engine in (cpu, device_engine(name, backend, lookup="off")):
        seen, drafts = {}, engine.scheduler.drafts
        drafts.decision, drafts.tamper = Always(4), keeping(seen)
        assert play(engine, 0.8, LONGER) == want
        assert engine._runner.following.chains.faults == 0
        proposed.append(seen)
    # A device reads prompts' tails in fewer rows a step, so that answers stand elsewhere when chains are made.
    common = proposed[0].keys() & proposed[1].keys()
    assert len(common) > 5
    for place in common:
        pairs = zip(proposed[0][place], proposed[1][place], strict=False)
        assert all(cpu == device for cpu, device in pairs), place


def keeping(seen):
    """What is proposed by request and place in its answer."""

    def tamper(request, tokens):
        seen[len(request.prompt_token_ids), len(request.output_token_ids)] = tokens
        return tokens

    return tamper


def test_after_a_prompt_in_the_chunk_form(backend):
    """The chunk's program fills the draft layer's cells; bits are the device's own, as the chunk form's are."""
    found, prompt = [], np.random.default_rng(2).integers(0, 60, 90).tolist()
    for spec in (0, 4):
        options = EngineOptions(device="cpu", prefill=64, max_model_len=128, spec=spec, lookup="off")
        options = replace(options, **CASES["qwen35-quantised"])
        engine = Engine(load_model(ALL["qwen35-quantised"].model_path, options, None, backend()))
        if spec:
            engine.scheduler.drafts.decision = Always(spec)
        request = engine.add(prompt, SamplingParams(max_tokens=8))
        while request.status is not Status.FINISHED:
            engine.step()
        found.append(request.output_token_ids)
    assert found[0] == found[1]
    assert engine._runner.following.chains.faults == 0
    assert engine._runner.following.followed.filled[0] >= 90


def test_running_ahead_where_nothing_is_drafted(backend, monkeypatch):
    """A layer that is never asked, and lookups that wait for a step that runs already."""
    begun = []
    begin = RunAhead.begin
    monkeypatch.setattr(RunAhead, "begin", lambda ahead, rows: begun.append(rows) or begin(ahead, rows))
    found = []
    for count, spec in ((0, 7), (7, 7), (0, 0)):
        engine = device_engine("qwen35-quantised", backend, spec=spec)
        if spec:
            engine.scheduler.drafts.decision = Always(count)
        found.append(play(engine, 0.0))
        if count == 0 and spec:
            assert len(begun) > 5
    assert found[0] == found[1] == found[2]


def verified_ahead(name, backend, temperature, monkeypatch, meet=RunAhead.meet):
    """Texts of an engine that drafts, and of each drafted guess whether it was taken."""
    taken = []

    def spy(ahead, plan):
        verifying = ahead.verifying
        meet(ahead, plan)
        if verifying:
            taken.append(ahead.taken)

    monkeypatch.setattr(RunAhead, "meet", spy)
    monkeypatch.setattr("strata.engine.tails.FIRST_ROWS", 6)  # all prompts are soon read
    engine = device_engine(name, backend, lookup="off")
    engine.scheduler.drafts.decision = Always(4)
    return play(engine, temperature, LONGER), taken


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_are_verified_before_the_host_knows_them(name, temperature, backend, monkeypatch):
    """Requests that join and end: most guesses are right, and none that is wrong is taken."""
    options = EngineOptions(device="cpu", prefill=0, max_model_len=128, max_num_seqs=3, spec=0)
    want = play(Engine.load(ALL[name].model_path, options), temperature, LONGER)
    texts, taken = verified_ahead(name, backend, temperature, monkeypatch)
    assert texts == want
    assert taken.count(True) > 2


def test_drafts_of_another_place_would_be_seen(backend, monkeypatch):
    """Guesses whose device reads other drafts than those that the host verifies."""
    name = "qwen4exp"
    want, _ = verified_ahead(name, backend, 0.8, monkeypatch)

    def meet(ahead, plan):
        guess = ahead._guess
        ahead.taken = ahead.verifying and np.array_equal(plan.decode.positions, guess.positions)
        if ahead.taken:
            ahead._guess = None
        else:
            ahead.drop()

    monkeypatch.setattr("strata.engine.ahead.DRAFTED", DRAFTED + 1)
    texts, taken = verified_ahead(name, backend, 0.8, monkeypatch, meet)
    assert any(taken)
    assert texts != want


def until_guessed(engine, wanted):
    """Steps until drafts are being verified of which `wanted` is true."""
    for _ in range(40):
        engine.step()
        guess = engine._runner._ahead._guess
        if guess is not None and guess.counts is not None and wanted(guess):
            return
    raise AssertionError("never guessed")


def test_a_request_that_comes_back_while_drafts_are_verified(backend, monkeypatch):
    """Drafts of all the others fill a step: with one more sequence they are decided upon again."""
    engine = device_engine("qwen35-quantised", backend, lookup="off", max_num_seqs=5)
    engine.scheduler.drafts.decision = Always(7)
    sampling = SamplingParams(max_tokens=80, ignore_eos=True)
    made = [engine.add(prompts()[i % 3][i : i + 4], sampling) for i in range(5)]
    while not all(r.output_token_ids for r in made):
        engine.step()
    memory = engine.scheduler._memory
    with monkeypatch.context() as without_room:
        without_room.setattr(memory, "start", lambda request: None)
        engine.scheduler.preempt(made[4])
        until_guessed(engine, lambda guess: len(guess) == MAX_STEP_ROWS)
    before = len(made[4].output_token_ids)
    for _ in range(3):
        engine.step()
    assert made[4].status is Status.RUNNING
    assert len(made[4].output_token_ids) > before


@pytest.mark.parametrize("leave", [Engine.abort, lambda engine, request: engine.scheduler.preempt(request)])
def test_a_fault_of_a_guess_is_not_that_of_a_request_that_leaves(backend, leave):
    """Its state is settled while drafts are verified for it, to nobody's use."""
    engine = device_engine("qwen35-quantised", backend, lookup="off")
    engine.scheduler.drafts.decision = Always(4)
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    one, other = [engine.add(p[:20], sampling) for p in prompts()[:2]]
    until_guessed(engine, len)
    engine._runner.backend._faults["step"].array.view(np.uint32)[0] = 1
    leave(engine, one)
    before = len(other.output_token_ids)
    for _ in range(5):
        engine.step()
    assert other.status is Status.RUNNING
    assert len(other.output_token_ids) > before


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rows", [1, 5])
def test_some_rows_of_a_weight(name, rows, backend):
    def run(to, **more):
        case, out = some_case(name, rows, k=2560 if rows == 1 else 768, **more)()
        return case.run(to, out)

    want = run(CpuBackend(2))
    assert same_bits(run(backend()), want)
    assert not same_bits(run(backend(), damaged=True), want)


WHOLE_ROWS = ["Q6_K", "Q8_0", "IQ3_XXS"]


@pytest.mark.parametrize("name", WHOLE_ROWS)
@pytest.mark.parametrize(("rows", "k", "count"), [(1, 2560, 251), (2, 1024, 33), (5, 512, 251), (8, 2560, 1)])
def test_some_rows_by_thread_blocks_that_stay(name, rows, k, count):
    """Lists of any length and order, of many turns a warp; in any order of threads."""
    case, out = some_case(name, rows, k=k, count=count)()
    want = case.run(CpuBackend(2), out)
    for seed in (0, 1, 2):
        driver = EmulatedDriver(seed=seed)
        driver.properties = replace(driver.properties, multiprocessors=1, shared=227 << 10)
        backend = CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 16)
        case, out = some_case(name, rows, k=k, count=count)()
        assert same_bits(case.run(backend, out), want)
        assert driver.launched[-1].kernel.entry == "linear_some_staged"
        assert driver.launched[-1].grid[0] <= 2


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
def test_some_rows_without_room_for_a_ring(name):
    case, out = some_case(name)()
    want = case.run(CpuBackend(2), out)
    driver = EmulatedDriver()
    driver.properties = replace(driver.properties, shared=48 << 10)
    case, out = some_case(name)()
    assert same_bits(case.run(CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 16), out), want)
    assert driver.launched[-1].kernel.entry == "linear_some"


@pytest.mark.parametrize("recalled", [False, True])
def test_recent_rows(recalled, backend):
    make = ring_case(20, np.arange(40, 60), np.full(20, 1), recalled=recalled)
    case, out = make()
    want = case.run(CpuBackend(1), out)
    case, out = make()
    assert same_bits(case.run(backend(), out), want)


def test_rows_and_ids_outside_are_faults(backend):
    for make in (
        some_case("Q8_0", low=250),
        some_case("Q8_0", k=2560, low=250),
        ring_case(2, [1, 2], [0, 3]),
    ):
        case, out = make()
        with pytest.raises(FaultError, match="outside its table"):
            case.run(backend(), out)
