"""Products of prompt chunks on tensor cores: bit for bit the CPU's, for every format and for odd shapes."""

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from harness import Case, nrmse, output, same_bits, weight
from test_cpu_experts import choices, expert_weights, experts_case
from test_cpu_ops import QUANTISED, activations, linear_case

from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend, lower_wide, lower_wide_float
from strata.backends.cuda.lower_wide import Tile
from strata.ops import linear

FLOATS = ("BF16", "F16", "F32")


def on(make, backend):
    case, out = make()
    return case.run(backend, out)


@pytest.mark.parametrize("name", QUANTISED)
def test_every_format(name, backend):
    """A wrong bit of the weight is seen in its row alone."""
    want = on(linear_case(name, 70), CpuBackend(2))
    assert same_bits(on(linear_case(name, 70), backend()), want)
    damage = len(weight(name, 48, 768, 3).data) // 2 + 3
    differs = (on(linear_case(name, 70, damage=damage), backend()) != want).any(axis=0)
    assert differs.sum() == 1


@pytest.mark.parametrize(
    ("name", "rows", "n", "k"),
    [("Q6_K", 64, 3, 256), ("IQ3_XXS", 129, 130, 512), ("Q4_K", 65, 40, 2560), ("Q6_K", 70, 33, 5376)],
)
def test_odd_shapes(name, rows, n, k, backend):
    """Uneven segments, rows and columns beyond the tiles."""
    make = linear_case(name, rows, n=n, k=k)
    assert same_bits(on(make, backend()), on(make, CpuBackend(2)))


@pytest.mark.parametrize(
    ("tile", "blocks"), [(Tile(1, 4), 11), (Tile(2, 3), 9), (Tile(2, 3), 10), (Tile(2, 2), 11)]
)
def test_a_part_of_a_stage(tile, blocks, backend, monkeypatch):
    """The last stage has fewer blocks."""
    monkeypatch.setattr(lower_wide, "TILES", (tile,))
    make = linear_case("Q8_0", 66, n=20, k=32 * blocks)
    assert same_bits(on(make, backend()), on(make, CpuBackend(2)))


def test_every_row_count(backend):
    """One program serves any number of live rows; others stay untouched."""
    want = on(linear_case("Q4_K", 200, n=33, k=512), CpuBackend(2))
    case, out = linear_case("Q4_K", 200, n=33, k=512)()
    device = backend()
    for rows in (1, 64, 65, 128, 129, 200):
        case.live_rows = rows
        case.values[case.steps.num_rows] = np.array([rows], np.int32)
        got = case.run(device, out, whole=True)
        assert same_bits(got[:rows], want[:rows]), f"{rows} rows"


HIDDEN, INNER = 512, 256


@pytest.mark.parametrize(("gate", "down"), [("IQ3_XXS", "Q2_0"), ("Q2_K", "NVFP4")])
def test_routed_experts(gate, down, backend):
    """Experts of many pairs, of few, of none; another expert's plane shows."""
    w = expert_weights(gate, gate, down, 9, HIDDEN, INNER, scaled=True)
    ids = choices(90, 8, 3, popular=2)
    make = experts_case(w, ids, hidden=HIDDEN)
    want = on(make, CpuBackend(2))
    assert same_bits(on(make, backend()), want)
    w.down.data[[2, 3]] = w.down.data[[3, 2]]
    assert not same_bits(on(make, backend()), want)


def test_experts_of_many_tiles(backend):
    """More pairs of an expert than a tile has."""
    w = expert_weights("Q4_K", "Q4_K", "Q4_K", 3, 256, 256)
    make = experts_case(w, choices(330, 3, 2, popular=1), hidden=256)
    assert same_bits(on(make, backend()), on(make, CpuBackend(2)))


def chunk_case(name, rows, n, k, first=0, damage=None):
    """A float product of rows [first, first + rows) of a prompt's."""

    def make():
        case = Case(rows)
        case.builder.form = "chunk"
        w = weight(name, n, k, seed=3)
        if damage is not None:
            w.data[damage] ^= 0x04
        x = activations(200, k)[first : first + rows]
        out = output(rows, n, case.steps)
        linear(case.builder, case.input(x), w, out=out)
        return case, out

    return make


@pytest.mark.parametrize("many", [64, 2048])
@pytest.mark.parametrize("n", [1, 4, 8])
@pytest.mark.parametrize("name", FLOATS)
def test_few_outputs_of_prompts_have_the_bits_of_steps(name, n, many, backend, monkeypatch):
    """Rows one or four a warp, the last of them fewer."""
    monkeypatch.setattr(lower_wide_float, "_MANY_ROWS", many)
    got = on(chunk_case(name, 198, n, 328), backend())
    assert same_bits(got, on(chunk_case(name, 198, n, 328), CpuBackend(2)))
    matrix = weight(name, n, 328, seed=3).decode().astype(np.float64)
    assert nrmse(got, activations(200, 328)[:198].astype(np.float64) @ matrix.T) < 1e-6


@pytest.mark.parametrize(("n", "k"), [(70, 2560), (10, 328)])
@pytest.mark.parametrize("name", FLOATS)
def test_float_products_of_prompts(name, n, k, backend):
    """Near the exact product; a row's bits are its own beside any others; a wrong bit shows."""
    got = on(chunk_case(name, 200, n, k), backend())
    matrix = weight(name, n, k, seed=3).decode().astype(np.float64)
    want = activations(200, k).astype(np.float64) @ matrix.T
    assert nrmse(got, want) < 1e-6
    assert same_bits(on(chunk_case(name, 64, n, k, 100), backend()), got[100:164])
    size = {"F32": 4}.get(name, 2)
    wrong = on(chunk_case(name, 64, n, k, 100, damage=size * (k + 5) + size - 1), backend())
    assert ((wrong != got[100:164]).any(axis=0) == (np.arange(n) == 1)).all()


@pytest.mark.parametrize("n", [330, 258])
def test_float_products_with_tiles_of_many_outputs(n, backend, monkeypatch):
    """The wider tiles, some of them one after another."""
    monkeypatch.setattr(lower_wide_float, "_outputs", lambda at, n, rows: 160 if n == 330 else 128)
    monkeypatch.setattr(lower_wide_float, "in_turn", lambda tiles, down, at: 2)
    got = on(chunk_case("BF16", 70, n, 328), backend())
    matrix = weight("BF16", n, 328, seed=3).decode().astype(np.float64)
    assert nrmse(got, activations(200, 328)[:70].astype(np.float64) @ matrix.T) < 1e-6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_order_of_threads(seed):
    """Copies that are made late, waiters that wake at any time."""
    driver = EmulatedDriver()
    driver.seed = seed

    def device():
        return CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18)

    make = linear_case("IQ2_S", 70, n=130, k=512)
    assert same_bits(on(make, device()), on(make, CpuBackend(2)))
    w = expert_weights("IQ3_XXS", "IQ3_XXS", "Q2_0", 9, HIDDEN, INNER, scaled=True)
    make = experts_case(w, choices(90, 8, 3, popular=2), hidden=HIDDEN)
    assert same_bits(on(make, device()), on(make, CpuBackend(2)))
    matrix = weight("F32", 70, 328, seed=3).decode().astype(np.float64)
    got = on(chunk_case("F32", 70, 70, 328), device())
    assert nrmse(got, activations(200, 328)[:70].astype(np.float64) @ matrix.T) < 1e-6


@pytest.mark.parametrize(("n", "each"), [(300, 2), (1100, 1)])
def test_tiles_in_turn_and_bands_of_them(n, each, backend, monkeypatch):
    monkeypatch.setattr(lower_wide, "in_turn", lambda tiles, down, at: each)
    make = linear_case("Q8_0", 130, n=n, k=256)
    assert same_bits(on(make, backend()), on(make, CpuBackend(2)))


def test_shared_memory_is_what_the_kernels_say(backend):
    """The formulas of the lowering."""
    w = expert_weights("Q4_K", "Q4_K", "Q4_K", 3, 256, 256)
    device = backend()
    cases = {
        "wide_linear": linear_case("Q4_K", 66, n=20, k=256),
        "wide_float": chunk_case("BF16", 66, 70, 328),
        "wide_gate_up": experts_case(w, choices(66, 3, 2, popular=1), hidden=256),
    }
    for entry, make in cases.items():
        case, _ = make()
        launches = device.lower(case.finish()).launches
        node = next(launch for launch in launches if launch.kernel.entry == entry)
        name = f"{node.kernel.source.file.removesuffix('.cu')}_shared"
        assert node.shared == device.driver._module(node.kernel.source).number(name), entry
