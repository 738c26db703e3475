"""Mixture of experts on the CPU against the contract, bit for bit, with faults planted in every part."""

import numpy as np
import pytest
from harness import LEVELS, Case, contract, float_reference, nrmse, on_every_level, output, same_bits, weight

from strata.backends import ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.errors import FaultError, ModelFileError
from strata.ops import Buffer, ExpertWeights, Weight, combine, gated_add, group_by_expert, routed_experts
from strata.ops.combine import Combine, GatedAdd
from strata.ops.expert_groups import GroupByExpert
from strata.ops.experts import ExpertDown
from strata.ops.router import Router
from strata.quants import FORMATS

HIDDEN, INNER = 256, 64


def normal(*shape, seed=1):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# ---- router --------------------------------------------------------------------------------------------------------


def router_case(logits, k, renormalise):
    """Ids and weights side by side, as int32 bits."""

    def make():
        case = Case(len(logits))
        ids = Buffer("ids", (len(logits), k), "i32", "output", live=case.steps.num_rows)
        weights = output(len(logits), k, case.steps)
        case.builder.emit(Router(case.input(logits), ids, weights, renormalise))
        return case, weights, ids

    return make


def run_router(make, backend):
    case, weights, ids = make()
    return case.run(backend, weights), backend.array(ids).copy()


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("experts", "k"), [(8, 3), (512, 10), (100, 64), (3, 3), (40, 1)])
def test_router(experts, k, renormalise):
    logits = normal(7, experts, seed=k) * 2
    logits[1] = np.round(logits[1])  # ties
    logits[2] = 0
    logits[2, ::2] = -0.0
    logits[3, 1] = 95  # takes all, and exponentials of the rest are 0
    make = router_case(logits, k, renormalise)
    want, ids = run_router(make, ReferenceBackend("contract"))
    for level in LEVELS:
        for threads in (1, 2):
            got, got_ids = run_router(make, CpuBackend(threads, level))
            assert same_bits(got, want), level
            assert (got_ids == ids).all(), level
    plain, plain_ids = run_router(make, ReferenceBackend("float"))
    assert (plain_ids == ids).all()
    assert nrmse(want, plain) < 1e-6
    assert (ids[2] == np.arange(k)).all(), "ties go to the lower index, and -0 is 0"
    total = want.sum(axis=-1)
    assert np.allclose(total, 1, atol=1e-5) == (renormalise or k == experts)


def test_router_shows_faults():
    logits = normal(5, 32)
    base = run_router(router_case(logits, 4, True), ReferenceBackend("contract"))
    nudged = logits.copy()
    nudged[2, base[1][2, 1]] += np.float32(1e-3)
    assert not same_bits(run_router(router_case(nudged, 4, True), ReferenceBackend("contract"))[0], base[0])
    assert not same_bits(run_router(router_case(logits, 4, False), ReferenceBackend("contract"))[0], base[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_logit_is_a_fault(bad):
    logits = normal(3, 16)
    logits[1, 7] = bad
    for backend in (CpuBackend(2), ReferenceBackend("contract"), ReferenceBackend("float")):
        with pytest.raises(FaultError, match="non-finite"):
            run_router(router_case(logits, 2, True), backend)


# ---- groups --------------------------------------------------------------------------------------------------------


def run_groups(ids, experts, backend):
    case = Case(len(ids))
    chosen = Buffer("ids", ids.shape, "i32", "input", live=case.steps.num_rows)
    pairs = Buffer("pairs", (ids.size,), "i32", "output")
    offsets = Buffer("offsets", (experts + 1,), "i32", "output")
    case.set(chosen, ids)
    case.builder.emit(GroupByExpert(chosen, pairs, offsets))
    program = case.finish()
    backend.reserve(program.arena_bytes)
    replay = backend.lower(program)
    for buffer, value in case.values.items():
        backend.array(buffer)[: len(value)] = value
    replay.run()
    return backend.array(pairs).copy(), backend.array(offsets).copy()


@pytest.mark.parametrize(("rows", "experts", "k"), [(1, 5, 1), (6, 7, 3), (33, 512, 10)])
def test_groups(rows, experts, k):
    g = np.random.default_rng(rows)
    ids = np.stack([g.permutation(experts)[:k] for _ in range(rows)]).astype(np.int32)
    want = run_groups(ids, experts, ReferenceBackend("contract"))
    for got in (run_groups(ids, experts, CpuBackend(n, level)) for n in (1, 2) for level in LEVELS):
        assert all((a == b).all() for a, b in zip(got, want, strict=True))
    pairs, offsets = want
    for expert in range(experts):
        mine = pairs[offsets[expert] : offsets[expert + 1]]
        assert (ids.reshape(-1)[mine] == expert).all() and (np.diff(mine) > 0).all()
    assert offsets[-1] == rows * k
    ids[0, 0] = (ids[0, 0] + 1) % experts
    assert (
        any((a != b).any() for a, b in zip(run_groups(ids, experts, CpuBackend(1)), want, strict=True))
        or k > 1
    )


@pytest.mark.parametrize("bad", [-1, 7])
def test_an_expert_outside_the_layer_is_a_fault(bad):
    ids = np.array([[0, 1], [2, bad]], np.int32)
    for backend in (CpuBackend(2), ReferenceBackend("contract")):
        with pytest.raises(FaultError, match="outside"):
            run_groups(ids, 7, backend)


# ---- routed experts ------------------------------------------------------------------------------------------------


def stack(name, experts, n, k, seed):
    w = weight(name, experts * n, k, seed)
    return Weight(f"{name}.{seed}", w.format, (experts, n, k), w.data.reshape(experts, -1))


def scales(experts, seed):
    values = np.random.default_rng(seed).uniform(0.5, 2, experts).astype(np.float32)
    return Weight(f"scale.{seed}", FORMATS["F32"], (experts,), values.view(np.uint8))


def expert_weights(gate, up, down, experts, hidden, inner, scaled=False):
    return ExpertWeights(
        stack(gate, experts, inner, hidden, 1),
        stack(up, experts, inner, hidden, 2),
        stack(down, experts, hidden, inner, 3),
        *(scales(experts, s) if scaled else None for s in (4, 5, 6)),
    )


def choices(rows, experts, k, popular=None):
    """Distinct experts for every row; `popular` is among every row's."""
    g = np.random.default_rng([rows, experts, k])
    ids = np.stack([g.permutation(experts)[:k] for _ in range(rows)]).astype(np.int32)
    if popular is not None:
        ids[(ids != popular).all(axis=-1), 0] = popular
    return ids


def experts_case(w, ids, hidden=HIDDEN, live=None):
    """The routed experts' rows, combined with weights that differ by row and rank."""

    def make():
        rows = len(ids)
        case = Case(rows, live)
        x = normal(rows, hidden)
        x[:, ::37] *= 8
        chosen = Buffer("ids", ids.shape, "i32", "input", live=case.steps.num_rows)
        case.set(chosen, ids)
        groups = group_by_expert(case.builder, chosen, w.gate.shape[0])
        y = routed_experts(case.builder, case.input(x), groups, w)
        mix = case.input(np.random.default_rng(9).uniform(0.1, 1, ids.shape).astype(np.float32), "mix")
        out = output(rows, hidden, case.steps)
        case.builder.emit(Combine(y, mix, out))
        return case, out

    return make


QUANTISED = [name for name, f in FORMATS.items() if f.quantised]
MIXES = [
    *((name, name, "Q8_0", 4) for name in QUANTISED),
    ("Q4_K", "IQ3_S", "F16", 3),
    ("F16", "F32", "BF16", 5),
    ("BF16", "Q5_K", "IQ4_NL", 2),
    ("Q6_K", "F16", "NVFP4", 1),
    *(("Q8_0", "Q8_0", name, 3) for name in QUANTISED if FORMATS[name].block_values <= INNER),
]


@pytest.mark.parametrize(("gate", "up", "down", "rows"), MIXES, ids=str)
def test_routed_experts_for_every_format(gate, up, down, rows):
    w = expert_weights(gate, up, down, 5, HIDDEN, INNER)
    make = experts_case(w, choices(rows, 5, 2))
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), f"{gate} {up} {down}, {label}"
    assert nrmse(want, float_reference(make)) < 0.03
    used = choices(rows, 5, 2)[-1, -1]
    for plane in (w.gate, w.up, w.down):
        plane.data[[used, used - 1]] = plane.data[[used - 1, used]]
        assert not same_bits(contract(make), want), f"another expert's {plane} must show"
        plane.data[[used, used - 1]] = plane.data[[used - 1, used]]


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 17, 31, 32])
@pytest.mark.parametrize("kinds", [("Q4_1", "Q4_1", "Q5_1"), ("IQ3_XXS", "IQ3_XXS", "IQ4_NL"), ("F16",) * 3])
def test_a_row_is_the_same_beside_any_others(kinds, rows):
    w = expert_weights(*kinds, 8, HIDDEN, INNER)
    ids = choices(32, 8, 3, popular=2)
    want = contract(experts_case(w, ids))
    for threads in (1, 2):
        case, out = experts_case(w, ids, live=rows)()
        got = case.run(CpuBackend(threads), out, whole=True)
        assert same_bits(got[:rows], want[:rows])
        assert np.isnan(got[rows:]).all(), "rows that are not live stay untouched"


@pytest.mark.parametrize("kinds", [("Q8_0", "Q8_0", "Q4_0"), ("F32", "F32", "F16")])
def test_more_rows_for_an_expert_than_a_tile_holds(kinds):
    """Groups of 128 rows and more, and of a number that no tile divides; widths that 32 features do not divide."""
    w = expert_weights(*kinds, 3, 64, 96)
    make = experts_case(w, choices(261, 3, 1, popular=1), hidden=64)
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(make)) < 0.03


@pytest.mark.parametrize(("hidden", "inner"), [(2560, 640), (160, 32), (40, 24)])
def test_widths(hidden, inner):
    """640 is 20 blocks in 4 segments; widths that are no multiple of 32 occur with float weights only."""
    kinds = ("Q5_1", "Q5_1", "Q5_1") if hidden % 32 == 0 else ("F32", "BF16", "F16")
    w = expert_weights(*kinds, 3, hidden, inner)
    make = experts_case(w, choices(3, 3, 2), hidden=hidden)
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label


@pytest.mark.parametrize("kinds", [("NVFP4", "NVFP4", "NVFP4"), ("F16", "F16", "F16")])
def test_scales_of_experts(kinds):
    w = expert_weights(*kinds, 4, HIDDEN, INNER, scaled=True)
    make = experts_case(w, choices(5, 4, 2))
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(make)) < 0.03
    assert not same_bits(
        want, contract(experts_case(expert_weights(*kinds, 4, HIDDEN, INNER), choices(5, 4, 2)))
    )
    w.down_scale.data.view(np.float32)[choices(5, 4, 2)[0, 0]] *= 1.01
    assert not same_bits(want, contract(make))


def test_gate_and_up_in_one_tensor():
    """Halves of each expert's rows, not copied: the same bits as two tensors."""
    w = expert_weights("Q4_K", "Q4_K", "Q8_0", 4, HIDDEN, INNER)
    merged = np.concatenate([w.gate.data, w.up.data], axis=1)
    half = merged.shape[1] // 2
    views = [
        Weight(name, w.gate.format, w.gate.shape, merged[:, part])
        for name, part in (("gate", slice(0, half)), ("up", slice(half, None)))
    ]
    ids = choices(4, 4, 2)
    want = contract(experts_case(w, ids))
    joined = experts_case(ExpertWeights(*views, w.down), ids)
    assert same_bits(contract(joined), want)
    for label, got in on_every_level(joined):
        assert same_bits(got, want), label
    swapped = experts_case(ExpertWeights(*reversed(views), w.down), ids)
    assert not same_bits(contract(swapped), want)


def test_experts_are_found_through_the_table():
    """Moved experts compute the same from their new place; experts that no row chose are never looked at."""
    w = expert_weights("Q4_0", "Q5_0", "Q8_0", 6, HIDDEN, INNER)
    ids = np.array([[4, 1], [1, 3]], np.int32)
    want = contract(experts_case(w, ids))
    case, out = experts_case(w, ids)()
    backend = CpuBackend(2)
    assert same_bits(case.run(backend, out), want)
    moved = []
    for plane in (w.gate, w.up, w.down):
        table = backend.expert_table(plane)
        moved.append({e: plane.data[e].copy() for e in (1, 3, 4)})
        table[:] = 0  # nothing is there: reading it ends the process
        for e, data in moved[-1].items():
            table[e] = data.ctypes.data
            plane.data[e] ^= 0xFF
    assert same_bits(case.run(backend, out), want)
    backend.expert_table(w.gate)[3] = moved[0][4].ctypes.data
    assert not same_bits(case.run(backend, out), want)


def test_non_finite_inner_rows_are_a_fault():
    w = expert_weights("F32", "F32", "Q8_0", 2, 64, 32)
    w.up.data[1].view(np.float32)[:64] = 3e38
    for backend in (CpuBackend(2), ReferenceBackend("contract")):
        case, out = experts_case(w, np.array([[0], [1]], np.int32), hidden=64)()
        with np.errstate(all="ignore"), pytest.raises(FaultError, match="non-finite"):
            case.run(backend, out)


def test_shapes_are_checked():
    w = expert_weights("F32", "F32", "F32", 4, 64, 32)
    ids = choices(2, 4, 2)
    short = ExpertWeights(w.gate, stack("F32", 3, 32, 64, 2), w.down)
    with pytest.raises(ModelFileError, match=r"F32.2 has shape \[3, 32, 64\], expected \[4, 32, 64\]"):
        experts_case(short, ids, hidden=64)()
    wide = ExpertWeights(w.gate, w.up, stack("F32", 4, 64, 96, 3))
    with pytest.raises(ModelFileError, match=r"F32.3 has shape \[4, 64, 96\], expected \[4, 64, 32\]"):
        experts_case(wide, ids, hidden=64)()
    with pytest.raises(ModelFileError, match=r"\[4, 32, 64\], expected \[4, 32, 128\]"):
        experts_case(w, ids, hidden=128)()


def test_a_row_reads_only_its_experts():
    w = expert_weights("Q8_0", "Q8_0", "Q4_0", 8, 64, 32)
    case, _ = experts_case(w, choices(1, 8, 2), hidden=64)()
    [down] = [op for op in case.finish().ops if isinstance(op, ExpertDown)]
    assert down.row_weight_bytes() == 2 * 64 * 18


# ---- combine and shared expert -------------------------------------------------------------------------------------


def combine_case(rows, k, width, nudge=0.0):
    def make():
        case = Case(rows)
        y = Buffer("y", (rows * k, width), "f32", "input")
        values = normal(rows * k, width)
        values[0, -1] += np.float32(nudge)
        case.set(y, values)
        mixed = combine(case.builder, y, case.input(normal(rows, k, seed=2), "mix"))
        gate = case.input(normal(rows, 1, seed=3) * 4, "gate")
        out = output(rows, width, case.steps)
        case.builder.emit(GatedAdd(mixed, case.input(normal(rows, width, seed=4), "shared"), gate, out))
        return case, out

    return make


@pytest.mark.parametrize(("rows", "k", "width"), [(1, 10, 2560), (5, 3, 100), (32, 8, 257)])
def test_combine_and_gated_add(rows, k, width):
    make = combine_case(rows, k, width)
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(make)) < 1e-6
    assert not same_bits(want, contract(combine_case(rows, k, width, nudge=0.01)))


def test_ranks_are_combined_in_order():
    """1e8 - 1e8 + 1 is 1 in rank order and 0 in another."""
    case = Case(1)
    y = Buffer("y", (3, 1), "f32", "input")
    case.set(y, np.array([[1e8], [-1e8], [1]], np.float32))
    mix = case.input(np.ones((1, 3), np.float32), "mix")
    out = output(1, 1, case.steps)
    case.builder.emit(Combine(y, mix, out))
    assert case.run(CpuBackend(1), out)[0, 0] == 1
    case.set(y, np.array([[1e8], [1], [-1e8]], np.float32))
    assert case.run(CpuBackend(1), out)[0, 0] == 0


def test_combine_checks_rows():
    case = Case(2)
    with pytest.raises(ModelFileError, match="does not hold 3 rows for each of 2 tokens"):
        combine(case.builder, Buffer("y", (5, 8)), case.input(normal(2, 3), "mix"))
    with pytest.raises(ModelFileError, match="differ in shape"):
        gated_add(case.builder, case.input(normal(2, 8)), case.input(normal(2, 9)), case.input(normal(2, 1)))
