"""Sampling on the device: ids, the bits of log-probabilities and faults are the CPU's, for every option."""

import numpy as np
import pytest
from sample_cases import VOCABS, Case, plain_case, random_case, run_native

from strata.ops import Buffer, Builder, CountBuffers, SampleBuffers, StepBuffers, count_tokens, sample


def run_device(case: Case, backend):
    """(ids, logprobs, fault bits) by the device."""
    rows, vocab = case.logits.shape
    steps = StepBuffers.create(rows, 1, 64, rows)
    planes = SampleBuffers.create(
        steps.num_logit_rows,
        rows,
        vocab,
        slots=len(case.counts),
        masks=len(case.masks),
        biases=len(case.bias_ids),
    )
    logits = Buffer("logits", (rows, vocab), role="output", live=steps.num_logit_rows)
    b = Builder(steps, rows)
    sample(b, logits, planes)
    device = backend()
    replay = device.lower(b.finish())
    params = np.frombuffer(case.params.tobytes(), np.uint8).reshape(rows, -1)
    given = (params, case.counts, case.masks.view(np.int32), case.bias_ids, case.bias_values, case.positions)
    names = ("params", "counts", "masks", "bias_ids", "bias_values", "positions")
    device.array(steps.num_logit_rows)[0] = rows
    device.array(logits)[:] = case.logits
    for name, value in zip(names, given, strict=True):
        device.array(getattr(planes, name))[:] = value
    replay.submit()
    fault = replay.reported()
    return device.array(planes.out_ids)[:], device.array(planes.out_logprob)[:], fault


def same(a, b):
    return (a[0] == b[0]).all() and (a[1].view(np.uint32) == b[1].view(np.uint32)).all() and a[2] == b[2]


def test_random_cases(backend):
    g = np.random.default_rng(7)
    for _ in range(80):
        case = random_case(g, int(g.choice(VOCABS)), 3)
        assert same(run_device(case, backend), run_native(case)), case


@pytest.mark.parametrize(
    ("scale", "top_k", "top_p", "temperature"),
    [
        (1, 0, 0.95, 1),
        (0.01, 0, 0.95, 1),
        (0, 0, 0.9, 1),
        (1, 5000, 0.99, 1),
        (3, 0, 0.999, 2),
        (0, 3000, 0.5, 1),
    ],
)
def test_walks_through_many_candidates(scale, top_k, top_p, temperature, backend):
    """Flat and steep distributions of more candidates than a part holds."""
    logits = np.random.default_rng(3).standard_normal((2, 20011)) * scale
    case = plain_case(logits, top_k=top_k, top_p=top_p, temperature=temperature, seed=5)
    assert same(run_device(case, backend), run_native(case))


def test_another_seed_is_seen(backend):
    logits = np.random.default_rng(3).standard_normal((1, 4000))
    ids = {int(run_device(plain_case(logits, seed=s), backend)[0][0]) for s in range(4)}
    assert len(ids) > 1


def counted(backend, pairs, num=None):
    """(plane of counts, fault bits) after some tokens were counted in a plane that was not empty."""
    counts, planes = Buffer("counts", (3, 50), "i32", "state"), CountBuffers.create(32)
    b = Builder(StepBuffers.create(32, 1, 64, 32), 32)
    count_tokens(b, planes, counts)
    device = backend()
    replay = device.lower(b.finish())
    device.array(counts)[:] = 1
    device.array(planes.num)[0] = len(pairs) if num is None else num
    for i, (slot, token) in enumerate(pairs):
        device.array(planes.slots)[i], device.array(planes.tokens)[i] = slot, token
    replay.submit()
    return np.array(device.array(counts)[:]), replay.reported()


def test_tokens_are_counted(backend):
    pairs = [(0, 7), (2, 49), (0, 7), (1, 0), *[(1, 3)] * 20]
    want = np.ones((3, 50), np.int32)
    np.add.at(want, tuple(np.array(pairs).T), 2)
    got, faults = counted(backend, pairs)
    assert np.array_equal(got, want) and not faults
    assert not np.array_equal(counted(backend, pairs[1:])[0], want), "one that is left out is seen"


@pytest.mark.parametrize(("pairs", "num"), [([(3, 0)], None), ([(0, -1)], None), ([(0, 50)], None), ([], 33)])
def test_tokens_outside_the_plane_are_a_fault(backend, pairs, num):
    got, faults = counted(backend, pairs, num)
    assert faults and (got == 1).all()
