"""Token ids at which no router and no block selection is near a tie."""

from dataclasses import dataclass, field

import numpy as np
from scripts.goldens.cases import Array, Case
from scripts.goldens.configs import BASE_EOS, CHAT_EOS

from oracles import Gap, Model, draft_logits, logits

LOOKAHEAD = 8
MAX_TRIES = 4000


@dataclass
class Choice:
    """The ids, the least gap of each kind over tokens and layers, and how many ids were drawn again."""

    tokens: Array
    least_gaps: dict[str, float] = field(default_factory=dict)
    dropped_blocks: int = 0
    redrawn: int = 0


def choose_tokens(case: Case, model: Model, draft: Model | None) -> Choice:
    """Draws ids, and draws again the first one at which a choice is nearer than the case's margin."""
    rng = np.random.default_rng([case.seed, 1])
    tokens = rng.integers(0, BASE_EOS, case.num_tokens)
    tokens[list(case.eos_at)] = BASE_EOS
    tokens[case.num_tokens // 3] = CHAT_EOS
    choice, sound = Choice(tokens), 0
    while sound < case.num_tokens:
        if choice.redrawn > MAX_TRIES:
            raise RuntimeError(
                f"{case.name}: no id fits at {sound} of {case.num_tokens} with a margin of {case.margin}"
            )
        length = min(sound + LOOKAHEAD, case.num_tokens)
        near = _near_ties(case, _gaps(case, model, draft, tokens[:length]))
        if near < length:
            while near in case.eos_at:  # that one must stay: change what it sees
                near -= 1
            tokens[near] = rng.integers(0, BASE_EOS)
            choice.redrawn += 1
        sound = near if near < length else length
    for gap in _gaps(case, model, draft, tokens):
        least = min(choice.least_gaps.get(gap.kind, np.inf), float(gap.values.min()))
        choice.least_gaps[gap.kind] = least
        choice.dropped_blocks += gap.dropped
    return choice


def _gaps(case: Case, model: Model, draft: Model | None, tokens: Array) -> list[Gap]:
    """Of trunk and draft layer; a draft cell counts for the later of its two tokens."""
    trace: list[Gap] = []
    logits(model, tokens, trace)
    if case.draft and len(tokens) > 1:
        cells: list[Gap] = []
        draft_logits(model, tokens, draft, cells)
        trace += [Gap(g.kind, g.layer_idx, np.concatenate([[np.inf], g.values]), g.dropped) for g in cells]
    return trace


def _near_ties(case: Case, gaps: list[Gap]) -> int:
    """Index of the first token with a gap below the margin, else their number."""
    length = case.num_tokens
    for gap in gaps:
        near = np.flatnonzero(gap.values < case.margin)
        length = min(length, int(near[0])) if len(near) else length
    return length
