"""Prompt chunks' products on int8 tensor cores, as a GeForce card takes them: bit for bit the CPU's."""

from dataclasses import replace

import pytest
from emulated_driver import EmulatedDriver
from harness import same_bits, weight
from test_cpu_experts import choices, expert_weights, experts_case
from test_cpu_ops import QUANTISED, linear_case

from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend

SHARED = {750: 64 << 10, 890: 99 << 10, 800: 163 << 10}  # that a thread block may have


def card(arch=890):
    driver = EmulatedDriver(arch)
    driver.properties = replace(driver.properties, shared=SHARED[arch])
    return CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18)


def on(make, backend):
    case, out = make()
    return case.run(backend, out)


def launched(backend):
    return {n.kernel.entry: n for n in backend.driver.launched}


@pytest.mark.parametrize("name", QUANTISED)
def test_every_format(name):
    """A wrong bit of the weight is seen in its row alone."""
    want = on(linear_case(name, 70), CpuBackend(2))
    assert same_bits(on(linear_case(name, 70), card()), want)
    damage = len(weight(name, 48, 768, 3).data) // 2 + 3
    differs = (on(linear_case(name, 70, damage=damage), card()) != want).any(axis=0)
    assert differs.sum() == 1


@pytest.mark.parametrize("arch", SHARED)
@pytest.mark.parametrize(
    ("name", "rows", "n", "k"), [("Q6_K", 129, 130, 2560), ("Q4_K", 65, 3, 512), ("Q2_K", 70, 33, 5376)]
)
def test_odd_shapes(name, rows, n, k, arch):
    """Uneven segments, rows and columns beyond the tiles, and the tiles of other cards."""
    make, device = linear_case(name, rows, n=n, k=k), card(arch)
    assert same_bits(on(make, device), on(make, CpuBackend(2)))
    node = launched(device)["int8_linear"]
    assert node.shared == device.driver._module(node.kernel.source).number("int8_linear_shared")


@pytest.mark.parametrize("arch", [750, 890])
@pytest.mark.parametrize(("gate", "down"), [("IQ3_XXS", "Q2_K"), ("Q4_K", "Q6_K")])
def test_routed_experts(gate, down, arch):
    """Experts of more pairs than a tile has, of few, of none; another expert's plane shows."""
    w = expert_weights(gate, gate, down, 9, 256, 256, scaled=True)
    make = experts_case(w, choices(150, 8, 3, popular=2), hidden=256)
    device, want = card(arch), on(make, CpuBackend(2))
    assert same_bits(on(make, device), want)
    assert launched(device)["int8_down"].kernel.source.file == "int8_experts.cu"
    w.down.data[[2, 3]] = w.down.data[[3, 2]]
    assert not same_bits(on(make, card(arch)), want)


def test_any_order_of_threads():
    make = linear_case("IQ2_S", 70)
    want = on(make, CpuBackend(2))
    for seed in (1, 2):
        device = card()
        device.driver.seed = seed
        assert same_bits(on(make, device), want)
