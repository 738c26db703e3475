"""Full attention: plain (llama, qwen3moe) and gated (the hybrids)."""

import numpy as np

from oracles.model import Array, Model, sigmoid
from oracles.norms import rms_norm
from oracles.rope import Angles, rotate


def causal(tokens: int) -> Array:
    """[queries, keys], True where a query may look."""
    return np.tri(tokens, dtype=bool)


def attend(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """q [tokens, heads, dim], k, v [tokens, kv_heads, dim], mask [tokens, tokens]; [tokens, heads * dim]."""
    tokens, heads, dim = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(np.asarray(dim, q.dtype))
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(tokens, heads * dim)


def plain_attention(model: Model, layer: str, x: Array, angles: Angles) -> Array:
    """x [tokens, hidden]; biases and q/k norms where the file has them."""
    heads, kv_heads = int(model.key("attention.head_count")), int(model.key("attention.head_count_kv"))

    def project(name: str, count: int) -> Array:
        out = x @ model[f"{layer}{name}.weight"].T
        if (bias := model.maybe(f"{layer}{name}.bias")) is not None:
            out = out + bias
        return out.reshape(len(x), count, -1)

    q, k, v = project("attn_q", heads), project("attn_k", kv_heads), project("attn_v", kv_heads)
    if f"{layer}attn_q_norm.weight" in model:
        q = rms_norm(q, model[layer + "attn_q_norm.weight"], model.eps)
        k = rms_norm(k, model[layer + "attn_k_norm.weight"], model.eps)
    q, k = (rotate(part, angles, model.rules.rope_halves) for part in (q, k))
    y = attend(q, k, v, causal(len(x))) @ model[layer + "attn_output.weight"].T
    bias = model.maybe(layer + "attn_output.bias")
    return y if bias is None else y + bias


def gated_attention(model: Model, layer: str, x: Array, angles: Angles, mask: Array) -> Array:
    """As `plain_attention`; q_proj holds, head by head, the query and then a gate on that head's output."""
    heads, kv_heads = int(model.key("attention.head_count")), int(model.key("attention.head_count_kv"))
    q, gate = np.split((x @ model[layer + "attn_q.weight"].T).reshape(len(x), heads, -1), 2, axis=-1)
    k = (x @ model[layer + "attn_k.weight"].T).reshape(len(x), kv_heads, -1)
    v = (x @ model[layer + "attn_v.weight"].T).reshape(len(x), kv_heads, -1)
    q = rotate(rms_norm(q, model[layer + "attn_q_norm.weight"], model.eps), angles, model.rules.rope_halves)
    k = rotate(rms_norm(k, model[layer + "attn_k_norm.weight"], model.eps), angles, model.rules.rope_halves)
    y = attend(q, k, v, mask) * sigmoid(gate.reshape(len(x), -1))
    return y @ model[layer + "attn_output.weight"].T
