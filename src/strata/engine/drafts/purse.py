"""What drafting may lose: a purse that time fills slowly, so that a loss is bounded however wrong the estimates are."""

from dataclasses import dataclass

# In plain steps. No step is begun that the purse could not pay, so that n tokens of a sequence lose at most
# FULL + REFILL * n plain steps, and what a step was misjudged by: 8.6 of 256 tokens, where 4 % are 10.2, and 16.2 of
# 1,024, where 2 % are 20.5.
FULL = 6.0
REFILL = 0.01
# A purse that was emptied opens again from here, where it pays for one draft: a topic's first step empties it however
# right drafts are, and what they win fills it soon.
OPEN = 1.0
EMPTY = 0.5


@dataclass
class Purse:
    """`open` says whether drafting may go on."""

    amount: float = FULL
    open: bool = True
    lost: float = 0.0  # in all; less than nothing where drafts won

    @property
    def full(self) -> bool:
        """Whether nothing was lost lately."""
        return self.amount >= 0.9 * FULL

    def settle(self, cost: float, tokens: float) -> None:
        """A step cost `cost` plain steps and gave `tokens` tokens a sequence."""
        loss = cost - tokens
        self.lost += loss
        self.amount = min(self.amount - loss + REFILL * tokens, FULL)
        if self.amount <= EMPTY:
            self.open = False
        elif self.amount >= OPEN:
            self.open = True
