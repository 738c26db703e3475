"""The course of a run: phases, learning rate, and how many steps fit the time."""

from dataclasses import dataclass

RATE = 6e-3
WARM_UP, DECAY_FROM, LAST_RATE = 0.015, 0.5, 0.03
BATCH_TOKENS = 65_536
ASSUMED_STEPS = 2600  # until the run's own length is known


@dataclass(frozen=True)
class Phase:
    """`until`: share of the run's steps; `cost`: time of a step, in steps of the first phase."""

    until: float
    length: int
    drafts: int = 0  # drafts ahead that the draft layer is taught
    indexer: bool = False
    rounding: bool = False
    cost: float = 1.0


PHASES = (
    Phase(0.35, 512),
    Phase(0.72, 512, drafts=2, cost=1.27),
    Phase(0.84, 512, drafts=2, rounding=True, cost=1.4),
    Phase(1.0, 4096, drafts=2, indexer=True, rounding=True, cost=1.65),
)


def phase_of(step: int, steps: int) -> Phase:
    """The phase that a step belongs to."""
    return next(p for p in PHASES if step < p.until * steps or p is PHASES[-1])


def rate_of(step: int, steps: int) -> float:
    """Learning rate: up in a straight line, level, down in a straight line."""
    done = (step + 1) / steps
    if done < WARM_UP:
        return RATE * done / WARM_UP
    if done < DECAY_FROM:
        return RATE
    left = (1 - done) / (1 - DECAY_FROM)
    return RATE * (LAST_RATE + (1 - LAST_RATE) * left)


def steps_for(seconds: float, first_phase_step: float) -> int:
    """Steps of the whole run that take this long, where one of the first phase takes `first_phase_step` seconds."""
    shares = [p.until - before for p, before in zip(PHASES, [0.0, *(p.until for p in PHASES)], strict=False)]
    mean = sum(share * p.cost for share, p in zip(shares, PHASES, strict=True))
    return int(seconds / (first_phase_step * mean))
