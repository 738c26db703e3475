"""How well a model predicts a text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.engine import Engine


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Mean negative log-likelihood in nats over the tokens that were scored."""

    nll: float
    scored: int
    windows: int

    @property
    def value(self) -> float:
        """e to the mean negative log-likelihood."""
        return math.exp(self.nll)


def measure_perplexity(
    engine: Engine, tokens: Sequence[int], context: int, chunk: int | None, tell: Callable[[str], None]
) -> Perplexity:
    """Cut `tokens` into windows of `context`, each read from nothing, and score all but the first token of each.

    `chunk`: prompt tokens at a time, None: the engine's own. `tell` gets a line per window.
    """
    total, scored, windows = 0.0, 0, 0
    for begin in range(0, len(tokens) - 1, context):
        window = tokens[begin : begin + context]
        if len(window) < 2:
            break
        total += _window_nll(engine, window, chunk)
        scored, windows = scored + len(window) - 1, windows + 1
        tell(f"{begin + len(window)}/{len(tokens)} tokens: perplexity {math.exp(total / scored):.4f}")
    return Perplexity(total / scored, scored, windows)


def _window_nll(engine: Engine, window: Sequence[int], chunk: int | None) -> float:
    total, position = 0.0, 0
    for rows in engine.logits(window[:-1], chunk):
        targets = window[position + 1 : position + 1 + len(rows)]
        total += float(negative_log_likelihood(rows, targets).sum())
        position += len(rows)
    return total


def negative_log_likelihood(rows: NDArray[np.float32], targets: Sequence[int]) -> NDArray[np.float64]:
    """-log softmax(rows)[target] of each row, in float64."""
    wide = rows.astype(np.float64)
    peak = wide.max(axis=1)
    log_sum = np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak
    return np.asarray(log_sum - wide[np.arange(len(wide)), targets], np.float64)
