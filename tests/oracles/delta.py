"""Gated delta rule mixer (Yang et al. 2024), in its step form."""

import numpy as np

from oracles.model import Array, Model, sigmoid, silu
from oracles.norms import l2_norm, rms_norm


def delta_mixer(model: Model, layer: str, x: Array) -> Array:
    """x [tokens, hidden] to [tokens, hidden]."""
    key_heads, value_heads = int(model.key("ssm.group_count")), int(model.key("ssm.time_step_rank"))
    key_dim, value_dim = int(model.key("ssm.state_size")), int(model.key("ssm.inner_size")) // value_heads
    mixed = causal_conv(x @ model[layer + "attn_qkv.weight"].T, model[layer + "ssm_conv1d.weight"])
    keys = key_heads * key_dim
    q, k, v = np.split(silu(mixed), [keys, 2 * keys], axis=-1)
    q, k = (l2_norm(part.reshape(len(x), key_heads, key_dim)) for part in (q, k))
    v = v.reshape(len(x), value_heads, value_dim)
    source = model.rules.key_head(np.arange(value_heads), key_heads, value_heads // key_heads)
    q, k = q[:, source] / np.sqrt(np.asarray(key_dim, x.dtype)), k[:, source]
    beta, decay = _gates(model, layer, x, key_heads)
    y = rms_norm(delta_rule(q, k, v, beta, decay), model[layer + "ssm_norm.weight"], model.eps)
    z = (x @ model[layer + "attn_gate.weight"].T).reshape(y.shape)
    return (y * model.rules.output_gate(z)).reshape(len(x), -1) @ model[layer + "ssm_out.weight"].T


def causal_conv(x: Array, weight: Array, dilation: int = 1) -> Array:
    """Depthwise: x [tokens, channels], weight [channels, taps]; the last tap meets the newest column."""
    taps = weight.shape[1]
    padded = np.concatenate([np.zeros(((taps - 1) * dilation, x.shape[1]), x.dtype), x])
    return sum(weight[:, j] * padded[j * dilation : j * dilation + len(x)] for j in range(taps))


def delta_rule(q: Array, k: Array, v: Array, beta: Array, decay: Array) -> Array:
    """q, k [tokens, heads, key_dim], v [tokens, heads, value_dim]; beta, decay (a factor) [tokens, heads]."""
    state, out = np.zeros((v.shape[1], k.shape[2], v.shape[2]), v.dtype), np.empty_like(v)
    for t in range(len(v)):
        state = decay[t, :, None, None] * state
        correction = beta[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t, :, :, None] * correction[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out


def _gates(model: Model, layer: str, x: Array, key_heads: int) -> tuple[Array, Array]:
    """beta and exp(g) [tokens, value_heads]. `ssm_a` is already -exp(A_log)."""
    if layer + "ssm_ba.weight" in model:  # of every key head: the b of its value heads, then their a
        both = (x @ model[layer + "ssm_ba.weight"].T).reshape(len(x), key_heads, 2, -1)
        b, a = (both[:, :, i].reshape(len(x), -1) for i in (0, 1))
    else:
        b, a = x @ model[layer + "ssm_beta.weight"].T, x @ model[layer + "ssm_alpha.weight"].T
    softplus = np.logaddexp(0, a + model[layer + "ssm_dt.bias"])
    return sigmoid(b), np.exp(model[layer + "ssm_a"] * softplus)
