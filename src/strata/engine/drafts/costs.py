"""What steps cost on this machine at present, learned from the steps themselves: plain ones, drafted ones, chains."""

from dataclasses import dataclass, field

from strata.ops import MAX_DRAFTS, MAX_STEP_ROWS

WEIGHT = 0.15  # of a new measurement
OUTLIER = 1.5  # times what is known: something else had the machine
ROW = 0.12  # of a plain step, what another row costs while nothing is known
PASS = 0.06  # of a plain step, what a pass of the draft layer costs while nothing is known


@dataclass
class Means:
    """Running means by a small number; one measurement that is far off counts little, many in turn count."""

    ms: dict[int, float] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def observe(self, at: int, ms: float) -> None:
        """Takes a measurement in; the least of the first three begins."""
        known, seen = self.ms.get(at), self.seen.get(at, 0)
        self.seen[at] = seen + 1
        if known is None or seen < 3:
            self.ms[at] = ms if known is None else min(ms, known)
        else:
            self.ms[at] = known + WEIGHT * (min(ms, OUTLIER * known) - known)

    def at(self, x: int) -> float | None:
        """Between what is known; beyond it, nothing."""
        if x in self.ms:
            return self.ms[x]
        below, above = [k for k in self.ms if k < x], [k for k in self.ms if k > x]
        if not below or not above:
            return None
        a, b = max(below), min(above)
        return self.ms[a] + (self.ms[b] - self.ms[a]) * (x - a) / (b - a)


class StepCosts:
    """Milliseconds. A plain step has a row a sequence; a drafted step has more, and waits for its tokens."""

    def __init__(self) -> None:
        self.plain, self._drafted, self._chain = Means(), Means(), Means()
        self.plain_age: dict[int, int] = {}  # drafted steps since a plain one of so many rows

    def saw_plain(self, rows: int, ms: float) -> None:
        """A step of one row a sequence, and nothing else."""
        self.plain.observe(rows, ms)
        self.plain_age[rows] = 0

    def saw_drafted(self, sequences: int, rows: int, ms: float, chain: int, chain_ms: float) -> None:
        """A step of `rows` rows in `ms`, and a chain of so many passes after it."""
        self._drafted.observe(rows, ms)
        if chain:
            self._chain.observe(chain, chain_ms)
        self.plain_age[sequences] = self.plain_age.get(sequences, 0) + 1

    def base(self, sequences: int) -> float | None:
        """A plain step."""
        return self.plain.ms.get(sequences)

    def drafted(self, sequences: int, rows: int) -> float:
        """A step of `rows` rows; from what is known of fewer rows, where it was not measured."""
        known = self._drafted.at(rows)
        if known is not None:
            return known
        base = self.base(sequences) or 1.0
        fewer = [k for k in self._drafted.ms if k < rows]
        start = max(fewer, default=sequences)
        ms = self._drafted.ms.get(start, base)
        slope = ROW * base
        if fewer and start > sequences:
            slope = max((ms - base) / (start - sequences), 0.25 * slope)
        return ms + slope * (min(rows, MAX_STEP_ROWS) - start)

    def chain(self, sequences: int, passes: int) -> float:
        """So many passes of the draft layer."""
        if not passes:
            return 0.0
        known = self._chain.at(passes)
        if known is not None:
            return known
        if not self._chain.ms:
            return PASS * passes * (self.base(sequences) or 1.0)
        nearest = min(self._chain.ms, key=lambda k: abs(k - passes))
        return self._chain.ms[nearest] * min(passes, MAX_DRAFTS) / nearest
