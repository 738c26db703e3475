"""Feed-forward halves of a block: SwiGLU, and routed experts with or without a shared one."""

import numpy as np

from oracles.model import Array, Model, sigmoid, silu
from oracles.trace import Gap, boundary_gap


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    """x [tokens, hidden]; gate and up [width, hidden], down [hidden, width]."""
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def feed_forward(model: Model, layer_idx: int, x: Array, trace: list[Gap] | None) -> Array:
    """Routed experts where the block has a router, else one SwiGLU."""
    layer = f"blk.{layer_idx}."
    if layer + "ffn_gate_inp.weight" not in model:
        return swiglu(x, *(model[f"{layer}ffn_{part}.weight"] for part in ("gate", "up", "down")))
    y = _routed(model, layer_idx, x, trace)
    if layer + "ffn_gate_inp_shexp.weight" in model:
        shared = swiglu(x, *(model[f"{layer}ffn_{part}_shexp.weight"] for part in ("gate", "up", "down")))
        y = y + sigmoid(x @ model[layer + "ffn_gate_inp_shexp.weight"].reshape(-1, 1)) * shared
    return y


def _routed(model: Model, layer_idx: int, x: Array, trace: list[Gap] | None) -> Array:
    """Softmax over all experts, the best k, renormalised to sum 1."""
    layer, k = f"blk.{layer_idx}.", int(model.key("expert_used_count"))
    router_logits = x @ model[layer + "ffn_gate_inp.weight"].T
    weights = np.exp(router_logits - router_logits.max(-1, keepdims=True))
    topk_ids = np.argsort(-weights, axis=-1, kind="stable")[:, :k]
    topk_weights = np.take_along_axis(weights, topk_ids, -1)
    topk_weights /= topk_weights.sum(-1, keepdims=True)
    gate, up, down = (_experts(model, layer, part) for part in ("gate", "up", "down"))
    out = np.zeros_like(x)
    for expert in np.unique(topk_ids):
        rows, rank = np.nonzero(topk_ids == expert)
        out[rows] += topk_weights[rows, rank, None] * swiglu(x[rows], gate[expert], up[expert], down[expert])
    if trace is not None:
        gaps = np.array([boundary_gap(row, k) for row in router_logits])
        trace.append(Gap("router", layer_idx, gaps))
    return out


def _experts(model: Model, layer: str, part: str) -> Array:
    """[experts, rows, columns]; gate and up may be one tensor, gate rows first."""
    if part != "down" and layer + "ffn_gate_up_exps.weight" in model:
        return np.split(model[layer + "ffn_gate_up_exps.weight"], 2, axis=1)[part == "up"]
    return model[f"{layer}ffn_{part}_exps.weight"]
