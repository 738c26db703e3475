"""Encoders: equal to the `gguf` package where it has them, close to the weights elsewhere, typed errors."""

import numpy as np
import pytest
from numpy.typing import NDArray

import gguf
from strata.errors import UnsupportedError, UsageError
from strata.quants import FORMATS, grid_search, search
from strata.quants.unpack import fields, pack_fields

IN_PACKAGE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]

# NRMSE on Gaussian weights, seed 1, at this code's first version, rounded up in the last digit.
MEASURED = {"Q4_K": 0.0718, "Q6_K": 0.0169, "IQ4_NL": 0.0736, "Q2_0": 0.3521, "IQ3_XXS": 0.1786}


def gaussian(rows: int = 64, k: int = 1024, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.02, (rows, k)).astype(np.float32)


def nrmse(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    error = got.astype(np.float64) - want
    return float(np.sqrt((error**2).sum() / (want.astype(np.float64) ** 2).sum()))


def weights_with_corners() -> NDArray[np.float32]:
    """Gaussian rows; then zeros, constants, one-sided rows, ties, tiny and huge values."""
    x = gaussian()
    x[0] = 0
    x[1], x[2] = 0.3, -0.3
    x[3], x[4] = np.abs(x[3]), -np.abs(x[4])
    x[5] = np.tile(np.arange(-16, 16) / 8, 32)
    x[6] *= 1e-6
    x[7] *= 1e5
    x[8] = np.tile([1, -1], 512)
    return x


@pytest.mark.parametrize("name", IN_PACKAGE)
def test_encode_equals_the_package_in_bits(name: str) -> None:
    x = weights_with_corners()
    want = gguf.quants.quantize(x.copy(), gguf.GGMLQuantizationType(FORMATS[name].type_id)).view(np.uint8)
    got = FORMATS[name].encode(x)
    assert np.array_equal(got, want)
    x[40] = -x[40]  # the planted fault: negation swaps codes in every format
    assert not np.array_equal(FORMATS[name].encode(x), want)


@pytest.mark.parametrize("name", MEASURED)
def test_searched_encoders_reach_their_error(name: str) -> None:
    x = gaussian()
    fmt = FORMATS[name]
    error = nrmse(fmt.decode(fmt.encode(x)), x)
    assert MEASURED[name] * 0.99 < error <= MEASURED[name]


def test_a_search_with_one_candidate_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds above are tight enough to see that the search is gone."""
    one = {"_IQ4_PEAKS": [-127], "_Q2_0_PEAKS": [2], "_Q4_K_RANGES": [15], "_Q6_K_PEAKS": [-20]}
    for constant, values in one.items():
        monkeypatch.setattr(search, constant, np.array(values, np.float32))
    monkeypatch.setattr(search, "_REFINEMENTS", 0)
    monkeypatch.setattr(grid_search, "_REACHES", np.ones(1, np.float32))
    x = gaussian()
    for name, bound in MEASURED.items():
        fmt = FORMATS[name]
        assert nrmse(fmt.decode(fmt.encode(x)), x) > bound, name


@pytest.mark.parametrize("name", MEASURED)
def test_representable_weights_survive(name: str) -> None:
    """Weights that came out of a block re-encode with an error far below the format's own."""
    fmt = FORMATS[name]
    once = fmt.decode(fmt.encode(gaussian()))
    assert nrmse(fmt.decode(fmt.encode(once)), once) < MEASURED[name] / 5


@pytest.mark.parametrize("name", MEASURED)
def test_corner_rows_stay_near(name: str) -> None:
    """Zeros stay zero; no row of any sign, size or shape is far off its format's error."""
    fmt = FORMATS[name]
    x = weights_with_corners()
    x[7] /= 1e3
    got = fmt.decode(fmt.encode(x))
    assert not got[0].any()
    for row in [*range(1, 6), *range(7, 9)]:
        assert nrmse(got[row], x[row]) < 2.2 * MEASURED[name], row
    assert np.abs(got[6] - x[6]).max() < 2e-7  # half-precision scales end near 6e-8


@pytest.mark.parametrize("name", ["IQ3_XXS", "IQ4_NL", "Q2_0"])
def test_weights_of_errors_count(name: str) -> None:
    """The weighed error falls by 5 % at least, and even weights change nothing."""
    x, fmt = gaussian(), FORMATS[name]
    weights = np.random.default_rng(3).gamma(0.5, size=x.shape[1]).astype(np.float32)

    def weighed(blocks: NDArray[np.uint8]) -> float:
        return float((weights * np.square(fmt.decode(blocks) - x)).sum())

    assert weighed(fmt.encode(x, weights)) < 0.95 * weighed(fmt.encode(x))
    assert np.array_equal(fmt.encode(x, np.full(x.shape[1], 2, np.float32)), fmt.encode(x))


def test_signs_of_iq3_xxs_are_even() -> None:
    """The cheapest of eight values gives way where the minuses are odd, by its weight too."""
    x = np.tile(np.array([-4, 3, 3, 3, 3, 3, 3, 2], np.float32), 32)[None]
    fmt = FORMATS["IQ3_XXS"]
    assert (fmt.decode(fmt.encode(x)).reshape(-1, 8)[:, 7] < 0).all()
    weights = np.tile(np.array([1, 1, 1, 0.01, 1, 1, 1, 1], np.float32), 32)
    assert (fmt.decode(fmt.encode(x, weights)).reshape(-1, 8)[:, 3] < 0).all()


@pytest.mark.parametrize(("group", "bits"), [(1, 2), (8, 4), (16, 4), (32, 4), (64, 4), (32, 2), (32, 1)])
def test_pack_fields_inverts_fields(group: int, bits: int) -> None:
    codes = np.random.default_rng(2).integers(0, 1 << bits, (5, 512), dtype=np.uint8)
    assert np.array_equal(fields(pack_fields(codes, group, bits), group, bits), codes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [*IN_PACKAGE, *MEASURED])
def test_non_finite_values_are_refused(name: str, bad: float) -> None:
    x = gaussian(2, 256)
    x[1, 7] = bad
    with pytest.raises(UsageError, match="1 of 512 values to encode are not finite"):
        FORMATS[name].encode(x)


@pytest.mark.parametrize("name", [n for n in [*IN_PACKAGE, *MEASURED] if n not in ("F32", "BF16")])
def test_values_beyond_half_scales_are_refused(name: str) -> None:
    for value in (1e9, 1e12, 3e38):
        for x in (np.full((1, 256), value, np.float32), np.full((1, 256), -value, np.float32)):
            with pytest.raises(UsageError, match=r"half-precision scale"):
                FORMATS[name].encode(x)


def test_shapes_and_missing_encoders_are_refused() -> None:
    with pytest.raises(UsageError, match="Q4_K: a row of 640 values is not whole blocks of 256"):
        FORMATS["Q4_K"].encode(np.zeros((2, 640), np.float32))
    with pytest.raises(UsageError, match="Q8_0: a row of 0 values"):
        FORMATS["Q8_0"].encode(np.zeros((2, 0), np.float32))
    with pytest.raises(UnsupportedError, match="IQ2_XS has no encoder; there are F32, F16, BF16, Q4_0"):
        FORMATS["IQ2_XS"].encode(np.zeros((1, 256), np.float32))
