"""Random sampling inputs, and the native kernel behind the signature of the reference."""

from dataclasses import dataclass, replace

import numpy as np

from strata import _native
from strata.ops.sample import SampleRow, sample_row
from strata.ops.sample_params import sample_params

VOCABS = (1, 2, 31, 32, 33, 127, 128, 129, 1000, 4099)


@dataclass
class Case:
    logits: np.ndarray  # f32 [rows, vocab]
    positions: np.ndarray
    params: np.ndarray
    counts: np.ndarray
    masks: np.ndarray
    bias_ids: np.ndarray
    bias_values: np.ndarray


def plain_case(logits, positions=None, **params):
    """A case without penalties, masks and biases."""
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    rows, vocab = logits.shape
    return Case(
        logits,
        np.arange(rows, dtype=np.int32) if positions is None else np.asarray(positions, np.int32),
        np.array([sample_params(**params)] * rows),
        np.zeros((1, vocab), np.int32),
        np.zeros((1, -(-vocab // 32)), np.uint32),
        np.zeros(1, np.int32),
        np.zeros(1, np.float32),
    )


def rows_of(case, rows):
    """The same case with some of its rows."""
    return replace(case, logits=case.logits[rows], positions=case.positions[rows], params=case.params[rows])


def random_params(g, biases):
    """Every option off and on, extremes included."""
    return sample_params(
        seed=int(g.integers(2**63)),
        temperature=float(g.choice([0, 1, 0.7, 1.3, 1e-30, 1e-3, 100, 1e4, 0.2])),
        top_k=int(g.choice([0, 0, 1, 2, 20, 50, 1000, 10**6])),
        top_p=float(g.choice([1, 1, 0.95, 0.5, 0.1, 0, 0.999999])),
        min_p=float(g.choice([0, 0, 0.05, 0.5, 1])),
        repetition_penalty=float(g.choice([1, 1.1, 0.9])),
        presence_penalty=float(g.choice([0, 1.5, -1])),
        frequency_penalty=float(g.choice([0, 0.3])),
        mask_id=int(g.choice([-1, 0, 1, 2], p=[0.4, 0.3, 0.27, 0.03])),
        count_slot=int(g.choice([-1, 0, 1])),
        bias_begin=biases // 3,
        bias_count=int(g.choice([0, biases - biases // 3])),
    )


def random_case(g, vocab, rows):
    """Logits of many scales, some with ties, a few with a value that is not finite."""
    scale = float(g.choice([0.01, 1, 3, 10, 1e4]))
    logits = (g.standard_normal((rows, vocab)) * scale).astype(np.float32)
    if g.random() < 0.4:
        logits = (np.round(logits / scale * 2) * (scale / 2)).astype(np.float32)
    if g.random() < 0.05:
        logits[0, g.integers(vocab)] = g.choice([np.nan, np.inf, -np.inf])
    masks = g.integers(0, 2**32, (3, -(-vocab // 32)), dtype=np.uint32)
    masks[1] &= masks[0]
    masks[2] = 0
    biases = min(vocab, 5)
    return Case(
        logits,
        g.integers(0, 1 << 20, rows).astype(np.int32),
        np.array([random_params(g, biases) for _ in range(rows)]),
        np.where(g.random((2, vocab)) < 0.3, g.integers(0, 9, (2, vocab)), 0).astype(np.int32),
        masks,
        np.sort(g.choice(vocab, biases, replace=False)).astype(np.int32),
        (g.standard_normal(biases) * scale).astype(np.float32),
    )


def run_reference(case):
    """(ids, logprobs, fault bits) by NumPy."""
    planes = (case.counts, case.masks, case.bias_ids, case.bias_values)
    rows = [
        sample_row(logits, SampleRow.of(p, *planes), int(position) + 1)
        for logits, p, position in zip(case.logits, case.params, case.positions, strict=True)
    ]
    ids, logprobs, faults = zip(*rows, strict=True)
    return np.array(ids, np.int32), np.array(logprobs, np.float32), int(np.bitwise_or.reduce(faults))


def run_native(case, threads=1):
    """The same by the kernel of the active instruction set."""
    rows, vocab = case.logits.shape
    count = np.array([rows], np.int32)
    ids, logprobs = np.full(rows, 7, np.int32), np.ones(rows, np.float32)
    planes = (case.counts, case.masks, case.bias_ids, case.bias_values)
    arrays = (count, case.logits, case.positions, case.params, *planes, ids, logprobs)
    program = _native.Program(_native.ThreadPool(threads))
    program.add("sample", [a.ctypes.data for a in arrays], [vocab], [])
    return ids, logprobs, program.run(0, 1)


def same(a, b):
    """Equal ids, fault bits, and log-probabilities bit for bit."""
    return np.array_equal(a[0], b[0]) and a[1].tobytes() == b[1].tobytes() and a[2] == b[2]
