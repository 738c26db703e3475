"""Instruction sets, and the contract's functions on each of them."""

import numpy as np
import pytest
from machines import Array, apply, fma, instruction_set, same_bits

from strata import _native

FLOATS = ("exp32", "log32", "softplus32", "sigmoid32", "silu32")


def sample_floats() -> Array:
    rng = np.random.default_rng(5)
    wide = rng.standard_normal(4000) * 10.0 ** rng.integers(-6, 2, 4000)
    edges = [0.0, -0.0, 88.0, 88.1, -87.0, -87.1, 20.0, 20.1, 1e-30, -1e-30, 3e38, -3e38]
    return np.concatenate([wide, edges]).astype(np.float32)


def test_levels() -> None:
    levels = _native.isa_levels()
    assert levels[0] == "generic"
    assert _native.isa_level() in levels
    with instruction_set("generic"):
        assert _native.isa_level() == "generic"
    with pytest.raises(ValueError, match=r"'sse9' is not available; this processor runs generic"):
        _native.set_isa("sse9")


@pytest.mark.parametrize("name", FLOATS)
def test_functions_are_equal_on_every_level(name: str) -> None:
    x = np.abs(sample_floats()) + np.float32(1e-30) if name == "log32" else sample_floats()
    results = []
    for level in _native.isa_levels():
        with instruction_set(level):
            results.append(apply(name, x))
    assert all(same_bits(r, results[0]) for r in results)
    assert not same_bits(apply(name, x + np.float32(0.01)), results[0])


def test_functions_are_accurate() -> None:
    x = sample_floats()
    x = x[np.abs(x) < 80]
    exact = x.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = {
            "exp32": np.exp(exact),
            "sigmoid32": 1 / (1 + np.exp(-exact)),
            "silu32": exact / (1 + np.exp(-exact)),
            "softplus32": np.log1p(np.exp(exact)),
        }
    for name, want in expected.items():
        np.testing.assert_allclose(apply(name, x), want, rtol=4e-7, atol=1e-37, err_msg=name)
    positive = np.abs(x[x != 0])
    np.testing.assert_allclose(
        apply("log32", positive), np.log(positive.astype(np.float64)), rtol=3e-7, atol=1e-7
    )


def test_halves_are_those_of_numpy() -> None:
    codes = np.arange(65536, dtype=np.uint16)
    numbers = codes[~np.isnan(codes.view(np.float16))]
    floats = numbers.view(np.float16).astype(np.float32)
    finite = floats[np.isfinite(floats)]
    midpoints = (finite[:-1] + finite[1:]) / 2
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([floats, bits[~np.isnan(bits)], midpoints])
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16).view(np.uint16)
    for level in _native.isa_levels():
        with instruction_set(level):
            assert same_bits(apply("half_float", numbers), floats)
            assert same_bits(apply("float_half", values, np.uint16), halves)


def test_fma_rounds_once() -> None:
    one, tiny = np.float32(1), np.float32(2.0**-12)
    a = np.array([one + tiny], np.float32)
    for level in _native.isa_levels():
        with instruction_set(level):
            assert fma(a, a, -a * a)[0] == np.float32(2.0**-24)  # what a * a lost
