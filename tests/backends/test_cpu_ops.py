"""Every CPU kernel against the contract reference, bit for bit: all formats, row counts, threads, instruction sets."""

import numpy as np
import pytest
from harness import Case, contract, float_reference, nrmse, on_every_level, output, same_bits, weight

from strata.backends import ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.errors import FaultError
from strata.memory import KVPool
from strata.ops import RopeScaling, RopeStyle, attention, kv_store, linear, rms_norm, rope, rope_table
from strata.ops.elementwise import Add, AddBias, SiluMul
from strata.ops.embed import Embed
from strata.ops.rms_norm import RmsNorm
from strata.quants import FORMATS

QUANTISED = [name for name, f in FORMATS.items() if f.quantised]
FLOATS = [name for name, f in FORMATS.items() if not f.quantised]


def activations(rows, width, seed=1):
    g = np.random.default_rng([seed, rows, width])
    x = g.standard_normal((rows, width)).astype(np.float32)
    x[:, ::37] *= 20  # outliers, as real activations have
    x[0, : min(32, width)] = 0  # a block of zeros
    return x


def linear_case(name, rows, n=48, k=768, damage=None):
    def make():
        case = Case(rows)
        w = weight(name, n, k, seed=3)
        if damage is not None:
            w.data[damage] ^= 0x10
        out = output(rows, n, case.steps)
        linear(case.builder, case.input(activations(rows, k)), w, out=out)
        return case, out

    return make


@pytest.mark.parametrize("name", [*QUANTISED, *FLOATS])
def test_linear_is_the_contract_for_every_format(name):
    want = contract(linear_case(name, rows=5))
    for label, got in on_every_level(linear_case(name, rows=5)):
        assert same_bits(got, want), f"{name}, {label}"
    assert nrmse(want, float_reference(linear_case(name, rows=5))) < 0.02
    wrong = contract(linear_case(name, rows=5, damage=len(weight(name, 48, 768, 3).data) // 2 + 3))
    assert not same_bits(want, wrong), "one flipped weight bit must show"


@pytest.mark.parametrize("name", [*QUANTISED, *FLOATS])
def test_linear_for_every_row_count(name):
    """A row's result does not depend on how many rows there are; rows that are not live stay untouched."""
    want = contract(linear_case(name, 32, n=33, k=512))
    for threads in (1, 2):
        case, out = linear_case(name, 32, n=33, k=512)()
        backend = CpuBackend(threads)
        for rows in range(1, 33):
            case.live_rows = rows
            case.values[case.steps.num_rows] = np.array([rows], np.int32)
            got = case.run(backend, out, whole=True)
            assert same_bits(got[:rows], want[:rows]), f"{rows} rows, {threads} threads"
            assert np.isnan(got[rows:]).all()


@pytest.mark.parametrize("k", [32, 96, 640, 2560, 18 * 32, 6144])
def test_linear_for_odd_row_lengths(k):
    """Segments of every number and unequal length."""
    make = linear_case("Q5_1", 3, n=40, k=k)
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), f"k {k}, {label}"


def norm_case(rows, width, swap=False):
    def make():
        case = Case(rows)
        x = activations(rows, width)
        if swap:
            x[:, [1, 2]] = x[:, [2, 1]]
        out = output(rows, width, case.steps)
        case.builder.emit(RmsNorm(case.input(x), weight("F32", 1, width, 5), out, 1e-5))
        return case, out

    return make


@pytest.mark.parametrize("width", [576, 100, 33, 2560])
def test_rms_norm(width):
    want = contract(norm_case(4, width))
    for label, got in on_every_level(norm_case(4, width)):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(norm_case(4, width))) < 1e-6
    assert not same_bits(want, contract(norm_case(4, width, swap=True)))


def head_norm_case(heads, head_dim):
    """The weight is as wide as a head; rms_norm's own case has one head."""

    def make():
        case = Case(5)
        out = output(5, heads * head_dim, case.steps)
        x = case.input(activations(5, heads * head_dim))
        case.builder.emit(RmsNorm(x, weight("F32", 1, head_dim, 5), out, 1e-5))
        return case, out

    return make


@pytest.mark.parametrize(("heads", "head_dim"), [(4, 128), (3, 40), (7, 33)])
def test_head_norm(heads, head_dim):
    make = head_norm_case(heads, head_dim)
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(make)) < 1e-6
    x = activations(5, heads * head_dim).reshape(5, heads, head_dim).astype(np.float64)
    scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight("F32", 1, head_dim, 5).decode()
    assert nrmse(want, scaled.reshape(5, -1)) < 1e-6
    whole = x / np.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-5) * weight("F32", 1, head_dim, 5).decode()
    assert nrmse(want, whole.reshape(5, -1)) > 0.01, "statistics over the whole row must show"


def elementwise_case(kind, shift=0.0):
    def make():
        case = Case(6)
        x = activations(6, 300)
        x[1, :5] = [-100, 100, 0, -87.5, 88.5]
        out = output(6, 300, case.steps)
        a, b = case.input(x, "a"), case.input(activations(6, 300, 2) + np.float32(shift), "b")
        if kind == "add_bias":
            case.builder.emit(AddBias(a, weight("F32", 1, 300, 9), out))
        else:
            case.builder.emit((Add if kind == "add" else SiluMul)(a, b, out))
        return case, out

    return make


@pytest.mark.parametrize("kind", ["add", "silu_mul", "add_bias"])
def test_elementwise(kind):
    want = contract(elementwise_case(kind))
    for label, got in on_every_level(elementwise_case(kind)):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(elementwise_case(kind))) < 1e-6
    if kind != "add_bias":
        assert not same_bits(want, contract(elementwise_case(kind, shift=1e-4)))


@pytest.mark.parametrize("name", [*QUANTISED, *FLOATS])
def test_embed_decodes_exactly(name):
    def make(tokens=(3, 0, 39, 17)):
        case = Case(4)
        out = output(4, 512, case.steps)
        case.set(case.steps.tokens, np.array(tokens, np.int32))
        case.builder.emit(Embed(case.steps.tokens, weight(name, 40, 512, 6), out))
        return case, out

    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label
    assert same_bits(want, float_reference(make))
    assert not same_bits(want, contract(lambda: make((3, 0, 38, 17))))


def rope_case(style, positions=(0, 5, 70, 199), rotary=32):
    def make():
        case = Case(4)
        x = case.input(activations(4, 3 * 48))
        table = rope_table(200, rotary, 1e4, RopeScaling())
        case.set(case.steps.positions, np.array(positions, np.int32))
        rotated = rope(case.builder, x, table, 48, style)
        out = output(4, 3 * 48, case.steps)
        case.builder.emit(Add(rotated, case.input(np.zeros((4, 144), np.float32), "zero"), out))
        return case, out

    return make


@pytest.mark.parametrize("style", list(RopeStyle))
def test_rope(style):
    want = contract(rope_case(style))
    for label, got in on_every_level(rope_case(style)):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(rope_case(style))) < 1e-6
    assert not same_bits(want, contract(rope_case(style, positions=(0, 5, 70, 198))))
    assert not same_bits(want, contract(rope_case(RopeStyle(1 - style))))


def attention_case(kv, positions, sequences, window=0, swap_cell=None):
    """Rows attend to pools filled by an earlier prompt of random keys; pages are shuffled."""

    def make():
        rows, heads, kv_heads, dim, pages = len(positions), 6, 2, 40, 24
        case = Case(rows, sequences=2, max_len=12 * 64)
        pool = KVPool.create(1, kv_heads, dim, pages, kv)
        layer, g = pool.layers[0], np.random.default_rng(11)
        for buffer in (layer.k, layer.v):
            value = g.standard_normal(buffer.shape).astype(np.float16 if kv == "f16" else np.float32)
            if swap_cell is not None:
                value[:, :, [swap_cell, swap_cell + 1]] = value[:, :, [swap_cell + 1, swap_cell]]
            case.set(buffer, value)
        case.set(case.steps.page_table, g.permutation(pages).reshape(2, 12).astype(np.int32))
        case.set(case.steps.positions, np.array(positions, np.int32))
        case.set(case.steps.sequences, np.array(sequences, np.int32))
        q = case.input(activations(rows, heads * dim, 4), "q")
        k, v = (case.input(activations(rows, kv_heads * dim, s), "kv") for s in (5, 6))
        kv_store(case.builder, k, v, layer)
        y = attention(case.builder, q, layer, heads, dim**-0.5, window)
        out = output(rows, heads * dim, case.steps)
        case.builder.emit(Add(y, case.input(np.zeros((rows, heads * dim), np.float32), "zero"), out))
        return case, out

    return make


SHAPES = {
    "first cell": ((0,), (0,)),
    "one split": ((254, 255), (0, 0)),
    "split border": ((255, 256, 257), (1, 1, 1)),
    "two sequences": ((700, 701, 3, 4, 5), (0, 0, 1, 1, 1)),
    "a chunk": (tuple(range(500, 533)), (0,) * 33),
}


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [0, 100])
def test_attention(kv, shape, window):
    make = attention_case(kv, *SHAPES[shape], window)
    want = contract(make)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label
    assert nrmse(want, float_reference(make)) < 1e-5


def test_attention_shows_swapped_cells():
    make = attention_case("f32", (255, 256), (0, 0))
    assert not same_bits(contract(make), contract(attention_case("f32", (255, 256), (0, 0), swap_cell=9)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_activations_are_a_fault(bad):
    for backend in (CpuBackend(2), ReferenceBackend("contract")):
        case, out = linear_case("Q8_0", 3)()
        next(v for b, v in case.values.items() if b.name == "x")[1, 40] = bad
        with pytest.raises(FaultError, match="non-finite"):
            case.run(backend, out)


def test_a_page_outside_the_pool_is_a_fault():
    case, out = attention_case("f32", (3, 4), (0, 0))()
    case.values[case.steps.page_table][0, 0] = 24
    with pytest.raises(FaultError, match="outside its table"):
        case.run(CpuBackend(2), out)


def test_norm_functions_check_widths():
    case = Case(2)
    with pytest.raises(Exception, match=r"shape \[1, 30\], expected \[32\]"):
        rms_norm(case.builder, case.input(activations(2, 32)), weight("F32", 1, 30, 1), 1e-5)
