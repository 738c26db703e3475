"""Sampling: the kernel against NumPy on bits, NumPy against the rules, frequencies against probabilities."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_cases import VOCABS, plain_case, random_case, rows_of, run_native, run_reference, same

from strata import _native
from strata.backends.cpu import CpuBackend
from strata.backends.reference import ReferenceBackend
from strata.errors import FaultError, UsageError
from strata.ops.arithmetic import exp32, log32
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.sample import SampleBuffers, gumbel, philox, sample
from strata.ops.sample_params import SAMPLE_PARAMS, count_output, count_prompt, pack_bias, sample_params
from strata.ops.step import StepBuffers

SAMPLE_H = Path(__file__).resolve().parents[2] / "native" / "include" / "strata" / "sample.h"


@pytest.fixture(params=_native.isa_levels())
def isa(request):
    before = _native.isa_level()
    _native.set_isa(request.param)
    yield request.param
    _native.set_isa(before)


@pytest.mark.parametrize("vocab", VOCABS)
def test_kernel_equals_reference(isa, vocab):
    g = np.random.default_rng(vocab)
    for _ in range(12):
        case = random_case(g, vocab, int(g.integers(1, 5)))
        expected = run_reference(case)
        assert same(run_native(case), expected), case.params
        assert same(run_native(case, threads=2), expected), case.params


def test_comparison_catches_planted_faults():
    """Each field of the parameters, and each plane, must show in the results of some case."""
    g = np.random.default_rng(1)
    cases = [random_case(g, 1000, 4) for _ in range(40)]
    changes = {"seed": 1, "temperature": 0.25, "top_k": 1, "top_p": -0.2, "min_p": 0.4, "mask_id": -1}
    changes |= {"repetition_penalty": 0.3, "presence_penalty": 1, "frequency_penalty": 0.5, "count_slot": -1}
    changes |= {"bias_count": -1}
    for name, change in changes.items():
        caught = 0
        for case in cases:
            broken = case.params.copy()
            broken[name] = np.maximum(
                broken[name] + broken[name].dtype.type(change), -1 if "_id" in name else 0
            )
            broken["count_slot"] = np.maximum(broken["count_slot"], -1)
            caught += not same(run_native(replace(case, params=broken)), run_reference(case))
        assert caught, name


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "count_slot": 0, "repetition_penalty": 1.1},
        {"top_p": 0.95, "min_p": 0.01},
        {"temperature": 1.5, "mask_id": 0},
        {"top_k": 100_000, "top_p": 0.99},
    ],
)
def test_large_vocabulary(params):
    g = np.random.default_rng(3)
    case = plain_case(g.standard_normal(248_320) * 3, seed=11, **params)
    case.masks = g.integers(0, 2**32, case.masks.shape, dtype=np.uint32)
    case.counts[0, g.choice(248_320, 2000, replace=False)] = 5
    assert same(run_native(case), run_reference(case))


def drawn(logits, count=4000, **params):
    """Frequencies of `count` draws of one row at different positions, by the kernel."""
    logits = np.asarray(logits, np.float32)
    ids, _, fault = run_native(plain_case(np.tile(logits, (count, 1)), seed=5, **params))
    assert fault == 0
    return np.bincount(ids, minlength=len(logits))


def chi_square(observed, probabilities):
    expected = probabilities * observed.sum()
    return float(((observed - expected) ** 2 / expected).sum())


CRITICAL = 31.26  # 99.9 % point of chi-square with 11 degrees of freedom


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_probabilities(temperature):
    z = np.linspace(-1, 1, 12)
    weights = np.exp(z / temperature)
    observed = drawn(z, temperature=temperature)
    assert chi_square(observed, weights / weights.sum()) < CRITICAL
    wrong = np.exp(z / temperature * 1.3)  # planted: another temperature
    assert chi_square(observed, wrong / wrong.sum()) > CRITICAL


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 3}, 3),
        ({"top_k": 1}, 1),
        ({"top_p": 0.75}, 2),  # probabilities 0.5, 0.25, 0.125, ...
        ({"top_p": 0.76}, 3),
        ({"top_p": 0.0}, 1),
        ({"top_k": 2, "top_p": 0.70}, 2),  # of the two left: 2/3, 1/3
        ({"top_k": 2, "top_p": 0.60}, 1),
        ({"min_p": 0.2}, 3),  # 1, 1/2, 1/4, 1/8 of the best
        ({"min_p": 1.0}, 1),
        ({"temperature": 0.5, "min_p": 0.2}, 2),
        ({"temperature": 1e-30}, 1),
    ],
)
def test_cuts_keep_what_they_say(params, kept):
    z = -np.log(2) * np.arange(10)[::-1]  # the likeliest has the highest id
    observed = drawn(z, 2000, **params)
    assert list(np.flatnonzero(observed)) == list(range(10 - kept, 10))
    weights = np.exp(z[-kept:] / params.get("temperature", 1.0))
    assert kept == 1 or chi_square(observed[-kept:], weights / weights.sum()) < CRITICAL


def test_ties_go_to_the_lower_id():
    assert set(run_native(plain_case(np.ones((3, 300)), temperature=0.0))[0]) == {0}
    assert list(np.flatnonzero(drawn(np.ones(300), 1000, top_k=3))) == [0, 1, 2]


def test_equal_scores_go_to_the_lower_id():
    """At seed 9 and position 61 the largest gumbel of 60,000 tokens is that of two: found by search."""
    g = gumbel(9, 61, np.arange(60_000))
    assert list(np.flatnonzero(g == g.max())) == [29_945, 29_946]
    for params in ({}, {"top_k": 60_000}, {"top_p": 0.999}):
        case = plain_case(np.zeros(60_000), positions=[60], seed=9, **params)
        assert run_native(case)[0][0] == run_reference(case)[0][0] == 29_945


def test_a_crowd_of_unlikely_tokens_wins_its_share():
    """One token at 0 against 4,098 at -8 (1.37 to 1 for the crowd): no shortcut may forget them."""
    z = np.full(4099, -8.0)
    z[700] = 0
    for params in ({}, {"top_k": 4099}, {"top_p": 0.999_999}):
        ids = run_native(plain_case(np.tile(z, (400, 1)), seed=3, **params))[0]
        crowd = int((ids != 700).sum())
        assert abs(crowd - 400 * 0.579) < 4 * np.sqrt(400 * 0.579 * 0.421)


def test_result_depends_on_seed_and_position_only():
    g = np.random.default_rng(8)
    case = random_case(g, 1000, 4)
    case.params["mask_id"] = -1
    case.params["temperature"] = 1.0
    alone = [run_native(rows_of(case, [r])) for r in range(4)]
    order = [2, 0, 3, 1]
    for threads in (1, 2):
        mixed = rows_of(case, order)
        ids, logprobs, _ = run_native(mixed, threads)
        assert [int(alone[r][0][0]) for r in order] == ids.tolist()
        assert b"".join(alone[r][1].tobytes() for r in order) == logprobs.tobytes()
    flat = np.zeros((2000, 1000), np.float32)
    first = run_native(plain_case(flat, seed=1))[0]
    assert not np.array_equal(first, run_native(plain_case(flat, seed=2))[0])
    assert len(set(first.tolist())) > 800  # positions differ: 1000 ids drawn 2000 times hit 865 on average


def test_faults_leave_no_token():
    bad = plain_case(np.zeros((2, 40)), mask_id=0)  # the mask allows nothing
    bad.params["mask_id"][1] = -1
    ids, _, fault = run_native(bad)
    assert (ids[0], fault) == (-1, _native.FAULT_NO_TOKEN) and ids[1] >= 0
    for value in (np.nan, np.inf, -np.inf):
        ids, _, fault = run_native(plain_case([0.0, value, 1.0]))
        assert (ids[0], fault) == (-1, _native.FAULT_NON_FINITE)
    biased = plain_case(np.zeros(40), bias_count=1)
    biased.bias_ids[0] = 40
    assert run_native(biased)[2] == _native.FAULT_RANGE and same(run_native(biased), run_reference(biased))


@pytest.mark.parametrize("name", ["cpu", "contract"])
def test_op_in_a_program(name):
    backend = CpuBackend(2) if name == "cpu" else ReferenceBackend("contract")
    case = random_case(np.random.default_rng(21), 129, 4)
    steps = StepBuffers.create(max_rows=4, max_num_seqs=1, max_model_len=64, max_logit_rows=4)
    logits = Buffer("logits", case.logits.shape, role="input", live=steps.num_logit_rows)
    buffers = SampleBuffers.create(steps.num_logit_rows, 4, 129, slots=2, masks=3, biases=5)
    b = Builder(steps, 4)
    results = sample(b, logits, buffers)
    program = b.finish()
    backend.reserve(program.arena_bytes)
    replay = backend.lower(program)
    for field in ("positions", "counts", "bias_ids", "bias_values"):
        backend.array(getattr(buffers, field))[:] = getattr(case, field)
    backend.array(buffers.masks)[:] = case.masks.view(np.int32)
    backend.array(buffers.params)[:] = case.params.view(np.uint8).reshape(4, -1)
    backend.array(logits)[:] = case.logits
    backend.array(steps.num_logit_rows)[0] = 3  # the fourth row is not live
    replay.run()
    expected = run_reference(case)
    for buffer, wanted in zip(results, expected, strict=False):
        assert backend.array(buffer)[:3].tobytes() == wanted[:3].tobytes()
        assert backend.array(buffer)[3] == 0
    backend.array(logits)[1, 5] = np.nan
    with pytest.raises(FaultError, match="finite"):
        replay.run()


def test_logprob_is_of_the_penalised_softmax():
    z = np.random.default_rng(2).standard_normal(50)
    case = plain_case(z, temperature=0.3, count_slot=0, repetition_penalty=2.0, presence_penalty=0.5,
                      frequency_penalty=0.25, bias_count=1)  # fmt: skip
    count_prompt(case.counts[0], [3, 4, 4])
    count_output(case.counts[0], [4, 7, 7, 7])
    case.bias_ids[0], case.bias_values[0] = 9, 4.0
    z[9] += 4
    for i, times in ((3, 0), (4, 1), (7, 3)):
        z[i] = z[i] / 2 if z[i] > 0 else z[i] * 2
        z[i] -= 0.25 * times + 0.5 * (times > 0)
    ids, logprobs, _ = run_native(case)
    expected = z - np.log(np.exp(z).sum())
    assert abs(float(logprobs[0]) - expected[ids[0]]) < 1e-5
    greedy = replace(case, params=case.params.copy())
    greedy.params["temperature"] = 0
    assert run_native(greedy)[0][0] == z.argmax()


def test_philox_known_answers():
    """Vectors of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds)."""
    pi = (0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E)
    for (key, low, high), words in {
        (0, 0, 0): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        pi: "d16cfe09 94fdcceb 5001e420 24126ea1",
    }.items():
        out = philox(key, low, np.array([high]))[0]
        assert " ".join(f"{w:08x}" for w in out) == words


def test_gumbel_bounds_hold_at_both_ends():
    """Skipping candidates is exact only if no gumbel lies outside the header's bounds."""
    text = SAMPLE_H.read_text()
    high, low = map(float, re.search(r"kGumbelMax = ([\d.]+)f, kGumbelMin = (-[\d.]+)f", text).groups())
    reach = float(re.search(r"kSampleReach = ([\d.]+)f", text).group(1))
    u = np.float32([0.5 * 2.0**-23, 1 - 0.5 * 2.0**-23])
    least, most = (float(-log32(-log32(x))) for x in u)
    assert low < least < low + 0.02 and high - 0.02 < most < high
    assert high - reach < low and float(exp32(np.float32(-reach))) < 2.0**-24


def test_parameters_are_checked():
    assert SAMPLE_PARAMS.itemsize == 56
    for name, value in {"temperature": -1, "top_k": -1, "top_p": 1.1, "min_p": float("nan"),
                        "repetition_penalty": 0, "seed": -1}.items():  # fmt: skip
        with pytest.raises(UsageError, match=name):
            sample_params(**{name: value})
    ids, values = pack_bias({7: 1.5, 2: -1}, 8)
    assert ids.tolist() == [2, 7] and values.tolist() == [-1, 1.5]
    for bias in ({8: 1.0}, {-1: 1.0}, {1: float("inf")}):
        with pytest.raises(UsageError, match="bias"):
            pack_bias(bias, 8)
