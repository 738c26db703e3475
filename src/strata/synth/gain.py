"""How large output weights must be for mixers and experts to carry a given share of the residual's energy.

Readers see normalised streams, so what a part puts out depends on its weights alone; each gets the same energy.
Checked by the test that leaves parts out.
"""

from functools import cache
from math import sqrt

import numpy as np

from strata.gguf import TensorType
from strata.quants import FORMATS
from strata.synth.blocks import Pool, random_pieces

LEAST_ENERGY = 1.2  # of mixers and experts together, in units of the embedding's: 55 % of the sum
MOST_ENERGY = 6.0  # beyond it the cycle is lost among the other logits
LEAST_NRMSE = 0.05  # of the logits when one layer's routed experts are left out
ROUTED_SHARE = 0.8  # of a layer's expert energy; the rest is the shared expert's
SHARP = 4.0  # query norm that lets attention pick few cells, so that its output does not average out
# A mixer's read is the mean of four streams behind sigmoids near one half; inputs have weights of this deviation
# over the root of their width (layout: 0.02 at 2560).
READ, INPUT = 0.5, 0.02 * sqrt(2560)
GATED = 0.51  # a sigmoid gate's root mean square for such inputs
PICKED = 0.75  # what sharp attention keeps of a value's size


def energy(layers: int, hidden: int, topics: int, noise: float) -> float:
    """At least half, and more where a layer's part would be lost among many layers or in the topic's logits.

    A part of energy p moves the logits by sqrt(p / (1 + energy + hidden rho^2 / topics)), rho being the likeness of
    two tokens of one topic: the logits of a topic's tokens stand out from all others by rho hidden.
    """
    topic_logits = hidden / (1 + noise**2) ** 2 / topics
    part, least = ROUTED_SHARE / (2 * layers), LEAST_NRMSE**2
    if part <= least:
        return MOST_ENERGY
    return min(MOST_ENERGY, max(LEAST_ENERGY, least * (1 + topic_logits) / (part - least)))


def output_deviation(name: str, width: int, kind: TensorType, part: float, size: float) -> float:
    """Of the weights of an output tensor of input width `width`, so that it puts out energy `part`.

    `size`: root mean square of what it multiplies.
    """
    share = {"ffn_down_exps": ROUTED_SHARE, "ffn_down_shexp": 1 - ROUTED_SHARE}.get(name, 1.0)
    return sqrt(part * share / width) / (size * true_deviation(kind.name))


def input_sizes(types: dict[str, TensorType], experts: int, used: int, router_std: float) -> dict[str, float]:
    """Root mean square of what each output tensor multiplies, by its name."""

    def projected(plane: str) -> float:
        return READ * INPUT * true_deviation(types[plane].name)

    weights = routing_weight(experts, used, router_std * sqrt(2560) * READ)
    return {
        "ssm_out": GATED,
        "attn_output": projected("dense") * GATED * PICKED,
        "ffn_down_exps": _silu(projected("gate")) * projected("up") * weights,
        "ffn_down_shexp": _silu(projected("shared")) * projected("shared") * GATED,
    }


def _silu(x: float) -> float:
    """Root mean square of silu of a normal variable of deviation x below one (two terms of its series)."""
    return sqrt(x**2 / 4 + 3 * x**4 / 16)


@cache
def routing_weight(experts: int, used: int, deviation: float) -> float:
    """Root of the sum of squared weights of the chosen experts, for normal router logits."""
    scores = np.sort(np.random.default_rng(0).standard_normal((1024, experts)) * deviation, axis=1)[:, -used:]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return float(np.sqrt(np.mean(np.sum(weights**2, axis=1))))


@cache
def true_deviation(kind: str) -> float:
    """What random blocks made for a deviation of 1 really have: rules kept from older files are only near it."""
    made = random_pieces(Pool(0, 1 << 20), TensorType[kind], 1 << 17, 1.0, np.random.default_rng(0))
    raw = np.concatenate([piece.reshape(-1) for _, piece in made])
    return float(np.sqrt(np.mean(FORMATS[kind].decode(raw).astype(np.float64) ** 2)))
