"""What steps cost on this machine at present, learned from the steps themselves: plain ones, drafted ones, chains.

Beside a tier a topic's first steps miss several times as much as later ones, those of more rows most of all. So nothing
is tried before plain steps have stopped getting faster; and what was not seen for long draws near what fewer rows tell,
unless it was so dear that finding out would be.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from strata.ops import MAX_DRAFTS, MAX_STEP_ROWS

WEIGHT = 0.15  # of a new measurement
FALLING, FALLS = 0.5, 0.95  # of one below so many times what is known: a text's experts are coming
# Steps in which half of what a cost differs by from that is gone; four times as many each time that it is found as bad
# again, up to the last.
FADES, FADES_LAST = 24, 4096
AS_BAD = 0.7  # of what was known
TOO_DEAR = 3.5  # plain steps, as they were then
FEW_LATELY = 4  # plain steps, the fastest of which is compared with that of as many before
FASTER = 0.9  # times those: still getting faster
PATIENCE = 32  # plain steps
FEW = 3  # measurements of which the least begins
OUTLIER = 1.5  # times what is known: something else had the machine
ROW = 0.12  # of a plain step, what another row costs while nothing is known
PASS = 0.06  # of a plain step, what a pass of the draft layer costs while nothing is known


@dataclass
class Means:
    """Running means by a small number; one measurement that is far off counts little, many in turn count."""

    ms: dict[int, float] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def observe(self, at: int, ms: float) -> bool:
        """Takes a measurement in; the least of the first three begins. Whether it was well below what was known."""
        known, seen = self.ms.get(at), self.seen.get(at, 0)
        self.seen[at] = seen + 1
        if known is None or seen < FEW:
            self.ms[at] = ms if known is None else min(ms, known)
            return known is not None and ms < FALLS * known
        falls = ms < FALLS * known
        self.ms[at] = known + (FALLING if falls else WEIGHT) * (min(ms, OUTLIER * known) - known)
        return falls

    def drop(self, at: int) -> None:
        """Forgets a mean."""
        del self.ms[at], self.seen[at]

    def at(self, x: int, value: Callable[[int], float] | None = None) -> float | None:
        """Between what is known; beyond it, nothing. `value`: of what is known, in place of its mean."""
        value = value or self.ms.__getitem__
        if x in self.ms:
            return value(x)
        below, above = [k for k in self.ms if k < x], [k for k in self.ms if k > x]
        if not below or not above:
            return None
        a, b = max(below), min(above)
        first, last = value(a), value(b)
        return first + (last - first) * (x - a) / (b - a)


class StepCosts:
    """Milliseconds. A plain step has a row a sequence; a drafted step has more, and waits for its tokens."""

    def __init__(self) -> None:
        self.plain, self._drafted, self._chain = Means(), Means(), Means()
        self._lately = deque[float](maxlen=2 * FEW_LATELY)  # plain steps, all of `_width` rows
        self._width = 0
        self._steps = 0
        self._seen: dict[int, int] = {}  # by rows of drafted steps, the last one
        self._fades: dict[int, int] = {}
        self._too_dear: set[int] = set()  # rows of which finding out again would cost too much
        self.plain_age: dict[int, int] = {}  # drafted steps since a plain one of so many rows

    def saw_plain(self, rows: int, ms: float) -> bool:
        """A step of one row a sequence, and nothing else; whether it was well below what was known."""
        self._steps += 1
        faster = self.plain.observe(rows, ms)
        if rows != self._width:
            self._lately.clear()
            self._width = rows
        self._lately.append(ms)
        self.plain_age[rows] = 0
        return faster

    def saw_drafted(self, sequences: int, rows: int, ms: float, chain: int, chain_ms: float) -> None:
        """A step of `rows` rows in `ms`, and a chain of so many passes after it."""
        self._steps += 1
        self._again(rows, ms)
        self._drafted.observe(rows, ms)
        if self._drafted.ms[rows] > TOO_DEAR * self.plain.ms.get(sequences, 1.0):
            self._too_dear.add(rows)
        else:
            self._too_dear.discard(rows)
        if chain:
            self._chain.observe(chain, chain_ms)
        self.plain_age[sequences] = self.plain_age.get(sequences, 0) + 1

    def settled(self, sequences: int) -> bool:
        """Whether plain steps have stopped getting faster, or are not going to."""
        seen, lately = self.plain.seen.get(sequences, 0), list(self._lately)
        if seen >= PATIENCE:
            return True
        if sequences != self._width or len(lately) < 2 * FEW_LATELY:
            return False
        return min(lately[FEW_LATELY:]) > FASTER * min(lately[:FEW_LATELY])

    def base(self, sequences: int) -> float | None:
        """A plain step."""
        return self.plain.ms.get(sequences)

    def drafted(self, sequences: int, rows: int) -> float:
        """A step of `rows` rows; from what is known of fewer rows, where it was not measured."""
        known = self._drafted.at(rows, lambda k: self._faded(sequences, k))
        return self._reckoned(sequences, rows, list(self._drafted.ms)) if known is None else known

    def _faded(self, sequences: int, rows: int) -> float:
        """A step of rows that was measured, the less by that the longer ago it was."""
        known = self._drafted.ms[rows]
        age, fades = self._steps - self._seen[rows], self._fades.get(rows, FADES)
        if age <= fades or rows in self._too_dear:
            return known
        fresh = [k for k in self._drafted.ms if self._steps - self._seen[k] <= FADES]
        reckoned = self._reckoned(sequences, rows, fresh)
        return reckoned + (known - reckoned) * float(0.5 ** (age / fades))

    def _again(self, rows: int, ms: float) -> None:
        """So many rows were seen, after a while."""
        last, fades = self._seen.get(rows, self._steps), self._fades.get(rows, FADES)
        self._seen[rows] = self._steps
        if self._steps - last <= fades:
            return
        if ms > AS_BAD * self._drafted.ms[rows]:
            self._fades[rows] = min(4 * fades, FADES_LAST)
        else:
            self._drafted.drop(rows)
            self._fades[rows] = FADES

    def _reckoned(self, sequences: int, rows: int, by: list[int]) -> float:
        """What steps of so many rows would take by what fewer rows, of those in `by`, do."""
        base = self.plain.ms.get(sequences, 1.0)
        fewer = [k for k in by if k < rows]
        start = max(fewer, default=sequences)
        ms = self._faded(sequences, start) if fewer else base
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
