"""What drafts have done so far: by drafter, by place in the chain, and by the text's script."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Drafter = Literal["layer", "lookup"]


@dataclass
class DraftCounts:
    """Totals of an engine; read by metrics and by the log."""

    proposed: Counter[str] = field(default_factory=Counter)  # drafts verified, by drafter
    accepted: Counter[str] = field(default_factory=Counter)
    proposed_at: Counter[int] = field(default_factory=Counter)  # by place, 1 being first, all before it right
    accepted_at: Counter[int] = field(default_factory=Counter)
    proposed_in: Counter[str] = field(default_factory=Counter)  # first drafts, by the script of what came
    accepted_in: Counter[str] = field(default_factory=Counter)
    windows: int = 0  # chains verified
    widest: int = 0  # drafts verified at once for one sequence
    steps: int = 0  # decode steps, and of those the ones with drafts
    drafted_steps: int = 0
    tokens: int = 0  # of all decode steps

    def window(self, drafter: Drafter, proposed: int, accepted: int, script: str) -> None:
        """A chain was verified; `script`: of the token that came in its first draft's place."""
        self.windows += 1
        self.widest = max(self.widest, proposed)
        self.proposed[drafter] += proposed
        self.accepted[drafter] += accepted
        for place in range(1, min(accepted + 1, proposed) + 1):
            self.proposed_at[place] += 1
            self.accepted_at[place] += place <= accepted
        self.proposed_in[script] += 1
        self.accepted_in[script] += accepted > 0

    @property
    def mean_accepted(self) -> float:
        """Drafts accepted of a chain."""
        return sum(self.accepted.values()) / self.windows if self.windows else 0.0
