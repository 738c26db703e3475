"""The frozen functions: how far they are from float64, over dense ranges."""

import numpy as np
import pytest
from benchmarks.contract.accuracy import EXACT, RANGES, floats, ulps

from strata.ops import arithmetic

LIMITS = {
    "exp32": 0.95,
    "log32": 0.81,
    "sigmoid32": 2.5,
    "silu32": 2.4,
    "softplus32": 2.1,
}  # docs/contract.md


def worst(name: str) -> float:
    """Largest error in ulps over a thinned set of float32 values."""
    function = getattr(arithmetic, name)
    found = 0.0
    for low, high in RANGES[name]:
        x = floats(low, high, 4999)
        found = max(found, float(ulps(function(x), EXACT[name](x.astype(np.float64))).max()))
    return found


@pytest.mark.parametrize("name", LIMITS)
def test_error_stays_within_the_documented_bound(name: str) -> None:
    assert worst(name) <= LIMITS[name]


def test_a_wrong_coefficient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = [*arithmetic._EXP_TERMS]
    terms[2] *= 1.001
    monkeypatch.setattr(arithmetic, "_EXP_TERMS", terms)
    assert worst("exp32") > LIMITS["exp32"]


def test_functions_at_their_edges() -> None:
    x = np.array([-200, -87.5, 0, 88, 200], np.float32)
    assert arithmetic.exp32(x).tolist()[:3] == [0, 0, 1]
    assert np.isfinite(arithmetic.exp32(x)).all()
    assert arithmetic.sigmoid32(x).tolist()[2] == 0.5
    assert arithmetic.softplus32(x)[4] == 200
    assert arithmetic.silu32(x)[2] == 0
