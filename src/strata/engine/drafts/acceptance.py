"""Running acceptance: the share of drafts that are accepted where all before them were, by their place in the chain."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.ops import MAX_DRAFTS

PRIOR = (0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6)  # before anything is known
WEIGHT = 0.06  # of one observation, once there are many
LEAST, MOST = 0.01, 0.99


@dataclass
class Acceptance:
    """Estimates by place, means at first, then decaying."""

    rates: list[float] = field(default_factory=lambda: list(PRIOR))
    seen: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)

    def observe(self, proposed: int, accepted: int) -> None:
        """A verified chain: places before `accepted` were right, the one at it was wrong, the rest tell nothing."""
        for place in range(min(accepted + 1, proposed)):
            self.seen[place] += 1
            weight = max(WEIGHT, 1 / (self.seen[place] + 2))
            self.rates[place] += weight * ((place < accepted) - self.rates[place])

    def reach(self, most: int) -> list[float]:
        """Chances that the first n drafts are all accepted, n from 1 to `most`. A place that was seen rarely goes by
        the place before."""
        found, chance, before = [], 1.0, self.rates[0]
        for own, seen in zip(self.rates[:most], self.seen, strict=False):
            before = own if seen >= 8 else (own * seen + before * (8 - seen)) / 8
            chance *= LEAST if before < LEAST else MOST if before > MOST else before
            found.append(chance)
        return found


@dataclass
class ByAgreement:
    """Of lookup drafts, by how long the text agreed: a long agreement is seldom chance."""

    short: Acceptance = field(default_factory=Acceptance)
    middle: Acceptance = field(default_factory=Acceptance)
    long: Acceptance = field(default_factory=Acceptance)

    def of(self, agreed: int) -> Acceptance:
        """The estimates that go by an agreement of so many tokens."""
        return self.short if agreed < 5 else self.middle if agreed < 12 else self.long


def expected(reach: Sequence[float]) -> float:
    """Drafts accepted of a chain."""
    return sum(reach)
