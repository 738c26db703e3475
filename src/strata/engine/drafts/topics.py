"""What a step takes because its text's topic is new. Beside a tier its experts are missed then, with drafts or without,
so that such a step says little about what rows cost, and nothing against drafts."""

from collections.abc import Callable
from dataclasses import dataclass, field

LESS, MORE = 0.2, 0.02  # weights of a plain step that missed less, or more, than is usual
ABOVE = 1.5  # times what is usual: from there on it is the topic's
KEPT = 0.98  # of a line's sums, a step
KEPT_SLOPE = 0.999  # of its slope: while a topic lasts steps hardly differ
LATELY = 0.1  # weight of a drafted step in the share of rows that become tokens


@dataclass(frozen=True)
class Misses:
    """Of a backend: `count`: experts that steps did not find where they compute, in all; `ms`: to bring one."""

    count: Callable[[], int]
    ms: Callable[[], float]


@dataclass
class Line:
    """Through steps' times (ms) by what they missed; later ones count more."""

    weight: float = 0.0
    missed: float = 0.0  # sums
    ms: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def add(self, missed: float, ms: float) -> None:
        """A step."""
        self.weight = KEPT * self.weight + 1
        self.missed = KEPT * self.missed + missed
        self.ms = KEPT * self.ms + ms
        self.squares = KEPT * self.squares + missed * missed
        self.products = KEPT * self.products + missed * ms

    @property
    def slope(self) -> float:
        """Of a miss; 0 where steps do not differ."""
        if not self.weight:
            return 0.0
        missed, ms = self.missed / self.weight, self.ms / self.weight
        variance = self.squares / self.weight - missed * missed
        covariance = self.products / self.weight - missed * ms
        return max(covariance / variance, 0.0) if variance > 1e-6 else 0.0


@dataclass
class TopicMisses:
    """Learns what steps miss as a rule: plain ones a token, drafted ones a row, of which more miss less each."""

    usual: float | None = None  # of a token
    _of_row: dict[int, float] = field(default_factory=dict)  # by rows of drafted steps
    _plain: Line = field(default_factory=Line)
    _slope: float = 0.0  # of that line, the largest of late
    _share: float = 0.0  # of the rows of drafted steps, those that became tokens of late

    def plain(self, ms: float, missed: float, tokens: int, each: float) -> float:
        """Takes in a plain step, which gave so many tokens; its time without what its topic missed. `each`: what a miss
        takes at most; of one row they mostly come beside what is computed."""
        of_token = missed / tokens
        if self.usual is None:
            self.usual = of_token
        self.usual = _moved(self.usual, of_token)
        self._plain.add(missed, ms)
        self._slope = max(min(self._plain.slope, each), KEPT_SLOPE * self._slope)
        return ms - self._slope * _above(missed, self.usual * tokens)

    def drafted(self, missed: float, rows: int, tokens: int, each: float) -> tuple[float, float]:
        """Of a step with drafts: milliseconds that say nothing about what so many rows cost, and of those what plain
        steps would have paid too. Of what its rows missed, the text's is the share of rows that are its tokens; for the
        former, or that have been of late."""
        own, share = tokens / rows, max(tokens / rows, self._share)
        self._share += LATELY * (own - self._share)
        if self.usual is None:
            return 0.0, 0.0
        before = min([self.usual, *(usual for few, usual in self._of_row.items() if few <= rows)])
        self._of_row[rows] = _moved(self._of_row.get(rows, before), missed / rows)
        transient = each * share * _above(missed, before * rows)
        return transient, min(self._slope * _above(own * missed, self.usual * tokens), transient)


def _moved(usual: float, seen: float) -> float:
    """What is usual after a step: soon what is less, slowly what is more."""
    return usual + (LESS if seen < usual else MORE) * (seen - usual)


def _above(missed: float, usual: float) -> float:
    """Experts that were missed because they are of a new topic."""
    return max(missed - ABOVE * usual, 0.0)
