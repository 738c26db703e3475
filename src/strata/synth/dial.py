"""How much noise makes a planted draft layer right with a given chance.

What it reads is the next token's embedding e and, through a random matrix, noise n of deviation s. The draft is right
where no other token of e's topic scores higher. Tokens of a topic share a centre; a token's own part has deviation o
and length o * sqrt(width). So with z, z' standard normal, z of the token and z' of each of m others, right means
z' < z + o * sqrt(width) / s for all of them: a chance of the integral of phi(z) Phi(z + o * sqrt(width) / s)^m.
"""

from math import erf, sqrt

import numpy as np

from strata.errors import UsageError

_LOWEST, _HIGHEST = 1e-3, 1e4
_STEPS = 80  # of halving between them
_Z = np.linspace(-8, 8, 4001)
_WEIGHTS = np.exp(-(_Z**2) / 2) / sqrt(2 * np.pi) * (_Z[1] - _Z[0])


def agreement_of(noise: float, width: int, own: float, others: int) -> float:
    """Chance that a draft is right."""
    reach = _Z + own * sqrt(width) / noise
    below = 0.5 * (1 + np.array([erf(x / sqrt(2)) for x in reach]))
    return float((_WEIGHTS * below**others).sum())


def noise_for(agreement: float, width: int, own: float, others: int) -> float:
    """Noise that gives an agreement from 0 to 1; UsageError for another."""
    if not 0 <= agreement <= 1:
        raise UsageError(f"--draft-agreement is {agreement}; it must be from 0 to 1")
    if agreement == 1:
        return 0.0
    low, high = _LOWEST, _HIGHEST
    for _ in range(_STEPS):
        middle = sqrt(low * high)
        if agreement_of(middle, width, own, others) > agreement:
            low = middle
        else:
            high = middle
    return high
