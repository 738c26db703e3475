"""On a GPU: every form of a product and every step form has the CPU's bits; a layer's result does not depend on where
its experts were computed."""

from collections.abc import Iterator

import numpy as np
import pytest

pytestmark = pytest.mark.cuda
pytest.importorskip("cuda.bindings.driver", reason="the cuda extra (cuda-bindings) is not installed")

from benchmarks.contract import harness, layers, products, steps  # noqa: E402  (after the skip)
from benchmarks.contract.cpu import Cpu  # noqa: E402


@pytest.fixture(scope="module")
def gpu() -> harness.Gpu:
    try:
        return harness.Gpu()
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no NVIDIA GPU or driver: {error}")


@pytest.fixture(scope="module")
def cpu(gpu: harness.Gpu) -> Cpu:
    return Cpu()


@pytest.fixture(scope="module", params=products.SHAPES)
def case(request: pytest.FixtureRequest, gpu: harness.Gpu, cpu: Cpu) -> Iterator[products.Case]:
    made = products.Case(gpu, cpu, request.param, 300, n=1280, rotate=1)
    yield made
    made.free()


def test_every_form_has_the_same_bits(case: products.Case, cpu: Cpu) -> None:
    result = products.check_case(case, cpu)
    assert all(result.values()), result


def test_one_wrong_bit_of_a_weight_is_seen(case: products.Case, cpu: Cpu) -> None:
    expected = cpu.product("packed", case.name, case.packed, case.n, case.rows(8))
    broken = case.packed.copy()
    broken[5] ^= 1
    case.w.put(broken)
    for kernels in (
        dict(products.gemv_kernels(case, 1, False))[8],
        dict(products.gemm_kernels(case, True))[8],
    ):
        got = products.run_once(case, kernels, 8)
        assert not products.same_bits(got, expected)
        assert products.same_bits(np.ascontiguousarray(got[:, 1:]), np.ascontiguousarray(expected[:, 1:]))
    case.w.put(case.packed)


def test_another_order_has_other_bits(case: products.Case, cpu: Cpu) -> None:
    """The comparison can fail: sums in a free order differ."""
    expected = cpu.product("packed", case.name, case.packed, case.n, case.rows(1))
    assert not products.same_bits(
        products.run_once(case, dict(products.gemv_kernels(case, 1, True))[1], 1), expected
    )


def test_step_forms(gpu: harness.Gpu, cpu: Cpu) -> None:
    result = steps.check(steps.Steps(gpu), cpu, 1009)
    assert all(result.values()), result


def test_a_layer_does_not_depend_on_residency(gpu: harness.Gpu, cpu: Cpu) -> None:
    made = layers.Layers(gpu, contents=32, slots=64)
    one, fault = made.run(made.graph(1))
    assert fault == 0
    assert steps.same(one, layers.first_layer(made, cpu))
    base, _ = made.run(made.graph())
    made.set_misses(made.b["ids"].get((layers.LAYERS, layers.TOP), np.int32), 4)
    copied, fault = made.run(made.graph())
    assert fault == 0
    assert steps.same(copied, base)
    made.clear()
    handle = made.start_workers(2)
    shared, fault = made.run(made.graph(to_cpu=2))
    made.stop_workers(handle)
    assert fault == 0
    assert steps.same(shared, base)
    made.clear()
    _, fault = made.run(made.graph(to_cpu=4))  # nobody answers: the bounded wait ends the step
    assert fault == 1
