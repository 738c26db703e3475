"""Which tokens sparse attention sees: blocks ranked by pooled index keys, and always the unfinished tail."""

import numpy as np

from oracles.attention import causal
from oracles.model import Array, Model
from oracles.norms import rms_norm
from oracles.rope import Angles, rotate
from oracles.trace import Gap, boundary_gap


def visible(model: Model, layer_idx: int, x: Array, angles: Angles, trace: list[Gap] | None) -> Array:
    """Mask [tokens, tokens] for x [tokens, hidden]; causal where the file has no ratio for the block."""
    ratios = model.key("attention.compress_ratios", ())
    ratio = int(ratios[layer_idx]) if len(ratios) else 0
    if not ratio:
        return causal(len(x))
    layer, dim = f"blk.{layer_idx}.", int(model.key("attention.indexer.key_length"))
    keep = int(model.key("attention.indexer.top_k")) // ratio
    queries = (x @ model[layer + "indexer.q_proj.weight"].T).reshape(len(x), -1, dim)
    queries = rotate(rms_norm(queries, model[layer + "indexer.q_norm.weight"], model.eps), angles, True)
    keys = _block_keys(model, layer, x, angles, ratio)
    mask, gaps, dropped = np.zeros((len(x), len(x)), bool), np.full(len(x), np.inf), 0
    for t in range(len(x)):
        blocks = (t + 1) // ratio
        scores = np.maximum(queries[t] @ keys[:blocks].T, 0).sum(0) / np.sqrt(dim)
        for block in np.argsort(-scores, kind="stable")[:keep]:
            mask[t, block * ratio : (block + 1) * ratio] = True
        mask[t, blocks * ratio : t + 1] = True
        gaps[t] = boundary_gap(scores, keep)
        dropped += max(blocks - keep, 0)
    if trace is not None:
        trace.append(Gap("blocks", layer_idx, gaps, dropped))
    return mask


def _block_keys(model: Model, layer: str, x: Array, angles: Angles, ratio: int) -> Array:
    """[blocks, dim]: the mean of raw keys, then norm, then rope at the block's first position."""
    raw = x @ model[layer + "indexer.k_proj.weight"].T
    blocks = len(x) // ratio
    pooled = raw[: blocks * ratio].reshape(blocks, ratio, -1).mean(1)
    pooled = rms_norm(pooled, model[layer + "indexer.k_norm.weight"], model.eps)
    cos, sin = (part[: blocks * ratio : ratio] for part in angles)
    return rotate(pooled[:, None], (cos, sin), True)[:, 0]
