"""How many rows a step verifies for each sequence, and how long the next chains are: what gives most tokens a second.

A row more is worth its chance of being accepted; it costs what steps of that many rows were seen to cost. Where no
number of drafts beats none, nothing is drafted, but for a trial now and then that the purse pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from strata.engine.drafts.costs import StepCosts
from strata.engine.drafts.purse import FULL, Purse
from strata.ops import MAX_STEP_ROWS

MARGIN = 1.02  # a gain below this is not worth the noise
# Drafted steps after which a plain one is measured again: at first, and twice as many each time that it is no faster
# than was known.
FIRST_REFRESH, REFRESH = 8, 64
REST = 48  # steps without drafts between trials
TRIAL = 6  # drafted steps of a trial
TRIAL_DRAFTS = 3

Reach = Sequence[float]  # chances that the first n drafts of a sequence are all accepted


@dataclass(frozen=True)
class Verdict:
    """Drafts to verify, or to make, for each sequence; `gain`: tokens a second in units of plain steps'."""

    counts: list[int]
    gain: float


def allot(
    reaches: Sequence[Reach],
    costs: StepCosts,
    passes: int | None = None,
    most_ms: float = inf,
    most_rows: int = MAX_STEP_ROWS,
) -> Verdict:
    """The best numbers of drafts, of those whose step takes at most `most_ms` and `most_rows`. `passes`: of chains
    already made; None: they are still to be made, as long as the longest number needs. Of equal chances the first
    sequence's goes first."""
    n = len(reaches)
    base = costs.base(n)
    if base is None:
        return Verdict([0] * n, 1.0)
    order = sorted(
        ((chance, -place, -i) for i, reach in enumerate(reaches) for place, chance in enumerate(reach)),
        reverse=True,
    )[: max(most_rows - n, 0)]
    best, best_count, tokens, longest = 1.0, 0, float(n), 0
    for count, (chance, place, _) in enumerate(order, 1):
        tokens, longest = tokens + chance, max(longest, 1 - place)
        made = longest if passes is None else passes
        ms = costs.drafted(n, n + count) + costs.chain(n, made)
        if ms > most_ms:
            continue
        gain = tokens / n * base / ms
        if gain > best:
            best, best_count = gain, count
    counts = [0] * n
    for _, _, i in order[:best_count]:
        counts[-i] += 1
    return Verdict(counts, best)


class Decision:
    """Of one engine. Each step: `choose`, then `saw`. `most_rows`: of a step with drafts."""

    def __init__(
        self, costs: StepCosts | None = None, purse: Purse | None = None, most_rows: int = MAX_STEP_ROWS
    ):
        self.costs, self.purse, self._most_rows = costs or StepCosts(), purse or Purse(), most_rows
        self._rested = REST  # steps without drafts
        self._refresh = FIRST_REFRESH
        self._trial = 0  # drafted steps that are left of a trial
        self.drafting = False

    def choose(self, reaches: Sequence[Reach], passes: int | None = None) -> list[int]:
        """Drafts to have in a step of these sequences, each offering up to as many as it has chances. `passes`: of the
        draft layer that they cost; None: as many as the longest chain needs."""
        n, none = len(reaches), [0] * len(reaches)
        if n >= self._most_rows or not self.costs.settled(n) or not any(reaches):
            return none
        if not self.purse.open or self.costs.plain_age.get(n, 0) >= self._refresh:
            return none
        verdict = allot(reaches, self.costs, passes, self._most_ms(n), self._most_rows)
        if verdict.gain >= MARGIN:
            return verdict.counts
        if not self._trial and self._rested >= REST and self.purse.full:
            self._trial = TRIAL
        drafts = self._trial_drafts(n) if self._trial else 0
        return [min(len(r), drafts) for r in reaches]

    def _most_ms(self, sequences: int) -> float:
        """What a step may take, so that the purse can pay for it should nothing be accepted."""
        return (1 + self.purse.amount) * (self.costs.base(sequences) or 1.0)

    def _trial_drafts(self, sequences: int) -> int:
        """Drafts a sequence of a trial, fewer where rows cost much: its steps share a full purse; one at least."""
        base = self.costs.base(sequences) or 1.0
        for drafts in range(min(TRIAL_DRAFTS, self._most_rows // sequences - 1), 1, -1):
            rows = sequences * (1 + drafts)
            ms = self.costs.drafted(sequences, rows) + self.costs.chain(sequences, drafts)
            if TRIAL * (ms / base - 1) <= FULL:
                return drafts
        return min(1, self._most_rows // sequences - 1)

    def keep(self, reaches: Sequence[Reach], passes: int) -> list[int]:
        """Of drafts that are there, how many to verify; all of a trial, as far as the purse can pay."""
        n = len(reaches)
        if not self._trial:
            return allot(reaches, self.costs, passes, self._most_ms(n), self._most_rows).counts
        rows = n + sum(len(r) for r in reaches)
        if rows > self._most_rows or self.costs.drafted(n, rows) > self._most_ms(n):
            return [0] * n
        return [len(r) for r in reaches]

    def saw_plain(self, sequences: int, ms: float) -> None:
        """A step without drafts and without chains."""
        faster = self.costs.saw_plain(sequences, ms)
        self._refresh = FIRST_REFRESH if faster else min(2 * self._refresh, REFRESH)
        self.purse.settle(1.0, 1.0)
        self._rested += 1
        self.drafting = False

    def saw_drafted(
        self,
        sequences: int,
        rows: int,
        ms: float,
        chain: int,
        chain_ms: float,
        tokens: int,
        extra_ms: float = 0.0,
    ) -> None:
        """A step with drafts, or with a chain after it, and the tokens that it gave all sequences together; `extra_ms`:
        that it took besides, and steps of so many rows do not as a rule."""
        self.costs.saw_drafted(sequences, rows, ms, chain, chain_ms)
        base = self.costs.base(sequences)
        if base is not None:
            self.purse.settle((ms + extra_ms + chain_ms) / base, tokens / sequences)
        self.drafting, self._rested = True, 0
        self._trial = max(self._trial - 1, 0)
