"""How many rows a step verifies for each sequence, and how long the next chains are: what gives most tokens a second.

A row more is worth its chance of being accepted; it costs what steps of that many rows were seen to cost. Where no
number of drafts beats none, nothing is drafted, but for a trial now and then that the purse pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.engine.drafts.costs import StepCosts
from strata.engine.drafts.purse import Purse
from strata.ops import MAX_STEP_ROWS

MARGIN = 1.02  # a gain below this is not worth the noise
FIRST = 3  # plain steps before anything is tried
REFRESH = 64  # drafted steps after which a plain one is measured again
REST = 48  # steps without drafts between trials
TRIAL = 6  # drafted steps of a trial
TRIAL_DRAFTS = 3

Reach = Sequence[float]  # chances that the first n drafts of a sequence are all accepted


@dataclass(frozen=True)
class Verdict:
    """Drafts to verify, or to make, for each sequence; `gain`: tokens a second in units of plain steps'."""

    counts: list[int]
    gain: float


def allot(reaches: Sequence[Reach], costs: StepCosts, passes: int | None = None) -> Verdict:
    """The best numbers of drafts. `passes`: of chains already made; None: they are still to be made, as long as the
    longest number needs. Equal chances go to the sequence that comes first."""
    n = len(reaches)
    base = costs.base(n)
    if base is None:
        return Verdict([0] * n, 1.0)
    order = sorted(
        ((chance, -place, -i) for i, reach in enumerate(reaches) for place, chance in enumerate(reach)),
        reverse=True,
    )[: MAX_STEP_ROWS - n]
    best, best_count, tokens, longest = 1.0, 0, float(n), 0
    for count, (chance, place, _) in enumerate(order, 1):
        tokens, longest = tokens + chance, max(longest, 1 - place)
        made = longest if passes is None else passes
        ms = costs.drafted(n, n + count) + costs.chain(n, made)
        gain = tokens / n * base / ms
        if gain > best:
            best, best_count = gain, count
    counts = [0] * n
    for _, _, i in order[:best_count]:
        counts[-i] += 1
    return Verdict(counts, best)


class Decision:
    """Of one engine. Each step: `choose`, then `saw`."""

    def __init__(self, costs: StepCosts | None = None, purse: Purse | None = None):
        self.costs, self.purse = costs or StepCosts(), purse or Purse()
        self._rested = REST  # steps without drafts
        self._trial = 0  # drafted steps that are left of a trial
        self.drafting = False

    def choose(self, reaches: Sequence[Reach], passes: int | None = None) -> list[int]:
        """Drafts to have in a step of these sequences, each offering up to as many as it has chances. `passes`: of the
        draft layer that they cost; None: as many as the longest chain needs."""
        n, none = len(reaches), [0] * len(reaches)
        if n >= MAX_STEP_ROWS or self.costs.plain.seen.get(n, 0) < FIRST or not any(reaches):
            return none
        if not self.purse.open or self.costs.plain_age.get(n, 0) >= REFRESH:
            return none
        verdict = allot(reaches, self.costs, passes)
        if verdict.gain >= MARGIN:
            return verdict.counts
        if self._trial == 0 and self._rested >= REST and self.purse.amount >= self.purse_for_trial(n):
            self._trial = TRIAL
        if self._trial:
            room = MAX_STEP_ROWS - n
            return [min(len(r), TRIAL_DRAFTS, room // n) for r in reaches]
        return none

    def purse_for_trial(self, sequences: int) -> float:
        """What a trial may lose, should nothing be accepted; less than a full purse, or there would be none."""
        base = self.costs.base(sequences) or 1.0
        rows = min(sequences * (1 + TRIAL_DRAFTS), MAX_STEP_ROWS)
        step = self.costs.drafted(sequences, rows) + self.costs.chain(sequences, TRIAL_DRAFTS)
        return min(TRIAL * (step / base - 1), 0.9 * 5.0)

    def keep(self, reaches: Sequence[Reach], passes: int) -> list[int]:
        """Of drafts that are there, how many to verify; all of a trial."""
        if self._trial:
            room = MAX_STEP_ROWS // len(reaches) - 1
            return [min(len(r), room) for r in reaches]
        return allot(reaches, self.costs, passes).counts

    def saw_plain(self, sequences: int, ms: float) -> None:
        """A step without drafts and without chains."""
        self.costs.saw_plain(sequences, ms)
        self.purse.settle(1.0, 1.0)
        self._rested += 1
        self.drafting = False

    def saw_drafted(
        self, sequences: int, rows: int, ms: float, chain: int, chain_ms: float, tokens: int
    ) -> None:
        """A step with drafts, or with a chain after it, and the tokens that it gave all sequences together."""
        self.costs.saw_drafted(sequences, rows, ms, chain, chain_ms)
        base = self.costs.base(sequences)
        if base is not None:
            self.purse.settle((ms + chain_ms) / base, tokens / sequences)
        self.drafting, self._rested = True, 0
        self._trial = max(self._trial - 1, 0)
