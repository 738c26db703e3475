"""What a draft layer needs beside a trunk's ops: CPU kernels against the contract, bit for bit, and planted faults."""

import numpy as np
import pytest

from backends.harness import Case, contract, float_reference, nrmse, on_every_level, same_bits, weight
from strata.backends.cpu import CpuBackend
from strata.errors import FaultError, ModelFileError
from strata.ops import (
    MAX_DRAFTS,
    Buffer,
    DraftResults,
    copy_rows,
    keep_recent,
    linear_some,
    pass_draft,
    recall_recent,
)

TYPES = ["Q6_K", "Q8_0", "Q4_K", "IQ3_XXS", "NVFP4"]


def some_case(name, rows=5, n=300, k=768, count=90, damaged=False, low=0):
    """Columns `ids` of a product; the others keep what they had."""

    def make():
        case = Case(rows)
        x = np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)
        w = weight(name, n, k, 3)
        picked = np.random.default_rng(2).permutation(n)[:count] + low
        if damaged:
            row = len(w.data) // n
            w.data[int(picked[3]) * row + row // 2] ^= 0x11
        live = Buffer("count", (1,), "i32", "input")
        ids = Buffer("ids", (count + 7,), "i32", "input", live=live)
        case.set(live, [count])
        case.set(ids, picked)
        out = Buffer("out", (rows, n), role="output", live=case.steps.num_rows)
        linear_some(case.builder, case.input(x), w, ids, out)
        return case, out

    return make


@pytest.mark.parametrize("name", TYPES)
def test_some_rows_of_a_weight(name):
    want = contract(some_case(name))
    assert np.isnan(want).sum() == want.size * 210 // 300
    for label, got in on_every_level(some_case(name)):
        assert same_bits(got, want), label
    there = ~np.isnan(want)
    assert nrmse(want[there], float_reference(some_case(name))[there]) < 0.02
    case, out = some_case(name, damaged=True)()
    assert not same_bits(case.run(CpuBackend(2), out), want)


def test_a_row_that_is_not_there_is_a_fault():
    case, out = some_case("Q8_0", low=250)()
    with pytest.raises(FaultError, match="outside its table"):
        case.run(CpuBackend(2), out)


def test_float_weights_are_refused():
    with pytest.raises(ModelFileError, match="float values"):
        some_case("F16")()


def ring_case(rows, positions, sequences, depth=8, recalled=False):
    def make():
        case = Case(rows, sequences=3)
        s, width = case.steps, 20
        x = np.random.default_rng(4).standard_normal((rows, width)).astype(np.float32)
        case.set(s.positions, positions)
        case.set(s.sequences, sequences)
        ring = Buffer("ring", (3, depth, width), role="state")
        if not recalled:
            keep_recent(case.builder, case.input(x), ring)
            return case, ring
        held = np.random.default_rng(5).standard_normal((3, depth, width)).astype(np.float32)
        case.set(ring, held)
        out = Buffer("out", (rows, width), role="output", live=s.num_rows)
        copy_rows(case.builder, recall_recent(case.builder, ring), out)
        return case, out

    return make


@pytest.mark.parametrize("recalled", [False, True])
def test_recent_rows_by_position(recalled):
    """Two sequences in a step; a chunk that is longer than the ring keeps its last rows."""
    for rows, positions, sequences in (
        (5, [7, 8, 9, 3, 4], [2, 2, 2, 0, 0]),
        (20, np.arange(40, 60), np.full(20, 1)),
    ):
        make = ring_case(rows, positions, sequences, recalled=recalled)
        want = contract(make)
        for label, got in on_every_level(make):
            assert same_bits(got, want), label
        moved = ring_case(rows, np.array(positions) + 1, sequences, recalled=recalled)()
        assert not same_bits(moved[0].run(CpuBackend(2), moved[1]), want)


def test_a_sequence_that_is_not_there_is_a_fault():
    case, out = ring_case(2, [1, 2], [0, 3])()
    with pytest.raises(FaultError, match="outside its table"):
        case.run(CpuBackend(1), out)


def pass_case(ids, depth=2):
    def make():
        case, n = Case(len(ids)), len(ids)
        live = case.steps.num_rows
        results = DraftResults.create(6)
        given = Buffer("ids", (n,), "i32", "input", live=live)
        logprobs = Buffer("logprobs", (n,), "f32", "input", live=live)
        tokens = Buffer("tokens", (n,), "i32", "state", live=live)
        for buffer, value in ((given, ids), (logprobs, -np.arange(n)), (results.depth, [depth])):
            case.set(buffer, value)
        pass_draft(case.builder, results, given, logprobs, tokens)
        return case, results, tokens

    return make


def test_drafts_go_on_and_out():
    case, results, tokens = pass_case([5, -1, 9])()
    backend = CpuBackend(2)
    assert case.run(backend, tokens).tolist() == [5, 0, 9]
    ids, logprobs = results.read(backend.array(results.drafts), 3, 3)
    assert ids[2].tolist() == [5, -1, 9] and logprobs[2].tolist() == [0, -1, -2]
    case, _, tokens = pass_case([5], MAX_DRAFTS)()
    with pytest.raises(FaultError, match="outside its table"):
        case.run(CpuBackend(1), tokens)
