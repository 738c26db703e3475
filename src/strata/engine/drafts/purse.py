"""What drafting may lose: a purse that time fills slowly, so that a loss is bounded however wrong the estimates are."""

from dataclasses import dataclass

# In plain steps. Over n tokens of a sequence a purse allows FULL + REFILL * n plain steps, and one step's loss beyond:
# at most 10.2 of 256 tokens (4 %) and 20.4 of 1,024 (2 %).
FULL = 5.0
REFILL = 0.012
OPEN = 2.5  # a purse that was emptied opens again from here
STEP = 1.6  # most that the last step before it is empty can lose


@dataclass
class Purse:
    """`open` says whether drafting may go on."""

    amount: float = FULL
    open: bool = True
    lost: float = 0.0  # in all; less than nothing where drafts won

    def settle(self, cost: float, tokens: float) -> None:
        """A step cost `cost` plain steps and gave `tokens` tokens a sequence."""
        loss = cost - tokens
        self.lost += loss
        self.amount = min(self.amount - loss + REFILL * tokens, FULL)
        if self.amount <= 0:
            self.open = False
        elif self.amount >= OPEN:
            self.open = True
