"""Steps of two to eight rows: the CPU's bits for each row, in any order of threads, by the kernels meant for them."""

from dataclasses import replace

import emulator
import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from gpu_check.rows import table
from harness import Case, output, same_bits, weight
from test_cpu_ops import activations

import models.driver
from models.driver import Driver, Rows, digest
from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend, fuse
from strata.backends.cuda.compile import KERNELS
from strata.backends.cuda.driver import Kernel, Launch, Source
from strata.backends.cuda.fuse import Lowering
from strata.backends.cuda.lower import lower
from strata.backends.cuda.lower_products import product_write, products
from strata.backends.cuda.pattern import Pattern, Product, sublayer
from strata.errors import FaultError
from strata.ops import linear
from strata.ops.elementwise import Add
from strata.ops.linear import LinearQ
from strata.ops.quantize import Quantize
from strata.synth.geometry import Geometry
from strata.synth.planted import PlantedOptions, write_planted


@pytest.fixture
def rules(monkeypatch):
    """Registers patterns for one test."""
    monkeypatch.setattr(fuse, "_rules", [])
    return sublayer


def device(seed=0, shared=227 << 10):
    driver = EmulatedDriver(seed=seed)
    driver.properties = replace(driver.properties, shared=shared)
    return CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18)


def products_alone(p: Pattern) -> Lowering:
    """int8 blocks of x, then products of x."""
    quantize = p.need(Quantize)
    x = quantize.x
    p.back(0)
    matrices = [p.product(x) for _ in range(3)]
    return lambda at: [*lower(quantize, at), *products(at, x, p.planes(x, at), matrices)]


def products_case(names, rows, live, sizes, k, damage=None):
    """Three products of the same rows, side by side in `out`."""
    case = Case(rows, live)
    x = case.input(activations(rows, k))
    outs = []
    for i, (name, n) in enumerate(zip(names, sizes, strict=True)):
        w = weight(name, n, k, seed=3 + i)
        if damage is not None and i == damage[0]:
            w.data[damage[1]] ^= 0x10
        outs.append(output(rows, n, case.steps))
        linear(case.builder, x, w, out=outs[-1])
    return case, outs


def run_products(backend, *case_of, **damage):
    """Outputs one beside another, and the entries that were launched."""
    case, outs = products_case(*case_of, **damage)
    first = case.run(backend, outs[0])
    more = [np.array(backend.array(o))[: case.live_rows] for o in outs[1:]]
    launched = [n.kernel.entry for n in backend.driver.launched] if isinstance(backend, CudaBackend) else []
    return np.concatenate([first, *more], axis=1), launched


@pytest.mark.parametrize(
    ("rows", "live", "names"),
    [
        (2, 2, ("Q6_K", "F32", "Q2_0")),
        (3, 3, ("IQ3_XXS", "BF16", "Q2_0")),
        (5, 5, ("Q6_K", "F16", "IQ3_XXS")),
        (8, 7, ("Q6_K", "BF16", "IQ3_XXS")),
    ],
)
def test_products_by_thread_blocks_that_stay(rows, live, names, rules):
    """More items than warps, rows that are not live, each type damaged in turn."""
    rules(products_alone)
    sizes, k = (150, 12, 34), 2560
    shape = names, rows, live, sizes, k
    want, _ = run_products(CpuBackend(2), *shape)
    for seed in range(3):
        got, launched = run_products(device(seed), *shape)
        assert "products_stream" in launched
        assert same_bits(got, want)
    rank = rows % 3
    damage = rank, len(weight(names[rank], sizes[rank], k, 3).data) // 2 + 3
    wrong, _ = run_products(device(), *shape, damage=damage)
    places = np.nonzero((wrong.view(np.int32) != want.view(np.int32)).any(0))[0]
    assert len(places) >= 1
    assert (np.searchsorted(np.cumsum(sizes), places, "right") == rank).all()


def write_alone(p: Pattern) -> Lowering:
    """int8 blocks, their product, and the sum with the residual."""
    quantize = p.need(Quantize)
    last = p.need(LinearQ, lambda op: op.x is quantize.out)
    add = p.need(Add, lambda op: op.b is last.out)
    p.close(add.out)
    y = Product(last.weight, last.out)
    return lambda at: [*lower(quantize, at), product_write(at, at.q8(quantize.out), y, add.a, None, add.out)]


def write_case(name, rows, live, n, k, damage=None):
    case = Case(rows, live)
    w = weight(name, n, k, seed=3)
    if damage is not None:
        w.data[damage] ^= 0x10
    y = linear(case.builder, case.input(activations(rows, k)), w)
    out = output(rows, n, case.steps)
    case.builder.emit(Add(case.input(activations(rows, n, 2), "residual"), y, out))
    return case, out


@pytest.mark.parametrize(
    ("name", "rows", "live", "threads"),
    [("Q6_K", 2, 2, 256), ("Q8_0", 4, 3, 320), ("Q2_0", 8, 8, 320), ("Q4_K", 3, 3, 256)],
)
def test_last_products_in_one_wave(name, rows, live, threads, rules):
    """As many warps a thread block as bring all rows of weights to the multiprocessors once."""
    rules(write_alone)
    case, out = write_case(name, rows, live, 78, 2560)
    want = case.run(CpuBackend(2), out)
    for seed in range(3):
        backend = device(seed)
        case, out = write_case(name, rows, live, 78, 2560)
        assert same_bits(case.run(backend, out), want)
        node = backend.driver.launched[-1]
        assert (node.kernel.entry, node.block) == ("product_write", threads)
    case, out = write_case(name, rows, live, 78, 2560, damage=len(weight(name, 78, 2560, 3).data) - 7)
    assert not same_bits(case.run(device(), out), want)


# Two layers whose experts several rows choose; segments of five blocks, as the full-size model's.
ROUTED = Geometry(
    "qwen4exp", num_layers=2, interval=2, hidden_size=1280, vocab_size=256, num_experts=12, num_experts_per_tok=4,
    moe_intermediate_size=640, shared_intermediate_size=640, state_dim=128, stream_rank=32, value_heads=8,
    ngram_layer=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    path = tmp_path_factory.mktemp("routed") / "routed.gguf"
    write_planted(path, PlantedOptions(geometry=ROUTED, gain=4.0), 2)
    return path


def steps(path, backend, rows):
    """Logits of two steps of `rows` rows of two sequences, the second with one row that is not live."""
    d = Driver(path, backend, sequences=2)
    out, at = [], {0: 0, 1: 0}
    for count in (rows, rows - 1):
        parts = [p for p in ((0, count - count // 2), (1, count // 2)) if p[1]]
        tokens = [[(7 * at[s] + 3 * i + 11 * s) % 250 for i in range(n)] for s, n in parts]
        out.append(d.step(*(Rows(s, at[s], part) for (s, _), part in zip(parts, tokens, strict=True))))
        for s, n in parts:
            d.commit({s: n})
            at[s] += n
    return digest(np.concatenate(out))


@pytest.mark.parametrize(("rows", "seeds"), [(4, (0, 3)), (8, (2,))])
def test_experts_of_several_rows(rows, seeds, routed, monkeypatch):
    """Each expert's items once, however rows share them; in any order of threads."""
    monkeypatch.setattr(models.driver, "ROWS", rows)
    want = steps(routed, CpuBackend(2), rows)
    for seed in seeds:
        backend = device(seed)
        assert steps(routed, backend, rows) == want
        entries = {n.kernel.entry for n in backend.driver.launched}
        assert {"experts_gate_up_rows", "experts_down_rows"} <= entries


class Faulty(EmulatedDriver):
    """A kernel's file says something else."""

    def __init__(self, name, right, wrong):
        super().__init__()
        text = (KERNELS / name).read_text()
        assert right in text
        self._headers, self._faulty = {name: text.replace(right, wrong)}, {}

    def _module(self, source):
        if source.file not in self._headers:
            return super()._module(source)
        if source not in self._faulty:
            self._faulty[source] = emulator.Module(source.text, self.arch, headers=self._headers)
        return self._faulty[source]


def test_an_item_that_forgets_a_row_is_seen(routed, monkeypatch):
    """The second row of an expert's weights is left out: its results are what memory held."""
    monkeypatch.setattr(models.driver, "ROWS", 8)
    driver = Faulty("experts_rows.cu", "r1 = left == 0 ? r0 : take_bit(left)", "r1 = r0")
    backend = CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18)
    with pytest.raises(FaultError, match="non-finite"):
        steps(routed, backend, 8)


def test_nothing_is_read_before_it_is_written(routed, monkeypatch):
    """As test_hybrids.py has it for one row; two rows."""
    monkeypatch.setattr(models.driver, "ROWS", 2)
    want = digest(Driver(routed, CpuBackend(2)).step(Rows(0, 0, [3, 7])))
    backend = device()
    d = Driver(routed, backend)
    for watch in (emulator.WATCH, emulator.ENFORCE):
        backend.driver.watch = watch
        assert digest(d.step(Rows(0, 0, [3, 7]))) == want
    assert "experts_down_rows" in {n.kernel.entry for n in backend.driver.launched}


def test_nodes_side_by_side():
    """A line for each kernel of the one-row step, with the nodes at the same places of other steps."""

    def node(entry, x):
        return Launch(Kernel(Source("a.cu"), entry), (x, 1, 1), 32, ())

    nodes = {
        1: [node("a", 1), node("b", 2), node("a", 1)],
        2: [node("a", 2), node("c", 4), node("a", 2)],
        4: [node("a", 4)],
    }
    each = {1: [1.0, 5.0, 3.0], 2: [2.0, 6.0, 2.0], 4: [9.0]}
    assert table(nodes, each) == [
        {"kernel": "b 2x1x1", "count": 1, "us": {1: 5.0, 2: 6.0}, "at 2": "c 4x1x1"},
        {"kernel": "a 1x1x1", "count": 2, "us": {1: 2.0, 2: 2.0}, "at 2": "a 2x1x1"},
    ]
