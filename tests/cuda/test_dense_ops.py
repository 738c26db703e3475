"""Every op of dense architectures on the device, bit for bit the CPU's."""

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from harness import Case, output, same_bits, weight
from test_cpu_ops import (
    FLOATS,
    QUANTISED,
    SHAPES,
    activations,
    attention_case,
    elementwise_case,
    head_norm_case,
    linear_case,
    norm_case,
    rope_case,
)

from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend
from strata.errors import FaultError
from strata.memory import KVPool
from strata.ops import RopeStyle, attention, kv_store, linear
from strata.ops.elementwise import Add, GeluMul, Scale
from strata.ops.embed import Embed
from strata.ops.gather_rows import GatherRows


def on_cpu(make):
    case, out = make()
    return case.run(CpuBackend(2), out)


def on_device(make, backend):
    case, out = make()
    return case.run(backend(), out)


def check(make, backend, wrong=None):
    """The device's bits are the CPU's; those of the case `wrong` are not."""
    want, got = on_cpu(make), on_device(make, backend)
    assert same_bits(got, want)
    if wrong is not None:
        assert not same_bits(on_device(wrong, backend), want)


@pytest.mark.parametrize("name", [*QUANTISED, *FLOATS])
def test_linear_for_every_format(name, backend):
    damage = len(weight(name, 48, 768, 3).data) // 2 + 3
    check(linear_case(name, 5), backend, linear_case(name, 5, damage=damage))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "Q2_K", "NVFP4", "IQ3_XXS"])
def test_linear_with_long_segments(name, rows, backend):
    """13 or 14 blocks a segment: two lanes share one."""
    damage = len(weight(name, 11, 6912, 3).data) // 2 + 3
    check(
        linear_case(name, rows, n=11, k=6912), backend, linear_case(name, rows, n=11, k=6912, damage=damage)
    )


def launched(make):
    """The last launch of a case on the emulated device, whose bits are the CPU's."""
    device = CudaBackend(EmulatedDriver())
    case, out = make()
    assert same_bits(case.run(device, out), on_cpu(make))
    return device.driver.launched[-1]


@pytest.mark.parametrize(("n", "threads"), [(64, 256), (78, 320), (96, 256)])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
def test_more_warps_where_one_wave_is_enough_then(name, n, threads):
    """Thread blocks of a weight row a warp, two on each of four multiprocessors."""
    assert launched(linear_case(name, 1, n=n, k=6912)).block == threads


@pytest.mark.parametrize(
    ("name", "n", "entry"),
    [("Q8_0", 128, "linear_q"), ("Q8_0", 160, "products_stream"), ("Q4_K", 160, "linear_q")],
)
def test_more_weights_than_run_at_once_are_streamed(name, n, entry, backend):
    """Of formats that come through shared memory."""
    assert launched(linear_case(name, 1, n=n, k=2560)).kernel.entry == entry
    damage = len(weight(name, n, 2560, 3).data) - 5
    check(linear_case(name, 1, n=n, k=2560), backend, linear_case(name, 1, n=n, k=2560, damage=damage))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", FLOATS)
def test_float_products_of_few_rows(name, rows, backend):
    """A ring of chunks that goes round, ends in a part of one, and values that are left."""
    for n, k in ((9, 6944), (5, 96), (3, 100)):
        check(linear_case(name, rows, n=n, k=k), backend)


@pytest.mark.parametrize(("rows", "n"), [(1, 210), (2, 210), (5, 212), (8, 340)])
@pytest.mark.parametrize("name", FLOATS)
def test_float_products_by_thread_blocks_that_stay(name, rows, n, backend):
    """Weight rows by two or four, more than there are warps; a chunk that is not whole."""
    damage = len(weight(name, n, 672, 3).data) - 5
    check(linear_case(name, rows, n, 672), backend, linear_case(name, rows, n, 672, damage))
    launched = getattr(backend().driver, "launched", None)
    assert launched is None or launched[-1].kernel.entry == "linear_pairs"


@pytest.mark.parametrize("name", ["Q4_K", "IQ3_XXS", "Q8_0", "BF16"])
def test_linear_for_every_row_count(name, backend):
    """One program serves any number of live rows; others stay untouched."""
    want = on_cpu(linear_case(name, 32, n=33, k=512))
    case, out = linear_case(name, 32, n=33, k=512)()
    device = backend()
    for rows in (1, 2, 7, 8, 9, 31, 32):
        case.live_rows = rows
        case.values[case.steps.num_rows] = np.array([rows], np.int32)
        got = case.run(device, out, whole=True)
        assert same_bits(got[:rows], want[:rows]), f"{rows} rows"
        assert np.isnan(got[rows:]).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [32, 96, 640, 2560, 18 * 32, 6144])
def test_linear_for_every_row_length(k, rows, backend):
    check(linear_case("Q5_1", rows, n=40, k=k), backend)


@pytest.mark.parametrize("k", [7, 20, 40, 100, 4096])
def test_float_products_of_odd_rows(k, backend):
    check(linear_case("F16", 3, n=5, k=k), backend)


@pytest.mark.parametrize("width", [576, 100, 33, 2560])
def test_rms_norm(width, backend):
    check(norm_case(4, width), backend, norm_case(4, width, swap=True))


@pytest.mark.parametrize(("heads", "head_dim"), [(4, 128), (7, 33)])
def test_head_norm(heads, head_dim, backend):
    check(head_norm_case(heads, head_dim), backend)


@pytest.mark.parametrize("kind", ["add", "silu_mul", "add_bias"])
def test_elementwise(kind, backend):
    check(elementwise_case(kind), backend)


def gelu_and_scale():
    case = Case(6, live=5)
    a, b = case.input(activations(6, 300), "a"), case.input(activations(6, 300, 2), "b")
    between, out = case.builder.rows(300, "between"), output(6, 300, case.steps)
    case.builder.emit(GeluMul(a, b, between))
    case.builder.emit(Scale(between, out, 0.37))
    return case, out


def test_gelu_and_scale(backend):
    check(gelu_and_scale, backend)


@pytest.mark.parametrize("name", [*QUANTISED, *FLOATS])
def test_embed(name, backend):
    def make(tokens=(3, 0, 39, 17)):
        case = Case(4)
        out = output(4, 512, case.steps)
        case.set(case.steps.tokens, np.array(tokens, np.int32))
        case.builder.emit(Embed(case.steps.tokens, weight(name, 40, 512, 6), out))
        return case, out

    check(make, backend, lambda: make((3, 0, 38, 17)))
    with pytest.raises(FaultError, match="outside its table"):
        on_device(lambda: make((3, 0, 40, 17)), backend)


@pytest.mark.parametrize("style", list(RopeStyle))
def test_rope(style, backend):
    check(rope_case(style), backend, rope_case(style, positions=(0, 5, 70, 198)))


def test_gather_rows(backend):
    def make():
        case = Case(5)
        out = output(5, 70, case.steps)
        case.set(case.steps.logit_rows, np.array([4, 0, 2, 2, 1], np.int32))
        case.builder.emit(GatherRows(case.steps.logit_rows, case.input(activations(5, 70)), out))
        return case, out

    check(make, backend)


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [0, 100])
def test_attention(kv, shape, window, backend):
    check(attention_case(kv, *SHAPES[shape], window), backend)


def test_attention_shows_swapped_cells(backend):
    make = attention_case("f32", (255, 256), (0, 0))
    check(make, backend, attention_case("f32", (255, 256), (0, 0), swap_cell=9))


def grouped_attention(kv, heads, kv_heads, dim, cells):
    """A sequence stored in one step of many rows, then read by its last ones."""

    def make():
        rows = 32
        case = Case(rows, sequences=1, max_len=-(-cells // 64) * 64)
        layer = KVPool.create(1, kv_heads, dim, -(-cells // 64), kv).layers[0]
        g = np.random.default_rng(3)
        for buffer in (b for b in (layer.k, layer.v, layer.k_scales, layer.v_scales) if b is not None):
            x = g.standard_normal(buffer.shape)
            value = (
                x * 40 if buffer.dtype == "i8" else np.abs(x) * 0.01 if buffer.name.find("scales") > 0 else x
            )
            case.set(
                buffer, value.astype({"i8": np.int8, "f16": np.float16, "f32": np.float32}[buffer.dtype])
            )
        case.set(case.steps.page_table, g.permutation(-(-cells // 64))[None].astype(np.int32))
        case.set(case.steps.positions, np.arange(cells - rows, cells, dtype=np.int32))
        case.set(case.steps.sequences, np.zeros(rows, np.int32))
        k, v = (case.input(activations(rows, kv_heads * dim, s), f"kv{s}") for s in (5, 6))
        kv_store(case.builder, k, v, layer)
        q = case.input(activations(rows, heads * dim, 4), "q")
        y = attention(case.builder, q, layer, heads, dim**-0.5)
        out = output(rows, heads * dim, case.steps)
        zero = case.input(np.zeros((rows, heads * dim), np.float32), "zero")
        case.builder.emit(Add(y, zero, out))
        return case, out

    return make


@pytest.mark.parametrize(
    ("kv", "heads", "kv_heads", "dim", "cells"),
    [("int8", 20, 5, 128, 300), ("int8", 3, 1, 256, 600), ("f16", 7, 1, 64, 500), ("int8", 2, 2, 32, 64)],
)
def test_grouped_attention(kv, heads, kv_heads, dim, cells, backend):
    check(grouped_attention(kv, heads, kv_heads, dim, cells), backend)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_activations_are_a_fault(bad, backend):
    case, out = linear_case("Q8_0", 3)()
    next(v for b, v in case.values.items() if b.name == "x")[1, 40] = bad
    with pytest.raises(FaultError, match="non-finite"):
        case.run(backend(), out)


def test_a_page_outside_the_pool_is_a_fault(backend):
    case, out = attention_case("f32", (3, 4), (0, 0))()
    case.values[case.steps.page_table][0, 0] = 24
    with pytest.raises(FaultError, match="outside its table"):
        case.run(backend(), out)


def test_several_products_share_a_quantised_input(backend):
    def make():
        case = Case(3)
        x = case.input(activations(3, 256))
        a = linear(case.builder, x, weight("Q4_0", 64, 256, 1))
        b = linear(case.builder, x, weight("Q6_K", 64, 256, 2))
        out = output(3, 64, case.steps)
        case.builder.emit(Add(a, b, out))
        return case, out

    check(make, backend)
