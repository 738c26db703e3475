"""Linear kernels against an exact emulation of the contract: every format, few rows and tiles."""

import numpy as np
import pytest
from machines import Array, count, nudge, random_rows, run_everywhere, run_kernel, same_bits
from weights import contract_product, float_product, random_weight, segments

from strata import _native
from strata.quants import FORMATS

QUANTISED = [name for name, f in FORMATS.items() if f.quantised]
FLOATS = ["F32", "F16", "BF16"]
UNTOUCHED = np.float32(-77.0)


def q8_rows(rows: int, k: int, seed: int) -> tuple[Array, Array, Array]:
    """Codes, scales, sums."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (rows, k)).astype(np.int8)
    codes[0, :32] = 127
    scales = rng.uniform(0.001, 0.1, (rows, k // 32)).astype(np.float32)
    return codes, scales, codes.reshape(rows, -1, 16).sum(axis=-1).astype(np.int16)


def product(planes: tuple[Array, ...], live: int, raw: Array, type_id: int, n: int) -> Array:
    out = np.full((len(planes[0]), n), UNTOUCHED, np.float32)
    [out] = run_everywhere("linear_q", [count(live), *planes, raw, out], [type_id, planes[0].shape[1], n])
    return out


@pytest.mark.parametrize("kind", QUANTISED)
def test_linear_q_is_the_contract_to_the_bit(kind: str) -> None:
    k, n, rows = 768, 37, 6  # 24 blocks in 4 segments; a tile of 32 features and a part of one
    raw, type_id, _ = random_weight(kind, n, k, 21)
    planes = q8_rows(rows, k, 22)
    expected = contract_product(kind, raw, planes)
    for live in (1, 3, 5):
        out = product(planes, live, raw, type_id, n)
        assert same_bits(out[:live], expected[:live]), live
        assert (out[live:] == UNTOUCHED).all()
    for parts in ([range(24)], [range(s, s + 3) for s in range(0, 24, 3)]):
        assert not same_bits(expected, contract_product(kind, raw, planes, parts))
    planes[0][0, k - 1] ^= 1
    planes[2][0, -1] = planes[0][0, k - 16 :].sum(dtype=np.int16)
    assert not same_bits(expected[:1], product(planes, 1, raw, type_id, n)[:1])


@pytest.mark.parametrize("live", [*range(1, 9), 16, 31, 32])
def test_rows_do_not_depend_on_how_many_there_are(live: int) -> None:
    k, n = 256, 40
    raw, type_id, _ = random_weight("Q5_K", n, k, 23)
    planes = q8_rows(32, k, 24)
    alone = np.zeros((32, n), np.float32)
    for r in range(32):
        row = [np.ascontiguousarray(p[r : r + 1]) for p in planes]
        run_kernel("linear_q", [count(1), *row, raw, alone[r : r + 1]], [type_id, k, n])
    assert same_bits(product(planes, live, raw, type_id, n)[:live], alone[:live])


@pytest.mark.parametrize("k", [32, 64, 160, 288, 2560, 4096])
def test_segments_of_every_length(k: int) -> None:
    raw, type_id, _ = random_weight("Q4_1", 3, k, 25)
    planes = q8_rows(5, k, 26)
    expected = contract_product("Q4_1", raw, planes)
    for live in (2, 5):
        assert same_bits(product(planes, live, raw, type_id, 3)[:live], expected[:live])


def test_segments() -> None:
    assert [len(segments(b)) for b in (1, 7, 8, 15, 16, 20, 31, 32, 63, 64, 80, 512)] == [
        *[1, 1, 2, 2, 4, 4, 4, 8, 8, 16, 16, 16],
    ]


def test_a_chunk_of_rows_passes_tile_borders() -> None:
    n, rows = 33, 300
    raw, type_id, _ = random_weight("Q6_K", n, 256, 27)
    planes = q8_rows(rows, 256, 28)
    out = product(planes, rows, raw, type_id, n)
    assert same_bits(out, contract_product("Q6_K", raw, planes))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_linear_q_is_near_the_float_product(kind: str) -> None:
    raw, type_id, weight = random_weight(kind, 16, 512, 29)
    codes, scales, sums = q8_rows(2, 512, 30)
    x = codes.reshape(2, -1, 32) * scales[..., None].astype(np.float64)
    exact = x.reshape(2, -1) @ weight.T.astype(np.float64)
    out = product((codes, scales, sums), 2, raw, type_id, 16)
    assert np.sqrt(((out - exact) ** 2).mean() / (exact**2).mean()) < 1e-6


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("k", [64, 100, 1056])
def test_linear_f_is_the_contract_to_the_bit(kind: str, k: int) -> None:
    n, rows = 19, 20
    raw, type_id, weight = random_weight(kind, n, k, 31)
    x = random_rows(rows, k, 32)
    expected = float_product(x, weight)
    for live in (1, 3, 18):
        out = np.full((rows, n), UNTOUCHED, np.float32)
        [out] = run_everywhere("linear_f", [count(live), x, raw, out], [type_id, k, n])
        assert same_bits(out[:live], expected[:live])
        assert (out[live:] == UNTOUCHED).all()
    assert not same_bits(expected, float_product(nudge(x), weight))
    assert not same_bits(expected, float_product(x, weight, lanes=16))
    np.testing.assert_allclose(
        expected, x.astype(np.float64) @ weight.T.astype(np.float64), rtol=0, atol=1e-4
    )


def test_unknown_types_are_faults() -> None:
    planes, out = q8_rows(1, 64, 35), np.zeros((1, 4), np.float32)
    raw, x = np.zeros(4096, np.uint8), random_rows(1, 64, 36)
    for type_id in (0, 4, 99):  # a float type, a retired one, none
        run_everywhere("linear_q", [count(1), *planes, raw, out], [type_id, 64, 4], fault=_native.FAULT_RANGE)
    run_everywhere("linear_f", [count(1), x, raw, out], [8, 64, 4], fault=_native.FAULT_RANGE)
    tokens = np.zeros(1, np.int32)
    run_everywhere("embed", [tokens, count(1), raw, x], [99, 64, 4], fault=_native.FAULT_RANGE)
