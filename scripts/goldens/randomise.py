"""Random weights for every tensor of a checkpoint, drawn from the case's seed and the tensor's name."""

import re
import zlib

import numpy as np
from scripts.goldens.cases import Array, Case

# Norms that a model multiplies by as they are; those of the hybrids hold an offset from 1.
PLAIN_NORM = re.compile(r"linear_attn\.norm\.weight$")
NORM = re.compile(r"norm[\w]*\.weight$")
# Wider than other matrices, so that few routers are near a tie.
ROUTER = re.compile(r"mlp\.gate\.weight$")


def random_state(case: Case, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """A float32 array for each tensor; none is left at a value (zero, one) that would hide a missing term."""
    return {name: _draw(case, name, shape).astype(np.float32) for name, shape in shapes.items()}


def _draw(case: Case, name: str, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng([case.seed, zlib.crc32(name.encode())])
    if name.endswith("A_log"):
        return rng.uniform(-4, 1, shape)  # memories of a token to some hundred tokens
    if name.endswith("dt_bias"):
        return rng.normal(0, 0.5, shape)
    if NORM.search(name):
        offset = 0.0 if case.norms_hold_offsets and not PLAIN_NORM.search(name) else 1.0
        return rng.normal(offset, 0.2, shape)
    if name.endswith("bias"):
        return rng.normal(0, 0.3, shape)
    if name.endswith(("ngram_embedding.weight", "embed_tokens.weight")):
        return rng.normal(0, 0.5, shape)
    fan_in = 4 if "conv1d" in name else shape[-1]
    return rng.normal(0, (2.0 if ROUTER.search(name) else 1.0) / np.sqrt(fan_in), shape)
